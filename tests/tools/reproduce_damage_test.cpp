// SPDX-License-Identifier: Apache-2.0
// vitrine reproduce with damaged or missing files.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/reproduce_runs.h"

namespace vitrine::test {
namespace {

TEST_F(Reproduce, SkipsADamagedEpochAndTrainsADamagedLastOneAgain) {
  const Arguments command = tiny() + kSingle + out("runs") + Arguments{"--epochs", "2"};
  const std::string folder = path("runs") + "/single-fp32";
  const Json whole = json_of(command)["runs"][0];
  const auto damage = [&](const std::string& checkpoint) {
    // The saved epochs are still to be evaluated.
    Json result = Json::parse(content(folder + "/result.json"));
    result["state"] = "trained";
    std::ofstream(folder + "/result.json") << result.dump();
    std::ofstream(folder + "/checkpoints/" + checkpoint + "/model.safetensors", std::ios::app) << "x";
  };
  damage("step-00000010");
  const ChildResult skipped = run_vitrine(command + Arguments{"--json"});
  EXPECT_EQ(skipped.exit_code, 0) << skipped.error;
  EXPECT_NE(skipped.error.find("warning: single fp32: step-00000010 is not evaluated"), std::string::npos)
      << skipped.error;
  const Json run = Json::parse(skipped.output)["runs"][0];
  ASSERT_EQ(run["saved_epochs"].size(), 1U);
  EXPECT_EQ(run["saved_epochs"][0], whole["saved_epochs"][1]);

  fs::remove_all(path("runs"));
  ASSERT_EQ(run_vitrine(command).exit_code, 0);
  damage("step-00000020");
  const Json failed = json_of(command, 1)["runs"][0];
  EXPECT_EQ(failed["state"], "failed");
  EXPECT_NE(failed["failure"].get<std::string>().find("trains this epoch again"), std::string::npos)
      << failed["failure"];
  const Json again = json_of(command)["runs"][0];
  EXPECT_EQ(again["state"], "complete");
  EXPECT_EQ(again["saved_epochs"], whole["saved_epochs"]);
}

TEST_F(Reproduce, TrainsAgainWhatNoCheckpointHas) {
  const Arguments command = tiny() + kSingle + out("runs") + Arguments{"--epochs", "2"};
  const std::string folder = path("runs") + "/single-fp32";
  const Json whole = json_of(command)["runs"][0];
  for (const std::string missing : {"/checkpoints/step-00000020", "/checkpoints"}) {
    SCOPED_TRACE(missing);
    // The saved epochs are still to be evaluated.
    Json result = Json::parse(content(folder + "/result.json"));
    result["state"] = "trained";
    std::ofstream(folder + "/result.json") << result.dump();
    fs::remove_all(folder + missing);
    const Json failed = json_of(command, 1)["runs"][0];
    EXPECT_EQ(failed["state"], "failed");
    EXPECT_NE(failed["failure"].get<std::string>().find("the checkpoint of the last epoch, 2, is missing"),
              std::string::npos)
        << failed["failure"];
    const Json again = json_of(command)["runs"][0];
    EXPECT_EQ(again["state"], "complete");
    EXPECT_EQ(again["saved_epochs"], whole["saved_epochs"]);
  }
}

TEST_F(Reproduce, DamagedSettingsOrResultsFailTheirRunAloneAndADamagedLogNone) {
  const Arguments command = tiny() + kTwoDevices + Arguments{"--modes", "single,ddp", "--precisions", "fp32"} +
                            out("runs") + Arguments{"--epochs", "2"};
  const Json whole = json_of(command);
  for (const char* name : {"settings.json", "result.json"}) {
    SCOPED_TRACE(name);
    const std::string file = path("runs") + "/single-fp32/" + name;
    const std::string before = content(file);
    std::ofstream(file) << "{";
    const Json json = json_of(command, 1);
    EXPECT_EQ(json["runs"][0]["state"], "failed");
    EXPECT_NE(json["runs"][0]["failure"].get<std::string>().find("remove this file"), std::string::npos)
        << json["runs"][0]["failure"];
    Json other = json["runs"][1], other_before = whole["runs"][1];
    EXPECT_TRUE(other["speed_up"].is_null()) << "there is no single device to compare with";
    other.erase("speed_up");
    other_before.erase("speed_up");
    EXPECT_EQ(other, other_before);
    fs::remove(file);
    EXPECT_EQ(json_of(command)["runs"][0]["saved_epochs"], whole["runs"][0]["saved_epochs"]);
    std::ofstream(file) << before;
  }

  // The first epoch's row.
  const std::string log = path("runs") + "/ddp-fp32/log.jsonl";
  std::string rows = content(log);
  rows.replace(rows.find("{\"kind\":\"epoch\""), 3, "???");
  std::ofstream(log) << rows;
  const ChildResult damaged = run_vitrine(command + Arguments{"--json"});
  EXPECT_EQ(damaged.exit_code, 0) << damaged.error;
  EXPECT_NE(damaged.error.find("ddp-fp32/log.jsonl: line 12 cannot be read"), std::string::npos) << damaged.error;
  const Json run = Json::parse(damaged.output)["runs"][1];
  EXPECT_EQ(run["state"], "complete");
  EXPECT_TRUE(run["seconds"].is_null());
  ASSERT_EQ(run["epochs"].size(), 1U);
  EXPECT_EQ(run["epochs"][0]["steps"], 10);
}

TEST_F(Reproduce, ContinuesWithADamagedFirstRowOfTheLog) {
  const Arguments command = tiny() + kSingle + out("runs") + Arguments{"--epochs", "2"};
  const std::string folder = path("runs") + "/single-fp32";
  const Json whole = json_of(command)["runs"][0];
  Json result = Json::parse(content(folder + "/result.json"));
  result["state"] = "interrupted";
  std::ofstream(folder + "/result.json") << result.dump();
  fs::remove_all(folder + "/checkpoints/step-00000020");
  std::string rows = content(folder + "/log.jsonl");
  rows[3] = '\0';
  std::ofstream(folder + "/log.jsonl") << rows;
  const Json run = json_of(command)["runs"][0];
  EXPECT_EQ(run["state"], "complete");
  EXPECT_EQ(run["saved_epochs"], whole["saved_epochs"]);
  EXPECT_FALSE(run["seconds"].is_null()) << "the rows of epochs are whole";
}

// The name of the folder and the damaged files have bytes that are not UTF-8.
TEST_F(Reproduce, FilesThatCannotBeReadFailTheirRunAndTheOutputIsWholeJson) {
  const Arguments command = tiny() + kSingle + out("runs\xa4") + Arguments{"--epochs", "1"};
  EXPECT_EQ(json_of(command)["runs"][0]["state"], "complete");
  for (const char* name : {"settings.json", "result.json"}) {
    SCOPED_TRACE(name);
    const std::string file = path("runs\xa4") + "/single-fp32/" + name;
    const std::string before = content(file);
    std::string damaged = before;
    damaged[damaged.size() / 2] = '\xa4';
    std::ofstream(file) << damaged;
    const Json quoted = json_of(command, 1)["runs"][0];
    EXPECT_EQ(quoted["state"], "failed");
    EXPECT_NE(quoted["failure"].get<std::string>().find("it is damaged"), std::string::npos) << quoted["failure"];
    EXPECT_NE(quoted["failure"].get<std::string>().find("\\xa4'"), std::string::npos) << quoted["failure"];
    fs::remove(file);
    fs::create_directory(file);
    const Json unread = json_of(command, 1)["runs"][0];
    EXPECT_EQ(unread["state"], "failed");
    EXPECT_NE(unread["failure"].get<std::string>().find("it cannot be read"), std::string::npos) << unread["failure"];
    fs::remove(file);
    std::ofstream(file) << before;
  }
}

}  // namespace
}  // namespace vitrine::test
