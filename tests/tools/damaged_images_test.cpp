// SPDX-License-Identifier: Apache-2.0
// Images that cannot be decoded: without --skip-damaged one ends the run and costs nothing else.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/expect_contains.h"
#include "tests/support/temp_folder.h"
#include "tests/tools/image_folder.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class DamagedImages : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path(name); }
  Arguments train(const Arguments& more) const {
    return with(words("train --model lenet5 --data image-folder:{} --image-size 12 --batch-size 100 --devices cpu:0 "
                      "--threads-per-device 1 --no-shuffle --json",
                      path("images")),
                more);
  }
  /// A run that ends at a damaged file. Returns its JSON.
  static Json failed(const Arguments& arguments, const std::string& file) {
    const ChildResult result = run_vitrine(arguments);
    EXPECT_EQ(result.exit_code, 1);
    expect_contains(result.error, file + ": expected a complete PNG file, found a damaged one",
                    "--skip-damaged goes on without damaged images");
    return Json::parse(result.output);
  }

  const TempFolder folder_;
  // More images than the program looks at before it begins; it does not look at those that are damaged.
  const SmallImages images_{path("images"), 300};
};

TEST_F(DamagedImages, ATestImageEndsTheRunAfterAllIsSaved) {
  const std::string bad = images_.damage("val", 596);
  const Json json =
      failed(train(words("--epochs 2 --save {} --log {} --checkpoint-dir {} --hashes {} --trace {}",
                         path("w.safetensors"), path("log.csv"), path("run"), path("h.jsonl"), path("t.json"))),
             bad);
  expect_contains(json["failure"].get<std::string>(), bad);
  EXPECT_FALSE(json["interrupted"].get<bool>());
  ASSERT_EQ(json["step_losses"].size(), 6U) << "one epoch";
  EXPECT_EQ(json["checkpoints"]["saved"], 1);
  const auto lines = [&](const char* name) {
    const std::string text = content(path(name));
    return std::count(text.begin(), text.end(), '\n');
  };
  EXPECT_EQ(lines("log.csv"), 1 + 6 + 1);
  EXPECT_EQ(lines("h.jsonl"), 6);
  EXPECT_TRUE(fs::exists(path("t.json")));
  // With the image repaired, the run continues as if it had not been damaged.
  images_.repair("val", 596);
  const ChildResult again = run_vitrine(train(words("--epochs 2 --resume auto --checkpoint-dir {}", path("run"))));
  ASSERT_EQ(again.exit_code, 0) << again.error;
  const Json resumed = Json::parse(again.output);
  EXPECT_EQ(resumed["first_step"], 6);
  EXPECT_EQ(resumed["step_losses"].size(), 6U);
  // The weights are those after the last step.
  const ChildResult eval = run_vitrine(words("eval --model lenet5 --data image-folder:{} --image-size 12 --weights {}",
                                             path("images"), path("w.safetensors")));
  EXPECT_EQ(eval.exit_code, 0) << eval.error;
}

TEST_F(DamagedImages, ATrainingImageEndsTheRunAfterTheStepBefore) {
  const std::string bad = images_.damage("train", 355);
  const Json json = failed(
      train(words("--no-eval --epochs 2 --checkpoint-dir {} --save {}", path("run"), path("w.safetensors"))), bad);
  EXPECT_EQ(json["step_losses"].size(), 3U);
  EXPECT_TRUE(fs::exists(path("w.safetensors")));
  images_.repair("train", 355);
  // The same bits as those of a run in which the image was never damaged.
  const Arguments whole = words("--no-eval --epochs 2 --exact");
  const ChildResult uninterrupted = run_vitrine(train(whole));
  ASSERT_EQ(uninterrupted.exit_code, 0) << uninterrupted.error;
  images_.damage("train", 355);
  failed(train(with(whole, words("--checkpoint-dir {}", path("exact")))), bad);
  images_.repair("train", 355);
  const ChildResult resumed =
      run_vitrine(train(with(whole, words("--resume auto --checkpoint-dir {}", path("exact")))));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.error;
  EXPECT_EQ(Json::parse(resumed.output)["state_hash"], Json::parse(uninterrupted.output)["state_hash"]);
}

