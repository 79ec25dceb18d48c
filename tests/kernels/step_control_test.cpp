// SPDX-License-Identifier: Apache-2.0
#include "kernels/step_control.h"

#include <cmath>
#include <limits>

#include "kernels/cross_entropy.h"
#include "runtime/copy.h"
#include "runtime/error.h"
#include "tests/kernels/expect_error.h"
#include "tests/support/device_fixture.h"
#include "tests/support/shifted.h"

namespace vitrine::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
// Few elements; numbers around that of a block; more than the blocks of a GPU process in one pass.
constexpr int64_t kLengths[] = {0, 1, 2, 3, 5, 255, 1023, 1024, 1025, 16391, 300007, 2200003};

double norm_of(const std::vector<float>& grad) {
  double sum = 0.0;
  for (const float g : grad) sum += static_cast<double>(g) * static_cast<double>(g);
  return std::sqrt(sum);
}

class StepControlTest : public DeviceTest {
 protected:
  StepControlTest() { ctx().reserve_workspace(kCheckGradientsWorkspaceBytes); }

  std::vector<float> zeros() const { return std::vector<float>(StepControl::kCount, 0.0F); }
  std::vector<float> checked(ConstView grad) {
    const Tensor control = device.tensor({StepControl::kCount}, zeros());
    check_gradients(ctx(), grad, control);
    return device.values(control);
  }
  /// The control that decide_step returns for a gradient of this norm whose first non-finite element is at `first`.
  /// Without a scale there is no state.
  std::vector<float> unscaled(double nominal, NonFinite policy, float valid, float scale, float norm, int32_t first,
                              float loss = 1.0F, float stopped = 0.0F) {
    std::vector<float> before = zeros();
    before[StepControl::kStopped] = stopped;
    before[StepControl::kNorm] = norm;
    before[StepControl::kFirstNonFinite] = std::bit_cast<float>(first);
    std::vector<float> totals_content(LossTotals::kCount, 0.0F);
    totals_content[LossTotals::kValid] = valid;
    totals_content[LossTotals::kLossSum] = loss;
    const Tensor totals = device.tensor({LossTotals::kCount}, totals_content);
    const Tensor control = device.tensor({StepControl::kCount}, before);
    const Tensor state = device.tensor({LossScaleState::kCount}, std::vector<float>{scale, 3.0F});
    decide_step(ctx(), nominal, policy, totals, {scale > 0.0F ? state.view() : View()}, control);
    return device.values(control);
  }
  /// The state after a step with this number of valid targets whose gradient is finite or not.
  std::vector<float> adapted(const LossScaleConfig& config, float valid, bool finite, const std::vector<float>& state) {
    std::vector<float> before = zeros(), totals_content(LossTotals::kCount, 0.0F);
    before[StepControl::kFirstNonFinite] = std::bit_cast<float>(finite ? -1 : 0);
    totals_content[LossTotals::kValid] = valid;
    const Tensor control = device.tensor({StepControl::kCount}, before),
                 totals = device.tensor({LossTotals::kCount}, totals_content);
    const GuardedTensor view = device.guarded({LossScaleState::kCount}, state);
    decide_step(ctx(), 1.0, NonFinite::skip, totals, {view, config}, control);
    EXPECT_EQ(device.values(control)[StepControl::kLossScale], state[LossScaleState::kScale]) << "that of this step";
    return device.values(view);
  }
};

TEST_F(StepControlTest, TheNormEqualsThatOfASumInDouble) {
  for (const int64_t count : kLengths) {
    const std::vector<float> grad = random_floats(count, static_cast<uint64_t>(count) + 1, -3.0F, 3.0F);
    const std::vector<float> control = checked(device.tensor({count}, grad));
    expect_close(std::vector<float>{control[StepControl::kNorm]}, std::vector<double>{norm_of(grad)}, 1e-6, 0.0,
                 std::to_string(count));
    EXPECT_EQ(first_non_finite(control), -1);
  }
}

