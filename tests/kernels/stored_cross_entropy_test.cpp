// SPDX-License-Identifier: Apache-2.0
// Cross-entropy of f16 and bf16 logits, and the loss scale, which is read on the device.
#include <cmath>
#include <limits>

#include "kernels/cross_entropy.h"
#include "runtime/error.h"
#include "tests/kernels/expect_error.h"
#include "tests/support/shifted.h"
#include "tests/support/reference_light.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

class StoredCrossEntropyTest : public StoredTest {
 protected:
  StoredCrossEntropyTest() { ctx().reserve_workspace(kCrossEntropyWorkspaceBytes); }
  GuardedTensor zero_totals() { return device.guarded({LossTotals::kCount}, std::vector<float>(LossTotals::kCount, 0.0F)); }
  Tensor scale_of(float scale) { return device.tensor({1}, std::vector<float>{scale}); }
};

TEST_P(StoredCrossEntropyTest, LossAndGradientAreThoseOfF32RoundedOnce) {
  uint64_t seed = 0;
  for (const auto& [rows, classes] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {5, 10}, {65, 7}, {200, 31}, {9, 1003}, {3, 9001}}) {
    for (const float range : {1.0F, 30.0F}) {
      CrossEntropyConfig config{-100, 0.37F};
      const float scale = 64.0F;
      const Shape shape{rows, classes};
      const std::vector<float> logits = random(shape.numel(), ++seed, -range, range);
      std::vector<int32_t> targets = random_integers<int32_t>(rows, ++seed, 0, classes - 1);
      for (size_t i = 1; i < targets.size(); i += 3) targets[i] = config.ignore_index;
      const Tensor targets_device = device.tensor({rows}, targets);
      const Tensor scale_device = scale_of(scale);
      CrossEntropyConfig scaled = config;
      scaled.grad_scale *= scale;
      const reference::CrossEntropy expected = reference::cross_entropy(scaled, classes, logits, targets);

      const GuardedTensor totals = zero_totals(), grad = guarded(shape);
      softmax_cross_entropy(ctx(), config, tensor(shape, logits), targets_device, scale_device, grad, totals);
      expect_close(values(grad), expected.grad, unit_roundoff(dtype()) + 2e-6, 1e-7 * static_cast<double>(scale) + half_smallest(dtype()));
      const std::vector<float> sums = device.values(totals);
      EXPECT_NEAR(sums[LossTotals::kLossSum], expected.loss_sum, 1e-6 * std::abs(expected.loss_sum) + 1e-6);
      EXPECT_EQ(LossTotals::count(sums.data(), LossTotals::kValid), static_cast<double>(expected.valid));
      EXPECT_EQ(LossTotals::count(sums.data(), LossTotals::kCorrect), static_cast<double>(expected.correct));

      const GuardedTensor in_place = guarded(shape, logits), more = zero_totals();
      softmax_cross_entropy(ctx(), config, in_place, targets_device, scale_device, in_place, more);
      EXPECT_EQ(device.values<uint16_t>(in_place), device.values<uint16_t>(grad)) << "in place";
      const Shifted<uint16_t> shifted(device, shape, 3, dtype());
      softmax_cross_entropy(ctx(), config, Shifted<uint16_t>(device, shape, 1, to_bits(dtype(), logits), dtype()), targets_device, scale_device,
                            shifted, more);
      EXPECT_EQ(shifted.values(), device.values<uint16_t>(grad)) << "shifted";
    }
  }
}

/// The gradient in f16 overflows to infinity, from where the step is seen to be skipped; in bf16 it does not.
TEST_P(StoredCrossEntropyTest, ALossScaleTooLargeOverflows) {
  const GuardedTensor grad = guarded({1, 2}), totals = zero_totals();
  softmax_cross_entropy(ctx(), {}, tensor({1, 2}, {0.0F, 0.0F}), device.tensor({1}, std::vector<int32_t>{0}), scale_of(0x1p18F), grad, totals);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float expected = dtype() == DType::f16 ? kInfinity : 0x1p17F;
  expect_close(values(grad), std::vector<float>{-expected, expected}, 0, 0);
}

TEST_P(StoredCrossEntropyTest, NonFiniteLogitsPassOnToTheirRowAlone) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> logits = random(3 * 40, 7);
    logits[45] = bad;
    const GuardedTensor totals = zero_totals(), grad = guarded({3, 40});
    softmax_cross_entropy(ctx(), {}, tensor({3, 40}, logits), device.tensor({3}, std::vector<int32_t>{0, 1, 2}), {}, grad, totals);
    EXPECT_FALSE(std::isfinite(device.values(totals)[LossTotals::kLossSum]));
    const std::vector<float> g = values(grad);
    for (size_t i = 0; i < g.size(); ++i) {
      if (i / 40 == 1) continue;
      EXPECT_TRUE(std::isfinite(g[i])) << i;
    }
    EXPECT_TRUE(std::isnan(g[45]));
  }
}

TEST_P(StoredCrossEntropyTest, WrongArgumentsAreRefused) {
  const Tensor logits = device.empty({4, 10}, dtype()), targets = device.empty({4}, DType::i32), totals = device.empty({LossTotals::kCount});
  expect_error<DtypeError>(
      [&] {
        softmax_cross_entropy(ctx(), {}, logits, targets, {}, device.empty({4, 10}), totals);
      },
      std::string("grad_logits is f32, expected ") + dtype_name(dtype()));
  expect_error<ShapeError>([&] { softmax_cross_entropy(ctx(), {}, logits, targets, device.empty({2}), View{}, totals); },
                           "loss_scale has shape (2), expected (1)");
  expect_error<DtypeError>([&] { softmax_cross_entropy(ctx(), {}, logits, targets, device.empty({1}, dtype()), View{}, totals); }, "loss_scale is");
}

INSTANTIATE_TEST_SUITE_P(Stored, StoredCrossEntropyTest, ::testing::ValuesIn(kStoredTypes), stored_type_name);

class LossScaleTest : public DeviceTest {};

TEST_F(LossScaleTest, OfF32MultipliesTheGradientAndNothingElse) {
  ctx().reserve_workspace(kCrossEntropyWorkspaceBytes);
  const Shape shape{37, 21};
  const Tensor logits = device.random(shape, 1, -5, 5);
  const Tensor targets = device.tensor({37}, random_integers<int32_t>(37, 2, 0, 20));
  const GuardedTensor plain = device.guarded(shape), scaled = device.guarded(shape);
  const std::vector<float> zeros(LossTotals::kCount, 0.0F);
  const GuardedTensor plain_totals = device.guarded({LossTotals::kCount}, zeros), scaled_totals = device.guarded({LossTotals::kCount}, zeros);
  softmax_cross_entropy(ctx(), {.grad_scale = 0.37F}, logits, targets, device.tensor({1}, std::vector<float>{1024.0F}), scaled, scaled_totals);
  softmax_cross_entropy(ctx(), {.grad_scale = 0.37F * 1024.0F}, logits, targets, {}, plain, plain_totals);
  expect_same_bits(device.values(scaled), device.values(plain));
  expect_same_bits(device.values(scaled_totals), device.values(plain_totals));
}

}  // namespace
}  // namespace vitrine::test
