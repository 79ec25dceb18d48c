// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <filesystem>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/expect_contains.h"
#include "tests/support/temp_folder.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test {
namespace {

std::vector<std::string> endless_training(const std::vector<std::string>& more) {
  std::vector<std::string> arguments =
      words("train --model mlp --data synthetic:200 --devices cpu:0-1 --threads-per-device 1 --epochs 1000000000");
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

class Interrupt : public ::testing::TestWithParam<int> {};

TEST_P(Interrupt, EndsCleanlyWithTheResultsSoFar) {
  const TempFolder folder;
  const std::string weights = folder.path("w.safetensors");
  ChildProcess child(vitrine_command(endless_training(words("--json --save {}", weights))));
  ASSERT_TRUE(child.wait_for("epoch 2/"));
  child.send_signal(GetParam());
  const ChildResult result = child.wait();
  EXPECT_EQ(result.exit_code, GetParam() == SIGTERM ? 143 : 130) << result.error;
  const nlohmann::json json = nlohmann::json::parse(result.output);
  EXPECT_TRUE(json["interrupted"].get<bool>());
  ASSERT_GE(json["epochs"].size(), 2U);
  EXPECT_FALSE(json["epochs"][0]["test_loss"].is_null());
  EXPECT_GE(json["step_losses"].size(), 8U);
  EXPECT_EQ(json["devices"].size(), 2U);
  ASSERT_TRUE(std::filesystem::exists(weights));
  EXPECT_EQ(run_vitrine(words("eval --model mlp --data synthetic:200 --weights {}", weights)).exit_code, 0);
}

INSTANTIATE_TEST_SUITE_P(Signals, Interrupt, ::testing::Values(SIGINT, SIGTERM));

TEST(InterruptText, StillPrintsTheSummary) {
  ChildProcess child(vitrine_command(endless_training({})));
  ASSERT_TRUE(child.wait_for("epoch 1/"));
  child.send_signal(SIGINT);
  const ChildResult result = child.wait();
  EXPECT_EQ(result.exit_code, 130);
  expect_contains(result.output, " peaks at ", "waits longest");
  expect_contains(result.error, "stopping after the current step");
}

// A launcher's thread may block signals, and a shell's script ignores Ctrl-C for what it starts with `&`.
TEST(InterruptOfAParent, BlocksNothingAndIgnoresCtrlC) {
  std::vector<std::string> command = words("env --block-signal=TERM --ignore-signal=INT");
  const std::vector<std::string> training = vitrine_command(endless_training(words("--no-eval")));
  command.insert(command.end(), training.begin(), training.end());
  ChildProcess child(command);
  ASSERT_TRUE(child.wait_for("epoch 1/"));
  child.send_signal(SIGINT);
  ASSERT_TRUE(child.wait_for("epoch 2/"));
  child.send_signal(SIGTERM);
  EXPECT_EQ(child.wait().exit_code, 143);
}

// Nothing fits, so that the search takes minutes. The warning comes before it.
TEST_P(Interrupt, EndsASearchForAPlan) {
  ChildProcess child(
      vitrine_command(words("plan --model resnet50 --data synthetic:100 --batch-size 4000 --devices cpu:0-3 "
                            "--device-memory 100MiB --split auto")));
  ASSERT_TRUE(child.wait_for("warning: --batch-size 4000"));
  child.send_signal(GetParam());
  const ChildResult result = child.wait();
  EXPECT_EQ(result.exit_code, GetParam() == SIGTERM ? 143 : 130) << result.error;
  expect_contains(result.error, "stopping after the current plan; ", "interrupted while searching");
  EXPECT_EQ(result.output, "");
}

}  // namespace
}  // namespace vitrine::test