/// In f32 the first squares would be infinite and the second ones zero.
TEST_F(StepControlTest, TheLargestAndSmallestNumbersAreSummedInDouble) {
  for (const float value : {1e30F, 1e-30F, std::numeric_limits<float>::denorm_min()}) {
    const std::vector<float> control = checked(device.tensor({10000}, std::vector<float>(10000, value)));
    expect_close(std::vector<float>{control[StepControl::kNorm]},
                 std::vector<double>{100.0 * static_cast<double>(value)}, 1e-6, 0.0);
    EXPECT_EQ(first_non_finite(control), -1);
  }
}

TEST_F(StepControlTest, AnyAlignmentGivesTheSameBits) {
  for (const int64_t count : {1, 7, 1030, 40009}) {
    const std::vector<float> grad = random_floats(count, 5);
    const std::vector<float> expected = checked(device.tensor({count}, grad));
    for (const int64_t offset : {1, 2, 3}) {
      const Shifted<> shifted(device, {count}, offset, grad);
      expect_same_bits(checked(shifted), expected,
                       std::to_string(count) + " elements, " + std::to_string(offset) + " after");
    }
  }
}

TEST_F(StepControlTest, ReportsTheFirstNonFiniteElement) {
  for (const int64_t count : {1, 6, 1025, 40009, 2200003}) {
    for (const int64_t position : {int64_t{0}, count / 2, count - 1}) {
      for (const float value : {kInfinity, -kInfinity, kNaN}) {
        std::vector<float> grad(static_cast<size_t>(count), 0.5F);
        grad[static_cast<size_t>(position)] = value;
        grad.back() = value;
        const std::vector<float> control = checked(device.tensor({count}, grad));
        EXPECT_EQ(first_non_finite(control), position) << count << " elements, " << value;
        EXPECT_FALSE(std::isfinite(control[StepControl::kNorm]));
        EXPECT_EQ(std::isnan(control[StepControl::kNorm]), std::isnan(value));
        if (count > 100000) break;
      }
    }
  }
}

TEST_F(StepControlTest, ReportsTheFirstOfInfinityAndNan) {
  std::vector<float> grad = random_floats(5000, 9);
  grad[4001] = kNaN;
  grad[3999] = -kInfinity;
  grad[4500] = kInfinity;
  for (const int64_t offset : {0, 1}) {
    const Shifted<> shifted(device, {5000}, offset, grad);
    EXPECT_EQ(first_non_finite(checked(shifted)), 3999);
  }
}

TEST_F(StepControlTest, UnscalingConvertsTheScaledSumToTheMean) {
  const std::vector<float> control = unscaled(128.0, NonFinite::skip, 96.0F, 1024.0F, 512.0F, -1);
  const float factor = 128.0F / 96.0F / 1024.0F;
  EXPECT_EQ(control[StepControl::kFactor], factor);
  EXPECT_EQ(control[StepControl::kActive], 1.0F);
  EXPECT_EQ(control[StepControl::kSkipped], 0.0F);
  EXPECT_EQ(control[StepControl::kNorm], 512.0F * factor);
  EXPECT_EQ(control[StepControl::kLossScale], 1024.0F);
  EXPECT_EQ(first_non_finite(control), -1);
  EXPECT_EQ(unscaled(128.0, NonFinite::skip, 96.0F, 0.0F, 512.0F, -1)[StepControl::kFactor], 128.0F / 96.0F)
      << "without a state the scale is 1";
  EXPECT_EQ(unscaled(128.0, NonFinite::skip, 96.0F, 0.0F, 512.0F, -1)[StepControl::kLossScale], 1.0F);
}

