// SPDX-License-Identifier: Apache-2.0
// vitrine train --autotune on the stand-ins: the plans are in the file, in the checkpoints and in the JSON, and are
// taken from there.
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/expect_contains.h"
#include "tests/support/temp_folder.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test {
namespace {

using Json = nlohmann::ordered_json;

class AutotuneProgram : public ::testing::Test {
 protected:
  std::string path(const char* name) const { return folder_.path(name); }
  static Arguments train(const Arguments& more) {
    return with(words("train --model lenet5 --image-size 12 --data synthetic:60 --batch-size 20 --no-eval"), more);
  }
  static ChildResult success(const Arguments& arguments) {
    ChildResult result = run_vitrine(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return result;
  }

 private:
  TempFolder folder_;
};

TEST_F(AutotuneProgram, WritesTheFileAndTakesItAgain) {
  const std::string file = path("plans.json");
  const Arguments run = train(words("--devices cuda:0 --steps 2 --json --autotune {}", file));
  const ChildResult first = success(run);
  expect_contains(first.error, "--autotune: ");
  expect_lacks(first.error, "with stored plans");
  const std::string written = content(file);
  const Json plans = Json::parse(written);
  EXPECT_FALSE(plans["plans"].empty());
  EXPECT_EQ(Json::parse(first.output)["tuned_plans"], plans);
  const ChildResult second = success(run);
  expect_contains(second.error, "--autotune: 0 kinds of operations timed",
                  std::to_string(plans["plans"].size()) + " with stored plans");
  expect_lacks(second.error, "warning: --autotune");
  EXPECT_EQ(Json::parse(second.output)["tuned_plans"], plans);
  EXPECT_EQ(content(file), written);
  Json other = plans;
  other["device"] = "Another GPU";
  std::ofstream(file) << other.dump();
  const ChildResult third = success(run);
  expect_contains(
      third.error,
      "warning: --autotune: the stored plans were timed under other conditions (the GPU Another GPU, now Imitated GPU");
  EXPECT_EQ(Json::parse(content(file))["device"], plans["device"]);
}

TEST_F(AutotuneProgram, AResumedRunTakesThePlansOfItsCheckpoint) {
  const Arguments run = train(
      words("--devices cuda:0 --json --autotune --checkpoint-dir {} --checkpoint-every 1 --resume auto", path("run")));
  const Json first = Json::parse(success(with(run, words("--steps 2"))).output);
  const ChildResult resumed = success(with(run, words("--steps 4")));
  expect_contains(resumed.error, "--autotune: 0 kinds of operations timed");
  expect_lacks(resumed.error, "warning: --autotune");
  const Json second = Json::parse(resumed.output);
  EXPECT_FALSE(second["resumed_from"].is_null());
  EXPECT_EQ(second["tuned_plans"], first["tuned_plans"]);
  const ChildResult without =
      success(train(words("--devices cuda:0 --steps 5 --checkpoint-dir {} --resume auto", path("run"))));
  expect_contains(without.error, "--autotune is off, in the checkpoint on: results differ by rounding");
}

TEST_F(AutotuneProgram, ADamagedFileAndCpuDevicesAreRefused) {
  const std::string file = path("plans.json");
  std::ofstream(file) << "{}";
  const ChildResult damaged = run_vitrine(train(words("--devices cuda:0 --steps 2 --autotune {}", file)));
  EXPECT_EQ(damaged.exit_code, 1);
  expect_contains(damaged.error, "--autotune " + file);
  EXPECT_EQ(content(file), "{}");
  const ChildResult cpu = run_vitrine(train(words("--devices cpu:0 --steps 2 --autotune")));
  EXPECT_NE(cpu.exit_code, 0);
  expect_contains(cpu.error, "--autotune has nothing to time on CPU devices");
}

}  // namespace
}  // namespace vitrine::test
