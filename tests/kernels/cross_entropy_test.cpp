// SPDX-License-Identifier: Apache-2.0
#include "kernels/cross_entropy.h"

#include <cmath>
#include <limits>

#include "runtime/error.h"
#include "tests/support/device_fixture.h"
#include "tests/support/reference_light.h"

namespace vitrine::test {
namespace {

class CrossEntropyTest : public DeviceTest {
 protected:
  CrossEntropyTest() { ctx().reserve_workspace(kCrossEntropyWorkspaceBytes); }

  GuardedTensor zero_totals() { return device.guarded({LossTotals::kCount}, std::vector<float>(LossTotals::kCount, 0.0F)); }

  void expect_totals(const GuardedTensor& totals, const reference::CrossEntropy& expected, double times = 1.0) {
    const std::vector<float> values = device.values(totals);
    EXPECT_NEAR(values[LossTotals::kLossSum], times * expected.loss_sum, 1e-6 * times * std::abs(expected.loss_sum) + 1e-6);
    EXPECT_EQ(values[LossTotals::kValid], static_cast<float>(times * static_cast<double>(expected.valid)));
    EXPECT_EQ(values[LossTotals::kCorrect], static_cast<float>(times * static_cast<double>(expected.correct)));
    for (size_t i = 3; i < values.size(); ++i) EXPECT_EQ(values[i], 0.0F);
  }
};

TEST_F(CrossEntropyTest, LossGradientAndCountsAreThoseOfTheReference) {
  uint64_t seed = 0;
  for (const auto& [rows, classes] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {5, 10}, {63, 3}, {64, 7}, {65, 10}, {200, 10}, {9, 1003}}) {
    for (const float range : {1.0F, 30.0F, 10000.0F}) {
      const CrossEntropyConfig config{static_cast<int32_t>(seed % 2 == 0 ? -100 : 0), 0.37F};
      const std::vector<float> logits = random_floats(rows * classes, ++seed, -range, range);
      std::vector<int32_t> targets = random_integers<int32_t>(rows, ++seed, 0, classes - 1);
      for (size_t i = 1; i < targets.size(); i += 3) targets[i] = config.ignore_index;
      const reference::CrossEntropy expected = reference::cross_entropy(config, classes, logits, targets);
      const Tensor targets_device = device.tensor({rows}, targets);

      GuardedTensor totals = zero_totals();
      const GuardedTensor grad = device.guarded({rows, classes});
      softmax_cross_entropy(ctx(), config, device.tensor({rows, classes}, logits), targets_device, grad, totals);
      expect_close(device.values(grad), expected.grad, 2e-6, 1e-7);
      expect_totals(totals, expected);

      const GuardedTensor in_place = device.guarded({rows, classes}, logits);
      softmax_cross_entropy(ctx(), config, in_place, targets_device, in_place, totals);
      expect_same_bits(device.values(in_place), device.values(grad), "in place");
      expect_totals(totals, expected, 2.0);

      totals = zero_totals();
      softmax_cross_entropy(ctx(), config, device.tensor({rows, classes}, logits), targets_device, View{}, totals);
      expect_totals(totals, expected);
    }
  }
}

TEST_F(CrossEntropyTest, TotalsDoNotDependOnTheNumberOfThreads) {
  const std::vector<float> logits = random_floats(int64_t{997} * 31, 5, -4, 4);
  const std::vector<int32_t> targets = random_integers<int32_t>(997, 6, 0, 30);
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 3}) {
    TestDevice other(threads);
    other.ctx().reserve_workspace(kCrossEntropyWorkspaceBytes);
    const GuardedTensor totals = other.guarded({LossTotals::kCount}, std::vector<float>(LossTotals::kCount, 0.0F));
    softmax_cross_entropy(other.ctx(), {}, other.tensor({997, 31}, logits), other.tensor({997}, targets), View{}, totals);
    results.push_back(other.values(totals));
    expect_same_bits(results.back(), results.front());
  }
  EXPECT_GT(results.front()[LossTotals::kLossSum], 0.0F);
}

TEST_F(CrossEntropyTest, NanLogitsPassOnToLossAndGradientOfTheirRowAlone) {
  std::vector<float> logits = random_floats(3 * 4, 7);
  logits[5] = std::numeric_limits<float>::quiet_NaN();
  const GuardedTensor totals = zero_totals();
  const GuardedTensor grad = device.guarded({3, 4});
  softmax_cross_entropy(ctx(), {}, device.tensor({3, 4}, logits), device.tensor({3}, std::vector<int32_t>{0, 1, 2}), grad, totals);
  EXPECT_TRUE(std::isnan(device.values(totals)[LossTotals::kLossSum]));
  const std::vector<float> values = device.values(grad);
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(std::isnan(values[i]), i / 4 == 1) << i;
}

TEST_F(CrossEntropyTest, MinusInfinityHasNoProbability) {
  const float lowest = -std::numeric_limits<float>::infinity();
  const GuardedTensor totals = zero_totals();
  const GuardedTensor grad = device.guarded({1, 3});
  softmax_cross_entropy(ctx(), {}, device.tensor({1, 3}, std::vector<float>{1.0F, lowest, 1.0F}), device.tensor({1}, std::vector<int32_t>{0}), grad,
                        totals);
  expect_close(device.values(grad), std::vector<float>{-0.5F, 0.0F, 0.5F}, 1e-6, 0);
  EXPECT_NEAR(device.values(totals)[LossTotals::kLossSum], std::log(2.0), 1e-6);
}

TEST_F(CrossEntropyTest, TargetOutOfRangeIsADataErrorThatNamesRowAndValue) {
  for (const int32_t wrong : {10, -1}) {
    std::vector<int32_t> targets(90, 3);
    targets[71] = wrong;
    targets[80] = 77;
    const Tensor logits = device.random({90, 10}, 8);
    const Tensor targets_device = device.tensor({90}, targets);
    const GuardedTensor totals = zero_totals();
    softmax_cross_entropy(ctx(), {}, logits, targets_device, View{}, totals);
    try {
      device.synchronize();
      FAIL() << "no error for target " << wrong;
    } catch (const DataError& e) {
      EXPECT_NE(std::string(e.what()).find("target " + std::to_string(wrong) + " in row 71"), std::string::npos) << e.what();
    }
    const std::vector<float> values = device.values(totals);
    EXPECT_TRUE(std::isnan(values[LossTotals::kValid])) << values[LossTotals::kValid];
    EXPECT_EQ(values[LossTotals::kLossSum], 0.0F);
  }
}

TEST_F(CrossEntropyTest, WrongArgumentsAreRefused) {
  const Tensor logits = device.random({4, 10}, 1);
  const Tensor targets = device.empty({4}, DType::i32);
  const Tensor totals = device.empty({LossTotals::kCount});
  EXPECT_THROW(softmax_cross_entropy(ctx(), {}, logits.reshape({40}), targets, View{}, totals), ShapeError);
  EXPECT_THROW(softmax_cross_entropy(ctx(), {}, logits, device.empty({5}, DType::i32), View{}, totals), ShapeError);
  EXPECT_THROW(softmax_cross_entropy(ctx(), {}, logits, device.empty({4}), View{}, totals), DtypeError);
  EXPECT_THROW(softmax_cross_entropy(ctx(), {}, logits, targets, View{}, device.empty({3})), ShapeError);
  EXPECT_THROW(softmax_cross_entropy(ctx(), {}, logits, targets, device.empty({10, 4}), totals), ShapeError);
}

}  // namespace
}  // namespace vitrine::test