TEST_F(StepControlTest, ANonFiniteGradientSkipsTheStepIfItIsChecked) {
  const std::vector<float> skipped = unscaled(8.0, NonFinite::skip, 8.0F, 4.0F, kInfinity, 17);
  EXPECT_EQ(skipped[StepControl::kActive], 0.0F);
  EXPECT_EQ(skipped[StepControl::kSkipped], 1.0F);
  EXPECT_EQ(skipped[StepControl::kNorm], kInfinity);
  EXPECT_EQ(first_non_finite(skipped), 17);
  const std::vector<float> unchecked = unscaled(8.0, NonFinite::accept, 8.0F, 4.0F, kInfinity, 17);
  EXPECT_EQ(unchecked[StepControl::kActive], 1.0F);
  EXPECT_EQ(unchecked[StepControl::kSkipped], 0.0F);
  EXPECT_EQ(unchecked[StepControl::kFactor], 0.25F);
  EXPECT_TRUE(std::isnan(unchecked[StepControl::kNorm]));
  EXPECT_EQ(first_non_finite(unchecked), -1);
}

TEST_F(StepControlTest, ANonFiniteLossOrGradientStopsThisStepAndAllLaterOnes) {
  for (const float loss : {kInfinity, -kInfinity, kNaN}) {
    for (const float scale : {0.0F, 4.0F}) {
      const std::vector<float> stopped = unscaled(8.0, NonFinite::stop, 8.0F, scale, 1.0F, -1, loss);
      EXPECT_EQ(stopped[StepControl::kActive], 0.0F) << loss;
      EXPECT_EQ(stopped[StepControl::kSkipped], 1.0F) << loss;
      EXPECT_EQ(stopped[StepControl::kStopped], StepControl::kByLoss) << loss;
    }
    EXPECT_EQ(unscaled(8.0, NonFinite::skip, 8.0F, 4.0F, 1.0F, -1, loss)[StepControl::kActive], 1.0F)
        << "the gradient alone decides";
  }
  EXPECT_EQ(unscaled(8.0, NonFinite::stop, 8.0F, 0.0F, kInfinity, 3)[StepControl::kStopped], StepControl::kByGradient);
  const std::vector<float> scaled = unscaled(8.0, NonFinite::stop, 8.0F, 4.0F, kInfinity, 3);
  EXPECT_EQ(scaled[StepControl::kStopped], 0.0F) << "such steps detect a scale that is too large";
  EXPECT_EQ(scaled[StepControl::kSkipped], 1.0F);
  const std::vector<float> later = unscaled(8.0, NonFinite::stop, 8.0F, 0.0F, 1.0F, -1, 1.0F, StepControl::kByUpdate);
  EXPECT_EQ(later[StepControl::kActive], 0.0F);
  EXPECT_EQ(later[StepControl::kSkipped], 0.0F);
  EXPECT_EQ(later[StepControl::kStopped], StepControl::kByUpdate);
  EXPECT_EQ(unscaled(8.0, NonFinite::stop, 8.0F, 0.0F, 1.0F, -1)[StepControl::kActive], 1.0F);
}

/// The control of one step is the input of the next.
TEST_F(StepControlTest, CheckingAndDecidingInOneOperationGivesTheSameBits) {
  for (const int64_t count : kLengths) {
    for (const NonFinite policy : {NonFinite::accept, NonFinite::skip, NonFinite::stop}) {
      if (count > 1000000 || (count > 100000 && policy != NonFinite::stop)) continue;  // slow on stand-ins
      const Tensor apart = device.tensor({StepControl::kCount}, zeros()),
                   together = device.tensor({StepControl::kCount}, zeros());
      const std::vector<float> scale{1024.0F, 3.0F};
      const Tensor state_apart = device.tensor({LossScaleState::kCount}, scale),
                   state_together = device.tensor({LossScaleState::kCount}, scale);
      for (int step = 0; step < 4; ++step) {
        std::vector<float> gradient = random_floats(count, static_cast<uint64_t>(count + step) + 1, -3.0F, 3.0F);
        if (step == 2 && count > 0) gradient[static_cast<size_t>(count / 2)] = kNaN;
        std::vector<float> sums(LossTotals::kCount, 0.0F);
        sums[LossTotals::kValid] = 96.0F + static_cast<float>(step);
        sums[LossTotals::kLossSum] = step == 3 ? kInfinity : 1.0F;
        const Tensor grad = device.tensor({count}, gradient), totals = device.tensor({LossTotals::kCount}, sums);
        const auto scale_of = [&](const Tensor& state) {
          return step == 1 ? LossScale{} : LossScale{state, LossScaleConfig()};
        };
        check_gradients(ctx(), grad, apart);
        decide_step(ctx(), 128.0, policy, totals, scale_of(state_apart), apart);
        check_and_decide_step(ctx(), 128.0, policy, grad, totals, scale_of(state_together), together);
        const std::string what = std::to_string(count) + " elements, policy " +
                                 std::to_string(static_cast<int>(policy)) + ", step " + std::to_string(step);
        const std::vector<float> control = device.values(together);
        expect_same_bits(control, device.values(apart), what);
        expect_same_bits(device.values(state_together), device.values(state_apart), what);
        EXPECT_EQ(control[StepControl::kArrived], 0.0F) << what;
        EXPECT_EQ(control[StepControl::kActive], step < 2 || policy == NonFinite::accept || (step == 2 && count == 0) ||
                                                         (step == 3 && policy == NonFinite::skip)
                                                     ? 1.0F
                                                     : 0.0F)
            << what;
      }
    }
  }
}

