// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

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
