// SPDX-License-Identifier: Apache-2.0
#include "kernels/cross_entropy.h"

#include <cmath>
#include <fstream>
#include <limits>

#include <nlohmann/json.hpp>

#include "runtime/error.h"
#include "tests/kernels/expect_error.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tests/support/paths.h"
#include "tests/support/reference_light.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

class CrossEntropyTest : public DeviceTest {
 protected:
  CrossEntropyTest() { ctx().reserve_workspace(kCrossEntropyWorkspaceBytes); }

  GuardedTensor zero_totals() {
    return device.guarded({LossTotals::kCount}, std::vector<float>(LossTotals::kCount, 0.0F));
  }

  void expect_totals(const GuardedTensor& totals, const reference::CrossEntropy& expected, double times = 1.0) {
    const std::vector<float> values = device.values(totals);
    EXPECT_NEAR(values[LossTotals::kLossSum], times * expected.loss_sum,
                1e-6 * times * std::abs(expected.loss_sum) + 1e-6);
    EXPECT_EQ(LossTotals::count(values.data(), LossTotals::kValid), times * static_cast<double>(expected.valid));
    EXPECT_EQ(LossTotals::count(values.data(), LossTotals::kCorrect), times * static_cast<double>(expected.correct));
    EXPECT_EQ(LossTotals::count(values.data(), LossTotals::kTop5), times * static_cast<double>(expected.top5));
    for (size_t i = LossTotals::kTop5 + LossTotals::kDigits * LossTotals::kDigitStep; i < values.size(); ++i)
      EXPECT_EQ(values[i], 0.0F);
  }
};

TEST_F(CrossEntropyTest, SmoothedLabelsEqualPyTorchs) {
  std::ifstream file(test::source_path("tests/kernels/data/label_smoothing.json"));
  ASSERT_TRUE(file) << "missing tests/kernels/data/label_smoothing.json: record_label_smoothing.py writes it";
  const nlohmann::json record = nlohmann::json::parse(file);
  ASSERT_EQ(record.at("cases").size(), 4U);
  for (const nlohmann::json& c : record.at("cases")) {
    const auto logits = c.at("logits").get<std::vector<float>>();
    const auto targets = c.at("targets").get<std::vector<int32_t>>();
    const auto rows = static_cast<int64_t>(targets.size()), classes = static_cast<int64_t>(logits.size()) / rows;
    const CrossEntropyConfig config{-100, 1.0F, c.at("label_smoothing").get<float>()};
    const GuardedTensor totals = zero_totals(), grad = device.guarded({rows, classes});
    softmax_cross_entropy(ctx(), config, device.tensor({rows, classes}, logits), device.tensor({rows}, targets), {},
                          grad, totals);
    const double loss = c.at("loss_sum").get<double>();
    EXPECT_NEAR(device.values(totals)[LossTotals::kLossSum], loss, 1e-5 * loss);
    expect_close(device.values(grad), c.at("gradient").get<std::vector<double>>(), 2e-6, 1e-6);
  }
}

TEST_F(CrossEntropyTest, CountsTheFiveLargest) {
  const std::vector<float> logits{9, 8, 7, 6, 5, 4, 3, 9, 8, 7, 6, 5, 5, 3, 9, 8, 7, 6, 5, 5, 3};
  const GuardedTensor totals = zero_totals();
  softmax_cross_entropy(ctx(), {}, device.tensor({3, 7}, logits), device.tensor({3}, std::vector<int32_t>{4, 5, 4}), {},
                        View{}, totals);
  const std::vector<float> values = device.values(totals);
  EXPECT_EQ(LossTotals::count(values.data(), LossTotals::kTop5),
            2.0);  // of two equal fifth logits the first one is among them
  EXPECT_EQ(LossTotals::count(values.data(), LossTotals::kCorrect), 0.0);
}