/// They were squared in two ranges, each of which begins a new tile.
TEST_F(StepControlTest, ElementsSquaredBeforeGiveTheSameDecision) {
  constexpr int64_t kCount = 3 * kSquareTile + 77;
  const Tensor totals = device.tensor({LossTotals::kCount}, [] {
    std::vector<float> sums(LossTotals::kCount, 1.0F);
    sums[LossTotals::kValid] = 96.0F;
    return sums;
  }());
  for (const auto& [first, second] :
       {std::pair<int64_t, int64_t>{1, 2}, {kSquareTile + 5, 2 * kSquareTile + 9}, {77, kCount}}) {
    for (const int64_t bad : {int64_t{-1}, int64_t{0}, kSquareTile + 7, 2 * kSquareTile + 8, kCount - 1}) {
      std::vector<float> gradient = random_floats(kCount, static_cast<uint64_t>(first), -3.0F, 3.0F);
      if (bad >= 0) gradient[static_cast<size_t>(bad)] = kInfinity;
      if (bad >= 0) gradient[kCount - 1] = kNaN;
      const Tensor grad = device.tensor({kCount}, gradient);
      const int64_t tiles = square_tiles(first);
      const Tensor squares = device.empty({tiles + square_tiles(second - first), 2}, DType::i32);
      sum_squares(ctx(), grad.view().rows(0, first), squares.view().rows(0, tiles));
      sum_squares(ctx(), grad.view().rows(first, second), squares.view().rows(tiles, squares.shape()[0]));
      const Tensor whole = device.tensor({StepControl::kCount}, zeros()),
                   rest = device.tensor({StepControl::kCount}, zeros());
      check_and_decide_step(ctx(), 128.0, NonFinite::stop, grad, totals, {}, whole);
      check_and_decide_step(ctx(), 128.0, NonFinite::stop, grad, totals, {}, rest, {}, {second, squares});
      std::vector<float> expected = device.values(whole), control = device.values(rest);
      EXPECT_EQ(first_non_finite(control), bad);
      if (bad < 0)
        expect_close(std::vector<float>{control[StepControl::kNorm]},
                     std::vector<double>{double{expected[StepControl::kNorm]}}, 1e-6, 0.0);
      control[StepControl::kNorm] = expected[StepControl::kNorm] = 0.0F;
      expect_same_bits(control, expected, std::to_string(second) + " squared, first not finite " + std::to_string(bad));
    }
  }
}