TEST_F(DamagedImages, AreSkippedCountedAndListedOnRequest) {
  const std::string of_training = images_.damage("train", 355), of_test = images_.damage("val", 31);
  std::ofstream(images_.path("val", 307)) << "GIF89a";
  const Arguments skipping = words("--skip-damaged --save {}", path("w.safetensors"));
  const ChildResult result = run_vitrine(train(skipping));
  ASSERT_EQ(result.exit_code, 0) << result.error;
  const Json json = Json::parse(result.output);
  ASSERT_EQ(json["skipped"].size(), 3U) << json["skipped"];
  std::string all;
  for (const Json& text : json["skipped"]) all += text.get<std::string>() + "\n";
  expect_contains(all, of_training, of_test, "b/0007.png: expected a JPEG or PNG file, found a GIF image");
  EXPECT_TRUE(json["failure"].is_null());
  // Accuracies are shares of the 598 images that count.
  const double correct = json["epochs"][0]["test_accuracy"].get<double>() * 598;
  EXPECT_NEAR(correct, std::round(correct), 1e-9);

  const Arguments eval = words("eval --model lenet5 --data image-folder:{} --image-size 12 --weights {}",
                               path("images"), path("w.safetensors"));
  EXPECT_EQ(run_vitrine(eval).exit_code, 1);
  const ChildResult text = run_vitrine(with(eval, words("--skip-damaged --confusion --save-logits {}", path("l.npy"))));
  ASSERT_EQ(text.exit_code, 0) << text.error;
  expect_contains(text.output, "598 samples", "2 damaged images were skipped:", of_test);
  EXPECT_EQ(fs::file_size(path("l.npy")), 128 + 600 * 2 * 4);
  EXPECT_EQ(Json::parse(run_vitrine(with(eval, words("--skip-damaged --json"))).output)["skipped"].size(), 2U);
}

/// One normalizer: a damaged image changes a step as if it were not in the batch.
TEST_F(DamagedImages, LeaveTheMeanOverTheOthers) {
  const auto losses = [&](const Arguments& more) {
    const ChildResult result = run_vitrine(train(with(words("--no-eval --steps 3"), more)));
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return Json::parse(result.output)["step_losses"];
  };
  const Json whole = losses({});
  for (int i = 0; i < 50; ++i) images_.damage("train", i);
  const Json skipping = losses(words("--skip-damaged"));
  // All images of the first steps are equal, so their mean does not depend on how many there are.
  for (size_t step = 0; step < 3; ++step) EXPECT_NEAR(skipping[step].get<double>(), whole[step].get<double>(), 1e-5);
  EXPECT_EQ(losses(words("--skip-damaged --data-on-device on")), skipping);
}

/// --skip-damaged is for single images: it must not train on none.
TEST_F(DamagedImages, ABatchOfNothingElseEndsTheRun) {
  for (int i = 300; i < 600; ++i) images_.damage("train", i);
  const ChildResult result = run_vitrine(train(words("--skip-damaged --save {}", path("w.safetensors"))));
  EXPECT_EQ(result.exit_code, 1);
  expect_contains(result.error, "--skip-damaged: a training batch has no image that can be decoded");
  EXPECT_EQ(Json::parse(result.output)["step_losses"].size(), 3U);
  EXPECT_TRUE(fs::exists(path("w.safetensors")));
}

TEST_F(DamagedImages, WhatIsSeenBeforeTheRunNamesTheFlag) {
  const std::string bad = images_.damage("train", 0);  // the first that is looked at
  const ChildResult result = run_vitrine(train({}));
  EXPECT_EQ(result.exit_code, 1);
  expect_contains(result.error, bad, "--skip-damaged goes on without damaged images");
}

TEST_F(DamagedImages, WhereNoneCanBeThereTheFlagIsRefused) {
  const ChildResult result = run_vitrine(words("train --data synthetic:8 --skip-damaged"));
  EXPECT_EQ(result.exit_code, 2);
  expect_contains(result.error, "--skip-damaged: only an image-folder has files that are damaged one by one");
}

}  // namespace
}  // namespace vitrine::test
