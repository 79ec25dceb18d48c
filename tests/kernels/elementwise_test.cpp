// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise.h"

#include <span>

#include <fmt/format.h>

#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

class ReluTest : public DtypeTest {};
INSTANTIATE_TEST_SUITE_P(Dtypes, ReluTest, ::testing::ValuesIn(kStorageTypes), dtype_test_name);

/// Rows below and above those of a thread, a strip and the most strips; columns with and without packs, of one chunk
/// and several.
TEST_P(ReluTest, BackwardAlsoSumsTheColumnsOfTheGradient) {
  struct Sums {
    int64_t rows, columns, offset;
  };
  for (const auto& [rows, columns, offset] :
       {Sums{1, 1, 0}, Sums{4, 128, 0}, Sums{37, 10, 0}, Sums{1000, 64, 0}, Sums{333, 24, 0}, Sums{333, 24, 1},
        Sums{70, 1000, 0}, Sums{5000, 6, 0}, Sums{30000, 8, 0}}) {
    const std::vector<float> y = random(rows * columns, 21), gradient = random(rows * columns, 22),
                             before = random_floats(columns, 23);
    std::vector<float> expected = gradient;
    for (size_t i = 0; i < y.size(); ++i) expected[i] = y[i] > 0 ? gradient[i] : 0.0F;
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

class GeluTest : public DtypeTest {};
INSTANTIATE_TEST_SUITE_P(Dtypes, GeluTest, ::testing::ValuesIn(kStorageTypes), dtype_test_name);

TEST_P(GeluTest, GivesTheSameBitsAtAnyAlignment) {
  const Shape shape{3, 43};
  const std::vector<float> x = random(shape.numel(), 3, -4, 4);
  const GuardedTensor expected = guarded(shape);
  gelu_forward(ctx(), tensor(shape, x), expected);
  const ShiftedStored y = shifted(shape, 3);
  gelu_forward(ctx(), shifted(shape, 1, x), y);
  expect_same_bits(y.bits(), bits(expected));
}

}  // namespace

}  // namespace vitrine::test
