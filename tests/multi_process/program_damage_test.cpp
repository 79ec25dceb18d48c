// SPDX-License-Identifier: Apache-2.0
// An image that one process cannot read ends the run in all of them together, and costs nothing else.
#include <filesystem>

#include <nlohmann/json.hpp>

#include "tests/multi_process/mpirun.h"
#include "tests/support/expect_contains.h"
#include "tests/tools/image_folder.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test::program_damage_test {
namespace {

using Json = nlohmann::json;

class ProcessDamage : public MpirunTest {
 protected:
  std::string path(const std::string& name) const { return folder_.path(name); }
  /// Two processes that train; rank 1 has the second half of each batch.
  ChildResult train(const std::string& mode, const Command& more) const {
    Command command = words(
        "train --model lenet5 --data image-folder:{} --image-size 12 --batch-size 50 --threads-per-device 1 "
        "--no-shuffle "
        "--exact --mode {} --json",
        path("images"), mode);
    command.insert(command.end(), more.begin(), more.end());
    for (const char* rank : {"out.0", "err.0", "out.1", "err.1"}) std::filesystem::remove(path(rank));
    return mpirun(2, with_output_in(folder_.str(), vitrine_command(command)));
  }
  Json json() const { return Json::parse(content(path("out.0"))); }

  const TempFolder folder_;
  const SmallImages images_{path("images"), 300};
};

TEST_F(ProcessDamage, ATrainingImageEndsAllBeforeItsStepAndTheRunContinuesWithTheSameBits) {
  const Command whole = words("--no-eval --epochs 1");
  ASSERT_EQ(train("ddp", whole).exit_code, 0) << content(path("err.0"));
  const Json state = json()["state_hash"];
  for (const std::string mode : {"ddp", "zero3"}) {
    SCOPED_TRACE(mode);
    const Command saving = with(whole, words("--checkpoint-dir {} --save {}", path(mode), path(mode + ".safetensors")));
    // In the part of rank 1 of the eighth batch. The program does not look at this image before it begins.
    const std::string bad = images_.damage("train", 392);
    EXPECT_EQ(train(mode, saving).exit_code, 1);
    expect_contains(json()["failure"].get<std::string>(), "rank 1: " + bad);
    expect_contains(content(path("err.0")), "rank 1: " + bad, "--skip-damaged goes on without damaged images");
    const size_t steps = json()["step_losses"].size();
    EXPECT_GE(steps, 1U);
    EXPECT_LE(steps, 7U);
    EXPECT_EQ(json()["checkpoints"]["saved"], 1);
    EXPECT_TRUE(std::filesystem::exists(path(mode + ".safetensors")));
    images_.repair("train", 392);
    ASSERT_EQ(train(mode, with(saving, words("--resume auto"))).exit_code, 0) << content(path("err.0"));
    EXPECT_EQ(json()["first_step"], steps);
    EXPECT_EQ(json()["state_hash"], state);
  }
}

TEST_F(ProcessDamage, ATestImageEndsAllAfterTheEpochWithACheckpoint) {
  const std::string bad = images_.damage("val", 596);
  for (const std::string mode : {"ddp", "zero3"}) {
    SCOPED_TRACE(mode);
    EXPECT_EQ(train(mode, words("--epochs 2 --checkpoint-dir {}", path(mode))).exit_code, 1);
    expect_contains(json()["failure"].get<std::string>(), bad);
    EXPECT_EQ(json()["step_losses"].size(), 12U);
    EXPECT_EQ(json()["checkpoints"]["saved"], 1);
  }
}

TEST_F(ProcessDamage, AnImageOfTheFirstStepsEndsAllAtOnce) {
  const std::string bad = images_.damage("train", 31);
  EXPECT_EQ(train("ddp", words("--no-eval --epochs 1")).exit_code, 1);
  expect_contains(content(path("err.0")) + content(path("err.1")), bad);
}

/// The same samples count in every process and whatever the number of processes.
TEST_F(ProcessDamage, SkippingGivesTheBitsOfOneProcess) {
  for (const int sample : {31, 77, 391}) images_.damage("train", sample);
  images_.damage("val", 596);
  const Command skipping = words("--epochs 1 --skip-damaged");
  ASSERT_EQ(train("zero3", skipping).exit_code, 0) << content(path("err.0"));
  const Json several = json();
  EXPECT_EQ(several["skipped"].size(), 4U) << several["skipped"];
  Command alone = words(
      "train --model lenet5 --data image-folder:{} --image-size 12 --batch-size 50 --threads-per-device 1 --no-shuffle "
      "--exact --devices cpu:0 --json",
      path("images"));
  const ChildResult result = run_vitrine(with(alone, skipping));
  ASSERT_EQ(result.exit_code, 0) << result.error;
  const Json one = Json::parse(result.output);
  EXPECT_EQ(one["state_hash"], several["state_hash"]);
  EXPECT_EQ(one["skipped"], several["skipped"]);
  EXPECT_EQ(one["epochs"][0]["test_loss"], several["epochs"][0]["test_loss"]);
}

}  // namespace
}  // namespace vitrine::test::program_damage_test
