// SPDX-License-Identifier: Apache-2.0
// Exact mode and `vitrine verify` as a user calls them.
#include <fstream>
#include <functional>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/data/temp_folder.h"
#include "tests/support/expect_contains.h"
#include "tests/support/text.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test {
namespace {

using Json = nlohmann::json;

const std::string kJob = "--model lenet5 --image-size 12 --data synthetic:60 --batch-size 20 --no-eval --steps 4 ";

ChildResult verify(const std::string& a, const std::string& b) { return run_vitrine({"verify", "--a", a, "--b", b}); }

TEST(Verify, ExactRunsAreEqualOnOtherDevices) {
  const ChildResult result =
      verify(kJob + "--exact --devices cpu:0", kJob + "--exact --devices cpu:0-2 --mode dp --accumulate 2");
  EXPECT_EQ(result.exit_code, 0) << result.error;
  expect_contains(result.output, "equal after each of 4 steps");
}

TEST(Verify, NamesTheFirstStepAndTensorOfOrdinaryRunsThatDiffer) {
  const ChildResult result = verify(kJob + "--devices cpu:0", kJob + "--devices cpu:0-2");
  EXPECT_EQ(result.exit_code, 1);
  // Losses are equal in the first step, and gradients are added in another order, from the last layer on.
  expect_contains(result.output, "differ after step 1, first in gradients.", "(backward, layer ",
                  "the gradients differ by about ");
  const Json found = Json::parse(
      run_vitrine({"verify", "--a", kJob + "--devices cpu:0", "--b", kJob + "--devices cpu:0-2", "--json"}).output);
  const auto rounding = found["first_difference"]["gradients"].get<double>();
  EXPECT_TRUE(rounding > 1e-9 && rounding < 1e-5) << rounding;
}

TEST(Verify, SaysHowLargeTheDifferenceIs) {
  const std::string run = kJob + "--devices cpu:0 --steps 1 --optimizer sgd --lr ";
  const Json found = Json::parse(run_vitrine({"verify", "--a", run + "0.1", "--b", run + "0.11", "--json"}).output);
  EXPECT_EQ(found["first_difference"]["gradients"], 0.0);
  EXPECT_GT(found["first_difference"]["parameters"].get<double>(), 1e-4);
}

/// Two files that differ as the changes say.
Json difference(const std::function<void(Json&)>& change) {
  const TempFolder folder;
  Json line = {{"step", 3},
               {"state_hash", "0"},
               {"leaves", {"1", "2"}},
               {"gradients", {{"fc.weight", "3"}, {"conv.weight", "4"}}},
               {"tensors", {{"parameters.conv.weight", "5"}, {"buffers.bn1.running_mean", "6"}}}};
  const std::string a = (folder.path() / "a.jsonl").string(), b = (folder.path() / "b.jsonl").string();
  std::ofstream(a) << line.dump() << "\n";
  line["state_hash"] = "9";
  change(line);
  std::ofstream(b) << line.dump() << "\n";
  const ChildResult result = run_vitrine({"verify", "--a", a, "--b", b, "--json"});
  EXPECT_EQ(result.exit_code, 1) << result.error;
  Json json = Json::parse(result.output);
  EXPECT_EQ(json["equal"], false);
  return json["first_difference"];
}

TEST(Verify, NamesPhaseLayerTensorAndLeaf) {
  Json found = difference([](Json& line) {
    line["leaves"][1] = "x";
    line["gradients"]["conv.weight"] = "x";
  });
  EXPECT_EQ(found["phase"], "forward");
  EXPECT_EQ(found["tensor"], "loss");
  EXPECT_EQ(found["leaf"], 1);
  found = difference([](Json& line) {
    line["tensors"]["buffers.bn1.running_mean"] = "x";
    line["tensors"]["parameters.conv.weight"] = "x";
  });
  EXPECT_EQ(found["phase"], "forward");
  EXPECT_EQ(found["layer"], "bn1");
  EXPECT_EQ(found["leaf"], Json());
  found = difference([](Json& line) {
    line["gradients"]["conv.weight"] = "x";
    line["tensors"]["parameters.conv.weight"] = "x";
  });
  EXPECT_EQ(found["phase"], "backward");
  EXPECT_EQ(found["layer"], "conv");
  EXPECT_EQ(found["tensor"], "gradients.conv.weight");
  found = difference([](Json& line) { line["tensors"]["parameters.conv.weight"] = "x"; });
  EXPECT_EQ(found["phase"], "update");
  EXPECT_EQ(found["step"], 3);
  EXPECT_EQ(found["different_tensors"], 1);
}

TEST(Verify, RefusesAFileThatHasNoHashes) {
  const TempFolder folder;
  const std::string path = (folder.path() / "hashes.jsonl").string();
  const std::string needed = R"("step": 1, "state_hash": "0", "tensors": {})";
  for (const std::string& line :
       {std::string(R"({"step": 1})"), std::string("[]"),
        std::string(R"({"step": "1", "state_hash": "0", "tensors": {}})"),
        std::string(R"({"step": 1, "state_hash": null, "tensors": {}})"), "{" + needed + R"(, "leaves": 3})",
        "{" + needed + R"(, "leaves": {"0": 1}})", "{" + needed + R"(, "gradients": 3})"}) {
    std::ofstream(path) << line << "\n";
    const ChildResult result = verify(path, path);
    EXPECT_EQ(result.exit_code, 1) << line;
    expect_contains(result.error, "line 1 has no step, state_hash and tensors");
  }
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/dev/zero", path);
  expect_contains(verify(path, path).error, "it is a device or pipe");
}

/// What a shell would run or divide in the name of the temporary folder, and what other users must not see there.
TEST(Verify, WritesToANewFolderOfThisUserAlone) {
  const TempFolder folder;
  const std::string parent = folder.path("a b'c;$(touch ran)`touch ran`\"*");
  std::filesystem::create_directory(parent);
  const std::string run = "vitrine train " + kJob + "--devices cpu:0";
  const std::string show = "stat -c '%a %F' \"$TMPDIR\"/* >&2; ";
  const auto verify_in = [&](const std::string& tmpdir, const std::string& a) {
    return ChildProcess(vitrine_command({"verify", "--a", a, "--b", run}), ChildProcess::Streams::pipes,
                        {"TMPDIR=" + tmpdir, "PATH=/usr/bin:/bin"})
        .wait();
  };
  const ChildResult result = verify_in(parent, show + run);
  EXPECT_EQ(result.exit_code, 0) << result.error;
  expect_contains(result.error, "700 directory\n");
  EXPECT_TRUE(std::filesystem::is_empty(parent));
  EXPECT_FALSE(std::filesystem::exists("ran"));
  const ChildResult missing = verify_in(folder.path("none"), run);
  EXPECT_EQ(missing.exit_code, 1);
  expect_contains(missing.error, "no temporary folder can be made", "TMPDIR");
}

TEST(Exact, ACheckpointContinuesOnOtherDevicesWithTheSameBits) {
  const TempFolder folder;
  const std::string whole = (folder.path() / "whole.jsonl").string(), rest = (folder.path() / "rest.jsonl").string(),
                    run = (folder.path() / "run").string();
  const auto train = [&](const Arguments& arguments) {
    const ChildResult result =
        run_vitrine(with({"train", "--model", "lenet5", "--image-size", "12", "--data", "synthetic:60", "--batch-size",
                          "20", "--no-eval", "--exact", "--json"},
                         arguments));
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return Json::parse(result.output)["state_hash"].get<std::string>();
  };
  const std::string expected = train({"--steps", "6", "--devices", "cpu:0-1", "--hashes", whole});
  train({"--steps", "4", "--devices", "cpu:0", "--checkpoint-dir", run});
  EXPECT_EQ(train({"--steps", "6", "--devices", "cpu:0-2", "--mode", "criterion", "--resume", run, "--hashes", rest}),
            expected);
  const ChildResult result = verify(whole, rest);
  EXPECT_EQ(result.exit_code, 0) << result.error;
  expect_contains(result.output, "equal after each of 2 steps");
}

}  // namespace
}  // namespace vitrine::test
