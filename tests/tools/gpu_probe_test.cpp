// SPDX-License-Identifier: Apache-2.0
// The program tries what is on before it uses a GPU, and turns off what fails.
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/data/temp_folder.h"
#include "tests/support/expect_contains.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test {
namespace {

using Json = nlohmann::ordered_json;

class GpuProbe : public ::testing::Test {
 protected:
  Json json_of(const Arguments& arguments, const std::vector<std::string>& environment) {
    std::vector<std::string> all = environment;
    all.push_back("XDG_CACHE_HOME=" + cache_.str());
    const ChildResult result =
        ChildProcess(vitrine_command(with(arguments, {"--json"})), ChildProcess::Streams::pipes, all).wait();
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return Json::parse(result.output);
  }
  Json train(const std::vector<std::string>& environment = {}) {
    return json_of({"train", "--model", "lenet5", "--image-size", "12", "--data", "synthetic:60", "--batch-size", "20",
                    "--no-eval", "--epochs", "2", "--devices", "cuda:0"},
                   environment);
  }
  std::string state(const Json& run) { return run["cuda_graphs"]["state"].get<std::string>(); }
  std::vector<double> losses(const Json& run) {
    std::vector<double> values;
    for (const Json& epoch : run["epochs"]) values.push_back(epoch["train_loss"].get<double>());
    EXPECT_EQ(values.size(), 2U);
    return values;
  }
  int64_t notes() {
    std::error_code missing;
    const std::filesystem::directory_iterator files(cache_.path() / "vitrine", missing);
    return missing ? 0 : std::distance(std::filesystem::begin(files), std::filesystem::end(files));
  }

  TempFolder cache_;
};

TEST_F(GpuProbe, IsNotedOncePassed) {
  const Json first = train();
  EXPECT_EQ(state(first).substr(0, 26), "after two steps of a shape");
  EXPECT_EQ(notes(), 1);
  // What has passed is not tried again, so that training finds the failure.
  const Json second = train({"VITRINE_STANDIN_FAIL_CAPTURE=5"});
  expect_contains(state(second), "off since step 3: a step could not be captured as a CUDA graph: ");
  EXPECT_EQ(second["cuda_graphs"]["issued_failed"], 4);
  EXPECT_EQ(losses(second), losses(first));
}

TEST_F(GpuProbe, TurnsOffWhatFails) {
  const Json failed = train({"VITRINE_STANDIN_FAIL_CAPTURE=5"});
  expect_contains(state(failed), "off: the probe of cuda:0 failed: ");
  EXPECT_EQ(notes(), 0);
  const Json info = json_of({"info"}, {"VITRINE_STANDIN_FAIL_CAPTURE=5"});
  expect_contains(info["cuda"]["features"]["VITRINE_CUDA_GRAPHS"], "the probe of cuda:0 failed: ");
}

TEST_F(GpuProbe, SafeModeTrainsWithTheSameBits) {
  const Json usual = train(), safe = train({"VITRINE_CUDA_SAFE=1"});
  EXPECT_EQ(state(safe), "off: VITRINE_CUDA_SAFE is 1");
  EXPECT_EQ(losses(safe), losses(usual));
}

}  // namespace
}  // namespace vitrine::test
