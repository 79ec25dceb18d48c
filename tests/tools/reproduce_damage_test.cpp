// SPDX-License-Identifier: Apache-2.0
// vitrine reproduce with damaged or missing files.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/expect_contains.h"
#include "tests/tools/reproduce_runs.h"

namespace vitrine::test {
namespace {

TEST_F(Reproduce, ADamagedResultOrLogFailsItsRunAlone) {
  const Arguments command =
      tiny() + kTwoDevices + words("--modes single,ddp --precisions fp32") + out("runs") + words("--epochs 2");
  const Json whole = json_of(command);
  const std::string folder = path("runs") + "/single-fp32/";
  const std::string result = content(folder + "result.json"), log = content(folder + "log.jsonl");
  const size_t epoch = log.find("{\"kind\":\"epoch\"");
  ASSERT_NE(epoch, std::string::npos);
  std::string damaged_log = log;
  damaged_log.replace(epoch, 3, "???");
  struct Damage {
    const char *file, *before;
    std::string text;
    const char* reason;
  };
  const std::vector<Damage> damages = {
      {"result.json", result.c_str(), "{", "result.json: it is damaged"},
      {"result.json", result.c_str(), "{}", "result.json: it is damaged"},
      {"result.json", result.c_str(), "\"\xa4", "\\xa4'"},
      {"result.json", result.c_str(), std::string(100000, '['), "nested deeper than 64 levels"},
      {"log.jsonl", log.c_str(), damaged_log, "log.jsonl, line 12: it is damaged"},
      {"log.jsonl", log.c_str(), std::string(100000, '[') + "\n", "log.jsonl, line 1: it is nested deeper"},
      {"log.jsonl", log.c_str(), log.substr(0, epoch), "log.jsonl: it has 0 of 2 epochs"},
  };
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.reason);
    std::ofstream(folder + damage.file) << damage.text;
    const Json json = json_of(command, 1);
    EXPECT_EQ(json["runs"][0]["state"], "failed");
    const std::string failure = json["runs"][0]["failure"].get<std::string>();
    expect_contains(failure, damage.reason, "remove the run's folder to make the run again");
    EXPECT_EQ(json["runs"][1], whole["runs"][1]);
    std::ofstream(folder + damage.file) << damage.before;
  }
  fs::remove(folder + "result.json");
  fs::create_directory(folder + "result.json");
  expect_contains(json_of(command, 1)["runs"][0]["failure"].get<std::string>(),
                  "it is a folder, expected a regular file");
  fs::remove_all(folder);
  EXPECT_EQ(json_of(command)["runs"][0]["test_accuracy"], whole["runs"][0]["test_accuracy"]);
}

// A process that is killed may leave half a row, and a checkpoint that is not whole. The name of the folder has bytes
// that are not UTF-8.
TEST_F(Reproduce, ContinuesFromTheNewestWholeCheckpoint) {
  const Arguments command = tiny() + kSingle + out("runs\xa4") + words("--epochs 3");
  const std::string folder = path("runs\xa4") + "/single-fp32";
  const Json whole = json_of(command)["runs"][0];
  EXPECT_EQ(whole["state"], "complete");
  Json result = Json::parse(content(folder + "/result.json"));
  result["state"] = "interrupted";
  std::ofstream(folder + "/result.json") << result;
  std::ofstream(folder + "/log.jsonl", std::ios::app) << "{\"kind\":\"st";
  std::ofstream(folder + "/checkpoints/step-00000030/model.safetensors", std::ios::app) << "x";
  const ChildResult continued = run_vitrine(command + words("--json"));
  expect_contains(continued.error, "step-00000020: step 20");
  const Json run = Json::parse(continued.output)["runs"][0];
  EXPECT_EQ(run["state"], "complete");
  ASSERT_EQ(run["epochs"].size(), 3U);
  EXPECT_EQ(run["epochs"][2]["train_loss"], whole["epochs"][2]["train_loss"]);
  EXPECT_EQ(run["test_accuracy"], whole["test_accuracy"]);
}

}  // namespace
}  // namespace vitrine::test