TEST_F(StepControlTest, ElementsSquaredBeforeAreNotReadAgain) {
  constexpr int64_t kCount = kSquareTile + 9, kSquared = kSquareTile + 2;
  const std::vector<float> gradient = random_floats(kCount, 5, -3.0F, 3.0F);
  const Tensor grad = device.tensor({kCount}, gradient), squares = device.empty({2, 2}, DType::i32);
  sum_squares(ctx(), grad.view().rows(0, kSquared), squares);
  zero(ctx(), grad.view().rows(0, kSquared));
  std::vector<float> sums(LossTotals::kCount, 0.0F);
  sums[LossTotals::kValid] = 8.0F;
  const Tensor control = device.tensor({StepControl::kCount}, zeros());
  check_and_decide_step(ctx(), 8.0, NonFinite::skip, grad, device.tensor({LossTotals::kCount}, sums), {}, control, {},
                        {kSquared, squares});
  expect_close(std::vector<float>{device.values(control)[StepControl::kNorm]}, std::vector<double>{norm_of(gradient)},
               1e-6, 0.0);
}

TEST_F(StepControlTest, UnscalingDividesByAllDigitsOfTheCount) {
  // Three devices with 20,000,001 valid targets each, summed.
  std::vector<float> totals(LossTotals::kCount, 0.0F);
  LossTotals::add_to_count(totals.data(), LossTotals::kValid, 20000001);
  for (float& value : totals) value *= 3.0F;
  EXPECT_EQ(LossTotals::count(totals.data(), LossTotals::kValid), 60000003.0);
  const Tensor control = device.tensor({StepControl::kCount}, zeros());
  decide_step(ctx(), 90000000.0, NonFinite::accept, device.tensor({LossTotals::kCount}, totals), {}, control);
  EXPECT_EQ(device.values(control)[StepControl::kFactor], static_cast<float>(90000000.0 / 60000003.0));
}

/// NaN represents a target out of range.
TEST_F(StepControlTest, WithoutAValidTargetTheStepIsSkipped) {
  for (const float valid : {0.0F, kNaN}) {
    for (const int32_t first : {-1, 3}) {
      const std::vector<float> control = unscaled(8.0, NonFinite::skip, valid, 4.0F, 1.0F, first);
      EXPECT_EQ(control[StepControl::kActive], 0.0F);
      EXPECT_EQ(control[StepControl::kSkipped], 0.0F);
      EXPECT_EQ(control[StepControl::kFactor], 0.0F);
    }
  }
}

TEST_F(StepControlTest, ClippingShrinksLargeGradientsOnly) {
  const auto clipped = [&](double max_norm, float norm) {
    std::vector<float> before = zeros();
    before[StepControl::kFactor] = 0.5F;
    before[StepControl::kNorm] = norm;
    const Tensor control = device.tensor({StepControl::kCount}, before);
    clip_gradients(ctx(), max_norm, control);
    std::vector<float> after = device.values(control);
    EXPECT_TRUE(after[StepControl::kNorm] == norm || std::isnan(norm)) << "the norm stays that before clipping";
    return after[StepControl::kFactor];
  };
  EXPECT_EQ(clipped(2.0, 1.5F), 0.5F);
  EXPECT_FLOAT_EQ(clipped(2.0, 8.0F), static_cast<float>(0.5 * 2.0 / (8.0 + 1e-6)));
  EXPECT_EQ(clipped(2.0, 0.0F), 0.5F);
  EXPECT_EQ(clipped(2.0, kNaN), 0.5F);
  EXPECT_LT(clipped(1.0, 1.0F), 0.5F) << "PyTorch's divisor is a millionth above the norm";
}

TEST_F(StepControlTest, TheLossScaleChangesLikeGradScalers) {
  const LossScaleConfig config{2.0, 0.5, 3};
  EXPECT_EQ(adapted(config, 1.0F, false, {1024.0F, 2.0F}), (std::vector<float>{512.0F, 0.0F})) << "skipped";
  EXPECT_EQ(adapted(config, 1.0F, true, {1024.0F, 0.0F}), (std::vector<float>{1024.0F, 1.0F})) << "taken";
  EXPECT_EQ(adapted(config, 1.0F, true, {1024.0F, 2.0F}), (std::vector<float>{2048.0F, 0.0F})) << "the third in a row";
  EXPECT_EQ(adapted(config, 0.0F, true, {1024.0F, 2.0F}), (std::vector<float>{1024.0F, 2.0F})) << "no valid target";
  EXPECT_EQ(adapted(config, 0.0F, false, {1024.0F, 2.0F}), (std::vector<float>{1024.0F, 2.0F})) << "no valid target";
  EXPECT_EQ(adapted(config, 1.0F, true, {0x1p127F, 2.0F}), (std::vector<float>{0x1p127F, 0.0F}))
      << "it would be infinite";
}

