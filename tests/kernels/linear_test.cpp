// SPDX-License-Identifier: Apache-2.0
// Linear layers: accumulated in f32, rounded once.
#include "kernels/linear.h"

#include <cmath>
#include <limits>
#include <span>

#include <fmt/format.h>

#include "kernels/cpu/portable.h"
#include "kernels/cpu/widened.h"
#include "kernels/gemm.h"
#include "runtime/error.h"
#include "tests/kernels/expect_error.h"
#include "tests/support/stored.h"

namespace vitrine::test::linear_test {
namespace {

void portable_forward(ExecContext& ctx, ConstView x, ConstView w, ConstView bias, bool relu, View y) {
  ctx.dispatch({"linear_forward", {x, w, bias}, {y}}, [=] { cpu::portable::linear_forward(x, w, bias, relu, y); });
}
void portable_backward_data(ExecContext& ctx, ConstView grad_y, ConstView w, View grad_x) {
  ctx.dispatch({"linear_backward_data", {grad_y, w}, {grad_x}},
               [=] { cpu::portable::linear_backward_data(grad_y, w, grad_x); });
}
void portable_backward_weight(ExecContext& ctx, ConstView x, ConstView grad_y, View grad_w, View grad_bias,
                              GradMode mode) {
  ctx.dispatch({"linear_backward_weight", {x, grad_y}, {grad_w, grad_bias}},
               [=] { cpu::portable::linear_backward_weight(x, grad_y, grad_w, grad_bias, mode); });
}
void widened_forward(ExecContext& ctx, ConstView x, ConstView w, ConstView bias, bool relu, View y) {
  ctx.dispatch({"linear_forward", {x, w, bias}, {y}},
               [=, &ctx] { cpu::widened::linear_forward(ctx, x, w, bias, relu, y); });
}

struct Path {
  const char* name;
  decltype(&vitrine::linear_forward) forward;
  decltype(&vitrine::linear_backward_data) backward_data;
  decltype(&vitrine::linear_backward_weight) backward_weight;
};
constexpr Path kDispatched = {"dispatched", &vitrine::linear_forward, &vitrine::linear_backward_data,
                              &vitrine::linear_backward_weight};
constexpr Path kFloatPaths[] = {kDispatched,
                                {"portable", &portable_forward, &portable_backward_data, &portable_backward_weight}};
constexpr Path kHalfPaths[] = {
    kDispatched, {"widened", &widened_forward, &vitrine::linear_backward_data, &vitrine::linear_backward_weight}};

class LinearTest : public DtypeTest {
 protected:
  /// On the CPU, the implementation without oneDNN is tested as well.
  std::span<const Path> paths() { return std::span(is_half() ? kHalfPaths : kFloatPaths).first(on_gpu() ? 1 : 2); }
  std::unique_ptr<TestDevice> device_of(int threads) {
    auto on = std::make_unique<TestDevice>(threads);
    if (is_half()) on->ctx().reserve_workspace(int64_t{4} << 20);
    return on;
  }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, LinearTest, ::testing::ValuesIn(kStorageTypes), dtype_test_name);

TEST_P(LinearTest, EqualsTheReference) {
  for (const int threads : {1, 2, 3}) {
    if (on_gpu() && threads > 1) continue;
    const auto on = device_of(threads);
    for (uint64_t seed = 0; seed < 32; ++seed) {
      const auto sizes = random_integers<int32_t>(3, seed, 1, seed % 4 == 0 ? 130 : 35);
      const int64_t n = sizes[0], in = sizes[1], out = sizes[2];
      const bool with_bias = seed % 2 == 0, relu = seed / 2 % 2 == 0, accumulate = seed % 3 == 0;
      const std::vector<float> x = random(n * in, seed + 100), w = random(out * in, seed + 200),
                               bias = random(out, seed + 300);
      const std::vector<float> grad_y = random(n * out, seed + 400);
      const std::vector<float> old_w = random_floats(out * in, seed + 500), old_bias = random_floats(out, seed + 600);
      const auto tensor_of = [&](const Shape& shape, const std::vector<float>& content) {
        return stored_tensor(*on, dtype(), shape, content);
      };
      const Tensor x_device = tensor_of({n, in}, x), w_device = tensor_of({out, in}, w),
                   grad_y_device = tensor_of({n, out}, grad_y);
      const Tensor bias_device = with_bias ? tensor_of({out}, bias) : Tensor();
      Reference expected = reference_gemm(false, true, n, out, in, x, w);
      if (with_bias) add_bias(expected, bias);
      if (relu) apply_relu(expected);
      const auto initial = [&](const std::vector<float>& old) {
        return accumulate ? std::span<const float>(old) : std::span<const float>();
      };
      for (const Path& path : paths()) {
        const std::string what = std::string(path.name) + " " + Shape{n, in, out}.str();
        const GuardedTensor y = on->guarded({n, out}, dtype()), grad_x = on->guarded({n, in}, dtype());
        path.forward(on->ctx(), x_device, w_device, bias_device, relu, y);
        expect_stored(stored_values(*on, y), expected, what + " y");
        path.backward_data(on->ctx(), grad_y_device, w_device, grad_x);
        expect_stored(stored_values(*on, grad_x), reference_gemm(false, false, n, in, out, grad_y, w),
                      what + " grad_x");

        const GuardedTensor grad_w = accumulate ? on->guarded(Shape{out, in}, old_w) : on->guarded(Shape{out, in});
        const GuardedTensor grad_bias = accumulate ? on->guarded(Shape{out}, old_bias) : on->guarded(Shape{out});
        path.backward_weight(on->ctx(), x_device, grad_y_device, grad_w, grad_bias,
                             accumulate ? GradMode::accumulate : GradMode::overwrite);
        expect_rounded(on->values(grad_w), reference_gemm(true, false, out, in, n, grad_y, x, initial(old_w)),
                       what + " grad_w");
        expect_rounded(on->values(grad_bias), reference_column_sums(n, out, grad_y, initial(old_bias)),
                       what + " grad_bias");
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(LinearTest, ABiasMayHaveAnyAlignment) {
  const int64_t n = 5, in = 7, out = 9;
  if (is_half()) ctx().reserve_workspace(int64_t{1} << 20);
  const std::vector<float> x = random(n * in, 1), w = random(out * in, 2), bias = random(out, 3);
  const Tensor x_device = tensor({n, in}, x), w_device = tensor({out, in}, w);
  Reference expected = reference_gemm(false, true, n, out, in, x, w);
  add_bias(expected, bias);
  apply_relu(expected);
  for (const int64_t offset : {0, 1, 3}) {
    const GuardedTensor y = guarded({n, out});
    linear_forward(ctx(), x_device, w_device, shifted({out}, offset, bias), true, y);
    // On a GPU a misaligned bias is added to the product after that was rounded, which is below 7.
    expect_rounded(values(y), expected, dtype_name(dtype()) + fmt::format(", bias at {}", offset), roundoff(),
                   underflow() + 7 * roundoff());
  }
}

TEST_P(LinearTest, ReluOnGpusKeepsNaN) {
  if (!on_gpu()) GTEST_SKIP() << "oneDNN's ReLU turns NaN into 0";
  if (is_half()) ctx().reserve_workspace(int64_t{1} << 20);
  const int64_t n = 3, in = 7, out = 9;
  std::vector<float> x(static_cast<size_t>(n * in), 1.0F);
  x[0] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> w(static_cast<size_t>(out * in), 1.0F), bias(static_cast<size_t>(out), 1.0F);
  for (const Path& path : paths()) {
    for (const bool with_bias : {false, true}) {
      const GuardedTensor y = guarded({n, out});
      const Tensor bias_device = tensor({out}, bias);
      path.forward(ctx(), tensor({n, in}, x), tensor({out, in}, w), with_bias ? ConstView(bias_device) : ConstView(),
                   true, y);
      const std::vector<float> v = unchecked_values(y);
      for (size_t i = 0; i < v.size(); ++i)
        EXPECT_EQ(std::isnan(v[i]), i < static_cast<size_t>(out)) << path.name << " " << i << " " << with_bias;
    }
  }
}

class LinearHalfTest : public LinearTest {};
INSTANTIATE_TEST_SUITE_P(Dtypes, LinearHalfTest, ::testing::ValuesIn(kHalfTypes), dtype_test_name);

TEST_P(LinearHalfTest, NamesTheWorkspaceThatItNeeds) {
  if (on_gpu()) GTEST_SKIP() << "a GPU multiplies f16 and bf16 directly";
  const Tensor x = empty({3, 4}), w = empty({2, 4}), y = empty({3, 2});
  for (const int64_t bytes : {kWidenedGemmWorkspaceBytes - 1, int64_t{0}}) {
    ctx().release_workspace();
    if (bytes > 0) ctx().reserve_workspace(bytes);
    expect_error<OutOfMemory>(
        std::string("linear_forward: ") + dtype_name(dtype()) + " needs a workspace of at least 65536 bytes, but ",
        [&] {
          widened_forward(ctx(), x, w, {}, false, y);
          device.synchronize();
        });
  }
}

TEST_P(LinearTest, OfNoInputsOrOutputsIsTheBiasOrZero) {
  if (on_gpu()) GTEST_SKIP() << "for libraries of CPU devices";
  if (is_half()) ctx().reserve_workspace(int64_t{1} << 20);
  const GuardedTensor y = guarded({3, 2}), grad_x = guarded({3, 4});
  linear_forward(ctx(), empty({3, 0}), empty({2, 0}), tensor({2}, {0.5F, -1.0F}), true, y);
  expect_equal(values(y), {0.5F, 0.0F, 0.5F, 0.0F, 0.5F, 0.0F}, "y");
  linear_backward_data(ctx(), empty({3, 0}), empty({0, 4}), grad_x);
  expect_equal(values(grad_x), std::vector<float>(12), "grad_x");
}

TEST_F(DeviceTest, LinearRefusesWrongArguments) {
  const Tensor x = device.empty({64, 784});
  const Tensor w = device.empty({256, 512});
  const Tensor y = device.empty({64, 256});
  expect_error<ShapeError>("linear_forward: x has shape (64, 784) but weight (256, 512) needs x of shape (N, 512)",
                           [&] { linear_forward(ctx(), x, w, {}, false, y); });
  expect_error<ShapeError>(
      "linear_backward_data: grad_y has shape (64, 784) but weight (256, 512) needs grad_y of shape (N, 256)",
      [&] { linear_backward_data(ctx(), x, w, y); });
  const Tensor good = device.empty({64, 512});
  expect_error<ShapeError>(
      "linear_backward_weight: grad_y has shape (32, 256) but x (64, 512) needs grad_y of shape (64, O)",
      [&] { linear_backward_weight(ctx(), good, y.rows(0, 32), w, {}, GradMode::overwrite); });
  expect_error<DeviceError>("linear_forward: y has no memory", [&] {
    linear_forward(ctx(), good, w, {}, false, View{nullptr, {64, 256}, DType::f32, ctx().device()});
  });
}

}  // namespace
}  // namespace vitrine::test::linear_test
