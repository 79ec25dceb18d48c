// SPDX-License-Identifier: Apache-2.0
// Accuracy on all of Fashion-MNIST and CIFAR-10; minutes of two cores. `ctest -L slow` runs it.
#include "tests/data/temp_folder.h"
#include "tests/tools/accuracy.h"

namespace vitrine::test {
namespace {

TEST(FullAccuracy, FashionMnistReachesNinetyPercent) {
  const auto folder = fashion_mnist();
  if (folder.empty()) GTEST_SKIP() << "Fashion-MNIST is not here";
  EXPECT_GE(
      accuracy_after(words("--data {} --epochs 5 --optimizer adam --lr 1e-3", "fashion-mnist:" + folder.string())),
      0.90);
}

TEST(FullAccuracy, Cifar10WithAugmentationPassesSeventyFivePercent) {
  const TempFolder folder;
  if (!unpack_cifar10(folder.path())) GTEST_SKIP() << "CIFAR-10 or xz is not here";
  EXPECT_GE(accuracy_after(
                words("--data {} --epochs 24 --optimizer adam --lr 1e-3 --lr-schedule cosine --augment flip,crop:4",
                      "cifar10:" + folder.str())),
            0.75);
}

// The mean of three seeds, within half a point of fp32's.
TEST(FullAccuracy, SixteenBitsLearnEquallyWell) {
  const auto folder = fashion_mnist();
  if (folder.empty()) GTEST_SKIP() << "Fashion-MNIST is not here";
  const auto mean_accuracy = [&](const char* precision) {
    double sum = 0.0;
    for (const char* seed : {"1", "2", "3"}) {
      sum += accuracy_after(words("--data {} --epochs 2 --optimizer adam --precision {} --seed {}",
                                  "fashion-mnist:" + folder.string(), precision, seed));
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
