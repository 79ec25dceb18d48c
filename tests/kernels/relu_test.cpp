// SPDX-License-Identifier: Apache-2.0
#include "kernels/relu.h"

#include <cmath>
#include <limits>

#include "kernels/elementwise.h"
#include "runtime/error.h"
#include "tests/kernels/shifted.h"
#include "tests/support/device_fixture.h"

namespace vitrine::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class ReluTest : public DeviceTest {};

std::vector<float> with_specials(int64_t count, uint64_t seed) {
  std::vector<float> values = random_floats(count, seed);
  const std::vector<float> specials{kNan, kInfinity, -kInfinity, 0.0F, -0.0F};
  for (size_t i = 0; i < values.size(); i += 7) values[i] = specials[(i / 7 + seed) % specials.size()];
  return values;
}

std::vector<float> relu_of(std::vector<float> x) {
  for (float& v : x) v = std::isnan(v) ? v : std::max(v, 0.0F);
  return x;
}

TEST_F(ReluTest, ForwardIsTheMaximumWithZeroAndKeepsNan) {
  for (const int64_t count : {1, 7, 33, 16384 + 5, 70001}) {
    const std::vector<float> x = with_specials(count, static_cast<uint64_t>(count));
    const GuardedTensor y = device.guarded({count});
    relu_forward(ctx(), device.tensor({count}, x), y);
    expect_close(device.values(y), relu_of(x), 0, 0, "out of place");
    const GuardedTensor in_place = device.guarded({count}, x);
    relu_forward(ctx(), in_place, in_place);
    expect_close(device.values(in_place), relu_of(x), 0, 0, "in place");
  }
}

TEST_F(ReluTest, BackwardPassesTheGradientWhereTheOutputIsPositive) {
  for (const int64_t count : {1, 15, 40003}) {
    const std::vector<float> y = relu_of(random_floats(count, 1 + static_cast<uint64_t>(count)));
    const std::vector<float> grad_y = with_specials(count, 2);
    std::vector<float> expected(y.size());
    for (size_t i = 0; i < y.size(); ++i) expected[i] = y[i] > 0 ? grad_y[i] : 0.0F;
    const Tensor y_device = device.tensor({count}, y);
    const GuardedTensor grad_x = device.guarded({count});
    relu_backward(ctx(), y_device, device.tensor({count}, grad_y), grad_x);
    expect_close(device.values(grad_x), expected, 0, 0, "out of place");
    const GuardedTensor in_place = device.guarded({count}, grad_y);
    relu_backward(ctx(), y_device, in_place, in_place);
    expect_close(device.values(in_place), expected, 0, 0, "in place");
  }
}

TEST_F(ReluTest, AddIsElementwiseAndMayOverwriteEitherArgument) {
  for (const int64_t count : {1, 19, 50021}) {
    const std::vector<float> a = with_specials(count, 3);
    const std::vector<float> b = random_floats(count, 4);
    std::vector<float> expected(a.size());
    for (size_t i = 0; i < a.size(); ++i) expected[i] = a[i] + b[i];
    const GuardedTensor y = device.guarded({count});
    add(ctx(), device.tensor({count}, a), device.tensor({count}, b), y);
    expect_close(device.values(y), expected, 0, 0, "apart");
    const GuardedTensor over_a = device.guarded({count}, a);
    add(ctx(), over_a, device.tensor({count}, b), over_a);
    expect_close(device.values(over_a), expected, 0, 0, "over a");
    const GuardedTensor over_b = device.guarded({count}, b);
    add(ctx(), device.tensor({count}, a), over_b, over_b);
    expect_close(device.values(over_b), expected, 0, 0, "over b");
  }
}

/// Lengths around those of packs and tiles, at every alignment of each argument.
TEST_F(ReluTest, AnyLengthAndAlignmentWillDo) {
  for (const int64_t count : {1, 2, 3, 4, 5, 7, 8, 1023, 4100}) {
    const std::vector<float> a = with_specials(count, 11);
    const std::vector<float> b = random_floats(count, 12);
    std::vector<float> sum(a.size());
    std::vector<float> masked(a.size());
    for (size_t i = 0; i < a.size(); ++i) {
      sum[i] = a[i] + b[i];
      masked[i] = a[i] > 0 ? b[i] : 0.0F;
    }
    for (const int64_t offset : {0, 1, 2, 3}) {
      for (const int64_t other : {offset, (offset + 1) % 4}) {
        const Shifted<> x(device, {count}, offset, a);
        const Shifted<> z(device, {count}, other, b);
        const Shifted<> y(device, {count}, offset);
        const std::string what = std::to_string(count) + " at " + std::to_string(offset) + " and " + std::to_string(other);
        relu_forward(ctx(), z, y);
        expect_close(y.values(), relu_of(b), 0, 0, what);
        relu_backward(ctx(), x, z, y);
        expect_close(y.values(), masked, 0, 0, what);
        add(ctx(), x, z, y);
        expect_close(y.values(), sum, 0, 0, what);
      }
    }
  }
}

TEST_F(ReluTest, NoSampleIsNoWork) {
  const GuardedTensor none = device.guarded({0, 5});
  relu_forward(ctx(), none, none);
  add(ctx(), none, none, none);
  EXPECT_TRUE(device.values(none).empty());
}

TEST_F(ReluTest, WrongArgumentsAreRefused) {
  const Tensor x = device.random({4, 3}, 1);
  EXPECT_THROW(relu_forward(ctx(), x, device.empty({3, 4})), ShapeError);
  EXPECT_THROW(relu_forward(ctx(), x, device.empty({4, 3}, DType::i32)), DtypeError);
  EXPECT_THROW(relu_forward(ctx(), x.rows(0, 3), x.rows(1, 4)), ShapeError);
  float host[12] = {};
  EXPECT_THROW(relu_forward(ctx(), x, View{host, {4, 3}, DType::f32, DeviceId::host()}), DeviceError);
  EXPECT_THROW(relu_backward(ctx(), x, device.random({4, 3}, 2), x), ShapeError);
  EXPECT_THROW(add(ctx(), x, device.empty({12}), x), ShapeError);
}

}  // namespace
}  // namespace vitrine::test
