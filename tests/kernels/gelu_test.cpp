// SPDX-License-Identifier: Apache-2.0
#include "kernels/gelu.h"

#include <cmath>
#include <limits>
#include <numbers>

#include "runtime/error.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

class GeluTest : public DtypeTest {};
INSTANTIATE_TEST_SUITE_P(Dtypes, GeluTest, ::testing::ValuesIn(kStorageTypes), dtype_test_name);

double distribution(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }
double density(double x) { return std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi); }

TEST_P(GeluTest, ForwardIsXTimesTheNormalDistribution) {
  for (const int64_t count : {1, 9, 1024 + 3, 5000}) {
    const std::vector<float> x = random(count, 1, -6.0F, 6.0F);
    std::vector<double> expected;
    for (const float v : x) expected.push_back(static_cast<double>(v) * distribution(static_cast<double>(v)));
    const GuardedTensor y = guarded({count});
    gelu_forward(ctx(), tensor({count}, x), y);
    // 1 + erf has a rounding error of 2^-24 where it is close to 0, as in PyTorch.
    expect_close(values(y), expected, 1e-6 + roundoff(), 6e-7 + underflow());
  }
}

TEST_P(GeluTest, BackwardIsTheDerivative) {
  const std::vector<float> x = random(3001, 2, -6.0F, 6.0F), gradient = random(3001, 3);
  std::vector<double> expected;
  for (size_t i = 0; i < x.size(); ++i) {
    const auto v = static_cast<double>(x[i]);
    expected.push_back(static_cast<double>(gradient[i]) * (distribution(v) + v * density(v)));
  }
  const GuardedTensor grad_x = guarded({3001});
  gelu_backward(ctx(), tensor({3001}, x), tensor({3001}, gradient), grad_x);
  expect_close(values(grad_x), expected, 1e-6 + roundoff(), 6e-7 + underflow());
}

TEST_P(GeluTest, AcceptsAnyAlignment) {
  const Shape shape{3, 43};
  const std::vector<float> x = random(shape.numel(), 3, -4, 4);
  const GuardedTensor expected = guarded(shape);
  gelu_forward(ctx(), tensor(shape, x), expected);
  const ShiftedStored y = shifted(shape, 3);
  gelu_forward(ctx(), shifted(shape, 1, x), y);
  expect_same_bits(y.bits(), bits(expected));
}

TEST_P(GeluTest, NanStaysNanAndInfinityStaysInfinity) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const GuardedTensor y = guarded({2});
  gelu_forward(ctx(), tensor({2}, {std::numeric_limits<float>::quiet_NaN(), kInfinity}), y);
  const std::vector<float> result = unchecked_values(y);
  EXPECT_TRUE(std::isnan(result[0]));
  EXPECT_EQ(result[1], kInfinity);
}

TEST_P(GeluTest, RefusesWhatDoesNotFit) {
  const Tensor x = tensor({4}, random(4, 1));
  EXPECT_THROW(gelu_forward(ctx(), x, empty({5})), ShapeError);
  EXPECT_THROW(gelu_forward(ctx(), x, device.empty({4}, other())), DtypeError);
  EXPECT_THROW(gelu_backward(ctx(), x, empty({4}), x), ShapeError);
}

}  // namespace
}  // namespace vitrine::test
