// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/expect_contains.h"
#include "tests/tools/run_json.h"

namespace vitrine::test {
namespace {

using Json = nlohmann::json;

constexpr int64_t kImages = 215, kImageBytes = kImages * 32 * 32 * 3;
const Arguments kJob =
    words("--model small-cnn --data synthetic:215 --threads-per-device 1 --batch-size 32 --workspace 1MiB");

TEST(DataOnDevice, TrainsWithTheSameBitsAndThePlannedBytes) {
  for (const char* const mode : {"ddp", "dp"}) {
    const Arguments training = with(
        words("train --devices cpu:0-1 --epochs 2 --augment flip,crop:4,cutout:6 --check-order --mode {}", mode), kJob);
    const Json host = json_of(training);
    const Json device = json_of(with(training, words("--data-on-device on")));
    ASSERT_EQ(host["step_losses"].size(), 14U);
    EXPECT_EQ(device["step_losses"], host["step_losses"]);
    EXPECT_EQ(device["epochs"][1]["test_loss"], host["epochs"][1]["test_loss"]);
    EXPECT_EQ(host["config"]["data_on_device"], false);
    EXPECT_EQ(device["config"]["data_on_device"], true);
    for (size_t d = 0; d < 2; ++d) {
      const Json& found = device["devices"][d];
      const int64_t bytes = found["peak_bytes_by_category"]["dataset"];
      EXPECT_EQ(found["peak_bytes"], found["planned_peak_bytes"]);
      EXPECT_EQ(bytes > 0, d == 0 || mode == std::string("ddp"));
      if (bytes > 0) {
        EXPECT_GE(bytes, kImageBytes);
      }
      EXPECT_EQ(host["devices"][d]["peak_bytes_by_category"]["dataset"], 0);
    }
  }
}

TEST(DataOnDevice, AMissingByteIsFoundByThePlanWithTheRemedy) {
  const Arguments run = with(words("--devices cpu:0 --steps 2 --no-eval"), kJob);
  const int64_t without = json_of(with({"plan"}, run))["devices"][0]["peak_bytes"];
  const int64_t needed = json_of(with(with({"plan"}, run), words("--data-on-device on")))["devices"][0]["peak_bytes"];
  EXPECT_GE(needed, without + kImageBytes);
  const auto train = [&](int64_t capacity) {
    return run_vitrine(
        with(with({"train"}, run), words("--data-on-device on --device-memory {}", std::to_string(capacity))));
  };
  EXPECT_EQ(train(needed).exit_code, 0);
  const ChildResult less = train(needed - 1);
  EXPECT_EQ(less.exit_code, 1);
  expect_contains(less.error, "out of memory", "dataset 6");  // 645.0 KiB
  expect_contains(less.error, "--data-on-device off");
}

TEST(DataOnDevice, IsRefusedWithImagesThatTheHostPrepares) {
  const ChildResult result = run_vitrine(with(with({"train"}, kJob), words("--data-on-device on --preprocess host")));
  EXPECT_EQ(result.exit_code, 2);
  expect_contains(result.error, "--preprocess host");
  const ChildResult wrong = run_vitrine(words("train --data-on-device auto"));
  EXPECT_EQ(wrong.exit_code, 2);
  expect_contains(wrong.error, "--data-on-device");
}

}  // namespace
}  // namespace vitrine::test
