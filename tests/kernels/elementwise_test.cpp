// SPDX-License-Identifier: Apache-2.0
// add and ReLU: one operation in f32, rounded once, so that every bit is known.
#include "kernels/elementwise.h"

#include <array>
#include <cmath>
#include <limits>
#include <span>

#include <fmt/format.h>

#include "kernels/relu.h"
#include "runtime/error.h"
#include "tests/kernels/expect_error.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

class ElementwiseTest : public DtypeTest {
 protected:
  /// The f32 results as they are stored.
  template <class Function>
  std::vector<float> rounded(const std::vector<float>& a, const std::vector<float>& b, const Function& function) {
    std::vector<float> y(a.size());
    for (size_t i = 0; i < y.size(); ++i) y[i] = function(a[i], b[i]);
    return stored(dtype(), y);
  }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, ElementwiseTest, ::testing::ValuesIn(kStorageTypes), dtype_test_name);

float sum_of(float a, float b) { return a + b; }
float relu_of(float x, float) { return std::isnan(x) ? x : std::max(x, 0.0F); }
float masked(float y, float gradient) { return y > 0 ? gradient : 0.0F; }

/// Lengths around those of packs and tiles, at equal and different alignments of the arguments.
TEST_P(ElementwiseTest, AddAndReluEqualTheReferenceAtAnyLengthAndAlignment) {
  using Offsets = std::array<int64_t, 3>;
  const std::vector<Offsets> offsets{{0, 0, 0}, {1, 1, 1}, {2, 2, 2}, {3, 3, 3}, {0, 1, 0},
                                     {1, 2, 1}, {2, 3, 2}, {3, 0, 3}, {0, 1, 5}, {7, 2, 0}};
  for (const int64_t count : {1, 2, 3, 4, 5, 7, 8, 15, 1023, 1025, 4100, 16389, 70001}) {
    const std::vector<float> a = with_specials(count, 11), b = with_specials(count, 12);
    for (const auto& [i, j, k] : offsets) {
      const std::string what =
          std::to_string(count) + " at " + std::to_string(i) + ", " + std::to_string(j) + " and " + std::to_string(k);
      const ShiftedStored x = shifted({count}, i, a), z = shifted({count}, j, b), y = shifted({count}, k);
      add(ctx(), x, z, y);
      expect_equal(y.values(), rounded(a, b, sum_of), "add " + what);
      relu_forward(ctx(), x, y);
      expect_equal(y.values(), rounded(a, a, relu_of), "forward " + what);
      relu_backward(ctx(), x, z, y);
      expect_equal(y.values(), rounded(a, b, masked), "backward " + what);
    }
  }
}

/// Rows below and above those of a thread, a strip and the most strips; columns with and without packs, of one chunk
/// and several.
TEST_P(ElementwiseTest, ReluBackwardAlsoSumsTheColumnsOfTheGradient) {
  struct Case {
    int64_t rows, columns, offset;
  };
  for (const auto& [rows, columns, offset] : {Case{1, 1, 0},
                                              {4, 128, 0},
                                              {37, 10, 0},
                                              {1000, 64, 0},
                                              {333, 24, 0},
                                              {333, 24, 1},
                                              {70, 1000, 0},
                                              {5000, 6, 0},
                                              {30000, 8, 0}}) {
    const std::vector<float> y = random(rows * columns, 21), gradient = random(rows * columns, 22),
                             before = random_floats(columns, 23);
    const std::vector<float> expected = rounded(y, gradient, masked);
    std::vector<float> without_workspace;
    for (const int64_t workspace : {int64_t{0}, int64_t{8} << 20}) {
      device.ctx().release_workspace();
      if (workspace > 0) device.ctx().reserve_workspace(workspace);
      for (const GradMode mode : {GradMode::overwrite, GradMode::accumulate}) {
        const bool adds = mode == GradMode::accumulate;
        const std::string what =
            fmt::format("{} x {} at {}, workspace {}{}", rows, columns, offset, workspace, adds ? ", added" : "");
        const ShiftedStored from = shifted({rows, columns}, offset, y),
                            in_place = shifted({rows, columns}, offset, gradient);
        const GuardedTensor sums = adds ? device.guarded({columns}, before) : device.guarded({columns});
        relu_backward(ctx(), from, in_place, in_place, sums, mode);
        expect_equal(in_place.values(), expected, what);
        const std::vector<float> actual = device.values(sums);
        expect_rounded(actual,
                       reference_column_sums(rows, columns, expected,
                                             adds ? std::span<const float>(before) : std::span<const float>()),
                       dtype_name(dtype()) + (" sums of " + what));
        if (adds) continue;
        const GuardedTensor again = device.guarded({columns});
        relu_backward(ctx(), from, shifted({rows, columns}, offset, gradient), in_place, again);
        expect_same_bits(stored_bits(DType::f32, device.values(again)), stored_bits(DType::f32, actual),
                         what + " again");
      }
    }
  }
}

TEST_P(ElementwiseTest, SumsOfNoRowsAreZero) {
  const GuardedTensor none = guarded({0, 3}), sums = device.guarded({3}, std::vector<float>{1, 2, 3});
  relu_backward(ctx(), none, none, none, sums, GradMode::accumulate);
  EXPECT_EQ(device.values(sums), (std::vector<float>{1, 2, 3}));
  relu_backward(ctx(), none, none, none, sums);
  EXPECT_EQ(device.values(sums), std::vector<float>(3));
}

TEST_P(ElementwiseTest, AcceptsAnEmptyBatch) {
  const GuardedTensor none = guarded({0, 5});
  relu_forward(ctx(), none, none);
  add(ctx(), none, none, none);
  EXPECT_TRUE(values(none).empty());
}

TEST_P(ElementwiseTest, RefusesWrongArguments) {
  const Tensor x = tensor({4, 3}, random(12, 1)), y = empty({4, 3}), wrong = device.empty({4, 3}, other());
  EXPECT_THROW(relu_forward(ctx(), x, empty({3, 4})), ShapeError);
  EXPECT_THROW(relu_forward(ctx(), x, device.empty({4, 3}, DType::i32)), DtypeError);
  EXPECT_THROW(relu_forward(ctx(), x.rows(0, 3), x.rows(1, 4)), ShapeError);
  float host[12] = {};
  EXPECT_THROW(relu_forward(ctx(), x, View{host, {4, 3}, dtype(), DeviceId::host()}), DeviceError);
  EXPECT_THROW(relu_backward(ctx(), x, y, x), ShapeError);
  EXPECT_THROW(relu_backward(ctx(), x, y, y, device.empty({4})), ShapeError);
  EXPECT_THROW(relu_backward(ctx(), x, y, y, device.empty({3}, DType::i32)), DtypeError);
  EXPECT_THROW(add(ctx(), x, empty({12}), x), ShapeError);
  const std::string expected = std::string(" is ") + dtype_name(other()) + ", expected " + dtype_name(dtype());
  expect_error<DtypeError>("add: b" + expected, [&] { add(ctx(), x, wrong, x); });
  expect_error<DtypeError>("add: y" + expected, [&] { add(ctx(), x, x, wrong); });
  expect_error<DtypeError>("relu_forward: y" + expected, [&] { relu_forward(ctx(), x, wrong); });
  expect_error<DtypeError>("relu_backward: grad_y" + expected, [&] { relu_backward(ctx(), x, wrong, x); });
}

}  // namespace
}  // namespace vitrine::test
