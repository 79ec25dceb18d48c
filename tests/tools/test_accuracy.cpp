// SPDX-License-Identifier: Apache-2.0
// What a user would call "it trains": accuracy on real and on generated images, through the program.
#include <filesystem>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/test_devices.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test {
namespace {

/// Where the real images are, or nothing.
std::filesystem::path fashion_mnist() {
  auto folder = std::filesystem::path(VITRINE_SOURCE_DIR) / ".." / "shared" / "data" / "fashion-mnist";
  return std::filesystem::exists(folder) ? folder : std::filesystem::path();
}

double accuracy_after(const std::vector<std::string>& arguments) {
  std::vector<std::string> all{"train", "--json", "--model", "small-cnn", "--devices"};
  if (on_gpu()) {
    all.push_back("cuda:0,cuda:0");
  } else {
    all.insert(all.end(), {"cpu:0-1", "--threads-per-device", "1"});
  }
  all.insert(all.end(), arguments.begin(), arguments.end());
  const ChildResult result = run_vitrine(all);
  EXPECT_EQ(result.exit_code, 0) << result.error;
  if (result.exit_code != 0) return 0;
  return nlohmann::json::parse(result.output)["epochs"].back()["test_accuracy"].get<double>();
}

TEST(Accuracy, GeneratedImagesAreLearnt) {
  EXPECT_GT(accuracy_after({"--data", "synthetic:10000", "--epochs", "3", "--optimizer", "adam", "--lr", "2e-3"}), 0.95);
}

TEST(Accuracy, FashionMnistReachesNinetyPercent) {
  const auto folder = fashion_mnist();
  if (folder.empty()) GTEST_SKIP() << "Fashion-MNIST is not here";
  EXPECT_GE(accuracy_after({"--data", "fashion-mnist:" + folder.string(), "--epochs", "5", "--optimizer", "adam", "--lr", "1e-3"}), 0.90);
}

// The mean of three seeds, within half a point of fp32's.
TEST(Accuracy, SixteenBitsLearnAsWell) {
  const auto folder = fashion_mnist();
  if (folder.empty()) GTEST_SKIP() << "Fashion-MNIST is not here";
  const auto mean_accuracy = [&](const char* precision) {
    double sum = 0.0;
    for (const char* seed : {"1", "2", "3"}) {
      sum += accuracy_after(
          {"--data", "fashion-mnist:" + folder.string(), "--epochs", "2", "--optimizer", "adam", "--precision", precision, "--seed", seed});
    }
    return sum / 3;
  };
  const double full = mean_accuracy("fp32");
  EXPECT_GE(full, 0.85);
  EXPECT_NEAR(mean_accuracy("fp16"), full, 0.005);
  EXPECT_NEAR(mean_accuracy("bf16"), full, 0.005);
}

}  // namespace
}  // namespace vitrine::test
