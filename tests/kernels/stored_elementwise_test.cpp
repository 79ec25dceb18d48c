// SPDX-License-Identifier: Apache-2.0
// add, ReLU and dropout of f16 and bf16: one operation in f32, rounded once, so that every bit is known.
#include <cmath>
#include <limits>

#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/relu.h"
#include "runtime/error.h"
#include "tests/kernels/expect_error.h"
#include "tests/kernels/shifted.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

constexpr int64_t kCounts[] = {1, 2, 7, 8, 9, 33, 1023, 16384 + 5, 70'001};

class StoredElementwiseTest : public StoredTest {
 protected:
  /// Random numbers with NaN, infinities, zeros, the largest and the smallest (a denormal) among them.
  std::vector<float> with_specials(int64_t count, uint64_t seed) {
    std::vector<float> x = random(count, seed);
    const float largest = dtype() == DType::f16 ? 65504.0F : 0x1.FEp127F;
    const auto smallest = static_cast<float>(2 * half_smallest(dtype()));
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const float specials[] = {std::numeric_limits<float>::quiet_NaN(), kInfinity, -kInfinity, 0.0F, -0.0F, largest, -largest, smallest, -smallest};
    for (size_t i = 0; i < x.size(); i += 5) x[i] = specials[(i / 5 + seed) % std::size(specials)];
    return x;
  }
  /// The f32 results as they are stored.
  template <class Function>
  std::vector<float> rounded(const std::vector<float>& a, const std::vector<float>& b, const Function& function) {
    std::vector<float> y(a.size());
    for (size_t i = 0; i < y.size(); ++i) y[i] = function(a[i], b[i]);
    return stored(dtype(), y);
  }
  void expect_equal(const std::vector<float>& actual, const std::vector<float>& expected, const std::string& what) {
    expect_close(actual, expected, 0, 0, std::string(dtype_name(dtype())) + " " + what);
  }
};

float sum_of(float a, float b) { return a + b; }
float relu_of(float x, float) { return std::isnan(x) ? x : std::max(x, 0.0F); }
float masked(float y, float gradient) { return y > 0 ? gradient : 0.0F; }

TEST_P(StoredElementwiseTest, AddRoundsTheSumOnce) {
  for (const int64_t count : kCounts) {
    const std::vector<float> a = with_specials(count, 1), b = with_specials(count, 3);
    const std::vector<float> expected = rounded(a, b, sum_of);
    const GuardedTensor y = guarded({count});
    add(ctx(), tensor({count}, a), tensor({count}, b), y);
    expect_equal(values(y), expected, "apart");
    const GuardedTensor over_a = guarded({count}, a);
    add(ctx(), over_a, tensor({count}, b), over_a);
    expect_equal(values(over_a), expected, "over a");
    const GuardedTensor over_b = guarded({count}, b);
    add(ctx(), tensor({count}, a), over_b, over_b);
    expect_equal(values(over_b), expected, "over b");
  }
}

TEST_P(StoredElementwiseTest, ReluKeepsWhatIsPositiveAndNan) {
  for (const int64_t count : kCounts) {
    const std::vector<float> x = with_specials(count, 5), gradient = with_specials(count, 7);
    const GuardedTensor y = guarded({count});
    relu_forward(ctx(), tensor({count}, x), y);
    expect_equal(values(y), rounded(x, x, relu_of), "forward");
    const GuardedTensor in_place = guarded({count}, x);
    relu_forward(ctx(), in_place, in_place);
    expect_equal(values(in_place), rounded(x, x, relu_of), "forward in place");

    const GuardedTensor grad_x = guarded({count});
    relu_backward(ctx(), tensor({count}, x), tensor({count}, gradient), grad_x);
    expect_equal(values(grad_x), rounded(x, gradient, masked), "backward");
    const GuardedTensor grad = guarded({count}, gradient);
    relu_backward(ctx(), tensor({count}, x), grad, grad);
    expect_equal(values(grad), rounded(x, gradient, masked), "backward in place");
  }
}

TEST_P(StoredElementwiseTest, AnyAlignmentWillDo) {
  for (const int64_t count : {1, 3, 8, 15, 1025, 4100}) {
    const std::vector<float> a = with_specials(count, 11), b = with_specials(count, 12);
    for (const auto& [i, j, k] : std::vector<std::array<int64_t, 3>>{{0, 0, 0}, {1, 1, 1}, {3, 3, 3}, {0, 1, 5}, {7, 2, 0}}) {
      const std::string what = std::to_string(count) + " at " + std::to_string(i) + ", " + std::to_string(j) + " and " + std::to_string(k);
      const Shifted<uint16_t> x(device, {count}, i, to_bits(dtype(), a), dtype());
      const Shifted<uint16_t> z(device, {count}, j, to_bits(dtype(), b), dtype());
      const Shifted<uint16_t> y(device, {count}, k, dtype());
      const auto content = [&] { return from_bits(dtype(), y.values()); };
      add(ctx(), x, z, y);
      expect_equal(content(), rounded(a, b, sum_of), "add " + what);
      relu_forward(ctx(), x, y);
      expect_equal(content(), rounded(a, a, relu_of), "forward " + what);
      relu_backward(ctx(), x, z, y);
      expect_equal(content(), rounded(a, b, masked), "backward " + what);
    }
  }
}

TEST_P(StoredElementwiseTest, DropoutDrawsTheMaskOfF32) {
  const DropoutConfig config{.p = 0.3F, .seed = 99, .step = 4, .layer = 2, .first_sample = 5};
  for (const auto& [samples, elements] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {3, 31}, {5, 64}, {2, 4099}, {40, 1030}}) {
    const Shape shape{samples, elements};
    std::vector<float> x = with_specials(shape.numel(), 13);
    const Tensor ones = device.tensor(shape, std::vector<float>(x.size(), 1.0F));
    const GuardedTensor mask = device.guarded(shape);
    dropout(ctx(), config, ones, mask);
    const std::vector<float> kept = device.values(mask);
    const float keep = 1.0F - config.p;
    const std::vector<float> expected = rounded(x, kept, [&](float v, float m) { return m > 0 ? v / keep : 0.0F; });
    const GuardedTensor y = guarded(shape);
    dropout(ctx(), config, tensor(shape, x), y);
    expect_equal(values(y), expected, "dropout " + shape.str());
    const GuardedTensor in_place = guarded(shape, x);
    dropout(ctx(), config, in_place, in_place);
    expect_equal(values(in_place), expected, "dropout in place " + shape.str());
    const Shifted<uint16_t> shifted(device, shape, 3, dtype());
    dropout(ctx(), config, Shifted<uint16_t>(device, shape, 1, to_bits(dtype(), x), dtype()), shifted);
    expect_equal(from_bits(dtype(), shifted.values()), expected, "dropout shifted " + shape.str());
  }
}

TEST_P(StoredElementwiseTest, TypesThatDifferAreRefused) {
  const Tensor x = device.empty({4}, dtype()), wide = device.empty({4});
  const std::string expected = std::string(" is f32, expected ") + dtype_name(dtype());
  expect_error<DtypeError>([&] { add(ctx(), x, wide, x); }, "add: b" + expected);
  expect_error<DtypeError>([&] { add(ctx(), x, x, wide); }, "add: y" + expected);
  expect_error<DtypeError>([&] { relu_forward(ctx(), x, wide); }, "relu_forward: y" + expected);
  expect_error<DtypeError>([&] { relu_backward(ctx(), x, wide, x); }, "relu_backward: grad_y" + expected);
  expect_error<DtypeError>([&] { dropout(ctx(), {}, x, wide); }, "dropout: y" + expected);
}

INSTANTIATE_TEST_SUITE_P(Stored, StoredElementwiseTest, ::testing::ValuesIn(kStoredTypes));

}  // namespace
}  // namespace vitrine::test