TEST_F(StepControlTest, NamesTheWorkspaceThatItNeedsOnAGpu) {
  if (!on_gpu()) GTEST_SKIP() << "needs a GPU";
  ctx().release_workspace();
  const Tensor grad = device.random({8}, 1);
  const Tensor control = device.empty({StepControl::kCount});
  expect_error<OutOfMemory>("check_gradients: needs a workspace of", [&] { check_gradients(ctx(), grad, control); });
  const Tensor totals = device.empty({LossTotals::kCount});
  expect_error<OutOfMemory>("check_and_decide_step: needs a workspace of",
                            [&] { check_and_decide_step(ctx(), 1.0, NonFinite::skip, grad, totals, {}, control); });
}

TEST_F(StepControlTest, RefusesWrongArguments) {
  const Tensor grad = device.random({StepControl::kCount}, 1);
  const Tensor control = device.empty({StepControl::kCount});
  const Tensor totals = device.empty({LossTotals::kCount});
  const Tensor memory = device.empty({LossScaleState::kCount});
  const LossScale state{memory};
  EXPECT_THROW(check_gradients(ctx(), device.empty({2, 4}), control), ShapeError);
  EXPECT_THROW(check_gradients(ctx(), device.empty({8}, DType::f16), control), DtypeError);
  EXPECT_THROW(check_gradients(ctx(), grad, device.empty({8})), ShapeError);
  EXPECT_THROW(check_gradients(ctx(), control, control), ShapeError);
  EXPECT_THROW(decide_step(ctx(), 1.0, NonFinite::skip, device.empty({3}), state, control), ShapeError);
  EXPECT_THROW(decide_step(ctx(), 1.0, NonFinite::skip, totals, {device.empty({3}).view()}, control), ShapeError);
  EXPECT_THROW(decide_step(ctx(), 1.0, NonFinite::skip, totals, state, device.empty({3})), ShapeError);
  EXPECT_THROW(check_and_decide_step(ctx(), 1.0, NonFinite::skip, device.empty({2, 4}), totals, state, control),
               ShapeError);
  EXPECT_THROW(check_and_decide_step(ctx(), 1.0, NonFinite::skip, grad, device.empty({3}), state, control), ShapeError);
  EXPECT_THROW(sum_squares(ctx(), grad, device.empty({2, 2}, DType::i32)), ShapeError);
  EXPECT_THROW(sum_squares(ctx(), grad, device.empty({1, 2})), DtypeError);
  EXPECT_THROW(sum_squares(ctx(), grad.view().rows(0, 0), device.empty({1, 2}, DType::i32)), ShapeError);
  EXPECT_THROW(check_and_decide_step(ctx(), 1.0, NonFinite::skip, grad, totals, state, control, {},
                                     {17, device.empty({1, 2}, DType::i32)}),
               ShapeError);
  EXPECT_THROW(
      check_and_decide_step(ctx(), 1.0, NonFinite::skip, grad, totals, state, control, {}, {16, device.empty({1, 2})}),
      DtypeError);
  EXPECT_THROW(clip_gradients(ctx(), 0.0, control), ConfigError);
  EXPECT_THROW(clip_gradients(ctx(), static_cast<double>(kNaN), control), ConfigError);
  EXPECT_THROW(clip_gradients(ctx(), 1.0, device.empty({3})), ShapeError);
  EXPECT_THROW(decide_step(ctx(), 1.0, NonFinite::skip, totals, {View(), LossScaleConfig()}, control), DeviceError);
}

}  // namespace
}  // namespace vitrine::test