TEST_F(CrossEntropyTest, RefusesSmoothingOutsideOfZeroToOne) {
  for (const float smoothing : {-0.1F, 1.5F, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_THROW(softmax_cross_entropy(ctx(), {-100, 1.0F, smoothing}, device.empty({1, 3}),
                                       device.tensor({1}, std::vector<int32_t>{0}), {}, View{}, zero_totals()),
                 ConfigError);
  }
}

TEST_F(CrossEntropyTest, AMillionClasses) {
  constexpr int64_t kClasses = 1000003;
  const std::vector<float> logits = random_floats(kClasses, 9, -20, 20);
  const std::vector<int32_t> targets{999999};
  const reference::CrossEntropy expected = reference::cross_entropy({}, kClasses, logits, targets);
  const GuardedTensor totals = zero_totals();
  const GuardedTensor in_place = device.guarded({1, kClasses}, logits);
  softmax_cross_entropy(ctx(), {}, in_place, device.tensor({1}, targets), {}, in_place, totals);
  expect_close(device.values(in_place), expected.grad, 2e-6, 1e-9);
  expect_totals(totals, expected);
}

/// The first of equal largest logits is predicted, however threads share the row.
TEST_F(CrossEntropyTest, PredictsTheFirstOfEqualLogits) {
  for (const int64_t classes : {10, 40, 2000, 9001}) {
    std::vector<float> logits(static_cast<size_t>(2 * classes), 0.25F);
    const GuardedTensor totals = zero_totals();
    const std::vector<int32_t> targets{0, static_cast<int32_t>(classes - 1)};
    softmax_cross_entropy(ctx(), {}, device.tensor({2, classes}, logits), device.tensor({2}, targets), {}, View{},
                          totals);
    EXPECT_EQ(device.values(totals)[LossTotals::kCorrect], 1.0F) << classes;
    logits[static_cast<size_t>(2 * classes - 1)] = 0.5F;
    softmax_cross_entropy(ctx(), {}, device.tensor({2, classes}, logits), device.tensor({2}, targets), {}, View{},
                          totals);
    EXPECT_EQ(device.values(totals)[LossTotals::kCorrect], 3.0F) << classes;
  }
}

/// Rows with NaN, +infinity, only -infinity, and mostly -infinity, among ordinary rows.
TEST_F(CrossEntropyTest, SpecialLogitsAffectOnlyTheirRow) {
  const float lowest = -std::numeric_limits<float>::infinity();
  for (const int64_t classes : {12, 40, 2001, 12003}) {
    const auto row = [&](int64_t i) { return static_cast<size_t>(i * classes); };
    std::vector<float> logits = random_floats(6 * classes, 10);
    logits[row(1) + row(1) / 2] = std::numeric_limits<float>::quiet_NaN();
    logits[row(2) + 3] = -lowest;
    std::fill(logits.begin() + static_cast<int64_t>(row(3)), logits.begin() + static_cast<int64_t>(row(4)), lowest);
    std::fill(logits.begin() + static_cast<int64_t>(row(4)), logits.begin() + static_cast<int64_t>(row(5)) - 2, lowest);
    const std::vector<int32_t> targets{0, 1, 2, 0, static_cast<int32_t>(classes - 1), 5};
    const GuardedTensor totals = zero_totals();
    const GuardedTensor grad = device.guarded({6, classes});
    softmax_cross_entropy(ctx(), {}, device.tensor({6, classes}, logits), device.tensor({6}, targets), {}, grad,
                          totals);
    const std::vector<float> totals_read = device.values(totals);
    EXPECT_TRUE(std::isnan(totals_read[LossTotals::kLossSum]));
    EXPECT_EQ(totals_read[LossTotals::kValid], 6.0F);
    const std::vector<float> values = device.values(grad);
    for (const int64_t i : {0, 4, 5}) {
      const auto begin = static_cast<int64_t>(row(i));
      const std::vector<float> alone(logits.begin() + begin, logits.begin() + begin + classes);
      const reference::CrossEntropy expected =
          reference::cross_entropy({}, classes, alone, {targets[static_cast<size_t>(i)]});
      expect_close(std::vector<float>(values.begin() + begin, values.begin() + begin + classes), expected.grad, 2e-6,
                   1e-7);
    }
    for (const int64_t i : {1, 2, 3}) {
      for (size_t j = row(i); j < row(i + 1); ++j)
        ASSERT_TRUE(std::isnan(values[j])) << "row " << i << " of " << classes << " classes";
    }
  }
}

/// More rows than one round of blocks takes.
TEST_F(CrossEntropyTest, CountsAllOfManyRows) {
  for (const auto& [rows, classes] : std::vector<std::pair<int64_t, int64_t>>{{9001, 3}, {1030, 1030}}) {
    const std::vector<float> logits = random_floats(rows * classes, 12, -3, 3);
    const std::vector<int32_t> targets = random_integers<int32_t>(rows, 13, 0, classes - 1);
    const GuardedTensor totals = zero_totals();
    softmax_cross_entropy(ctx(), {}, device.tensor({rows, classes}, logits), device.tensor({rows}, targets), {}, View{},
                          totals);
    expect_totals(totals, reference::cross_entropy({}, classes, logits, targets));
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
    softmax_cross_entropy(other.ctx(), {}, other.tensor({997, 31}, logits), other.tensor({997}, targets), {}, View{},
                          totals);
    results.push_back(other.values(totals));
    expect_same_bits(results.back(), results.front());
  }
  EXPECT_GT(results.front()[LossTotals::kLossSum], 0.0F);
}

TEST_F(CrossEntropyTest, MinusInfinityHasNoProbability) {
  const float lowest = -std::numeric_limits<float>::infinity();
  const GuardedTensor totals = zero_totals();
  const GuardedTensor grad = device.guarded({1, 3});
  softmax_cross_entropy(ctx(), {}, device.tensor({1, 3}, std::vector<float>{1.0F, lowest, 1.0F}),
                        device.tensor({1}, std::vector<int32_t>{0}), {}, grad, totals);
  expect_close(device.values(grad), std::vector<float>{-0.5F, 0.0F, 0.5F}, 1e-6, 0);
  EXPECT_NEAR(device.values(totals)[LossTotals::kLossSum], std::log(2.0), 1e-6);
}

/// From counts that f32 cannot increment by one, through those of an optimizer step on one device, to the largest that
/// can be stored.
TEST_F(CrossEntropyTest, CountsAreExact) {
  std::vector<float> logits(3 * 2, 0.0F);
  for (size_t row = 0; row < 3; ++row) logits[2 * row] = 1.0F;
  const Tensor logits_device = device.tensor({3, 2}, logits),
               targets = device.tensor({3}, std::vector<int32_t>{0, 0, 1});
  for (const int64_t start : {int64_t{0}, int64_t{1022}, (int64_t{1} << 24) - 1, (int64_t{1} << 24) + 1,
                              (int64_t{1} << 30) - 1, int64_t{1} << 45}) {
    std::vector<float> before(LossTotals::kCount, 0.0F);
    LossTotals::add_to_count(before.data(), LossTotals::kValid, start);
    LossTotals::add_to_count(before.data(), LossTotals::kCorrect, start);
    const GuardedTensor totals = device.guarded({LossTotals::kCount}, before);
    for (int round = 1; round <= 3; ++round) {
      softmax_cross_entropy(ctx(), {}, logits_device, targets, {}, View{}, totals);
      const std::vector<float> values = device.values(totals);
      EXPECT_EQ(LossTotals::count(values.data(), LossTotals::kValid), static_cast<double>(start + 3 * round)) << start;
      EXPECT_EQ(LossTotals::count(values.data(), LossTotals::kCorrect), static_cast<double>(start + 2 * round))
          << start;
    }
  }
}

TEST_F(CrossEntropyTest, TargetOutOfRangeIsADataErrorThatNamesRowAndValue) {
  for (const int32_t wrong : {10, -1}) {
    std::vector<int32_t> targets(90, 3);
    targets[71] = wrong;
    targets[80] = 77;
    const Tensor logits = device.random({90, 10}, 8);
    const Tensor targets_device = device.tensor({90}, targets);
    const GuardedTensor totals = zero_totals();
    softmax_cross_entropy(ctx(), {}, logits, targets_device, {}, View{}, totals);
    const std::string text = "softmax_cross_entropy: target " + std::to_string(wrong) +
                             " in row 71 is out of range, expected 0 <= target < 10 or ignore_index -100";
    expect_contains(error_of<DataError>([&] { device.synchronize(); }), text);
    const std::vector<float> values = device.values(totals);
    EXPECT_TRUE(std::isnan(values[LossTotals::kValid])) << values[LossTotals::kValid];
    EXPECT_EQ(values[LossTotals::kLossSum], 0.0F);
  }
}

TEST_F(CrossEntropyTest, NamesTheWorkspaceThatItNeedsOnAGpu) {
  if (!on_gpu()) GTEST_SKIP() << "needs a GPU";
  ctx().reserve_workspace(kCrossEntropyWorkspaceBytes - 1);
  const Tensor logits = device.random({2, 3}, 1);
  const GuardedTensor totals = zero_totals();
  expect_error<OutOfMemory>(std::to_string(kCrossEntropyWorkspaceBytes) + " bytes", [&] {
    softmax_cross_entropy(ctx(), {}, logits, device.tensor({2}, std::vector<int32_t>{0, 1}), {}, View{}, totals);
  });
}

class CrossEntropyDtypeTest : public DtypeTest {
 protected:
  CrossEntropyDtypeTest() { ctx().reserve_workspace(kCrossEntropyWorkspaceBytes); }
  GuardedTensor zero_totals() {
    return device.guarded({LossTotals::kCount}, std::vector<float>(LossTotals::kCount, 0.0F));
  }
  Tensor scale_of(float scale) { return device.tensor({1}, std::vector<float>{scale}); }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, CrossEntropyDtypeTest, ::testing::ValuesIn(kStorageTypes), dtype_test_name);

/// In f16 the gradient overflows to infinity, for which the step is skipped; in f32 and bf16 it does not.
TEST_P(CrossEntropyDtypeTest, OverflowsInF16WhenTheLossScaleIsTooLarge) {
  const GuardedTensor grad = guarded({1, 2}), totals = zero_totals();
  softmax_cross_entropy(ctx(), {}, tensor({1, 2}, {0.0F, 0.0F}), device.tensor({1}, std::vector<int32_t>{0}),
                        scale_of(0x1p18F), grad, totals);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float expected = dtype() == DType::f16 ? kInfinity : 0x1p17F;
  expect_close(values(grad), std::vector<float>{-expected, expected}, 0, 0);
}

TEST_P(CrossEntropyDtypeTest, PropagatesNonFiniteLogitsToTheirRowOnly) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> logits = random(3 * 40, 7);
    logits[45] = bad;
    const GuardedTensor totals = zero_totals(), grad = guarded({3, 40});
    softmax_cross_entropy(ctx(), {}, tensor({3, 40}, logits), device.tensor({3}, std::vector<int32_t>{0, 1, 2}), {},
                          grad, totals);
    EXPECT_FALSE(std::isfinite(device.values(totals)[LossTotals::kLossSum]));
    const std::vector<float> g = values(grad);
    for (size_t i = 0; i < g.size(); ++i) {
      if (i / 40 == 1) continue;
      EXPECT_TRUE(std::isfinite(g[i])) << i;
    }
    EXPECT_TRUE(std::isnan(g[45]));
  }
}

}  // namespace
}  // namespace vitrine::test
