// SPDX-License-Identifier: Apache-2.0
// Parts of CUDA's convolutions of f16 and bf16 images that no operation shows by itself.
#include <algorithm>

#include "kernels/cast.h"
#include "kernels/cuda/cast.h"
#include "kernels/cuda/im2col_conv2d.h"
#include "runtime/cpu/half_lanes.h"
#include "tests/support/device_fixture.h"
#include "tests/support/shifted.h"

namespace vitrine::test::cuda_half_test {
namespace {

float rounded(float value, DType dtype) {
  return dtype == DType::f16 ? cpu::to_float(cpu::from_float<cpu::Half>(value))
                             : cpu::to_float(cpu::from_float<cpu::BFloat16>(value));
}

class CudaHalfTest : public DeviceTest, public ::testing::WithParamInterface<DType> {
 protected:
  void SetUp() override {
    if (!on_gpu()) GTEST_SKIP() << "needs a GPU";
  }
  std::vector<float> random_halves(int64_t count, uint64_t seed) {
    std::vector<float> values = random_floats(count, seed);
    for (float& v : values) v = rounded(v, GetParam());
    return values;
  }
  /// A tensor of halves that begins `offset` elements after an aligned address.
  Tensor halves(const Shape& shape, const std::vector<float>& values, int64_t offset = 0) {
    Tensor whole = device.empty({offset + shape.numel()}, GetParam());
    const Tensor part = whole.rows(offset, offset + shape.numel());
    cast(ctx(), device.tensor({shape.numel()}, values), part);
    return part.reshape(shape);
  }
  std::vector<float> values(const Tensor& halves) {
    const Tensor wide = device.empty(halves.shape());
    cast(ctx(), halves, wide);
    return device.values(ConstView(wide));
  }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, CudaHalfTest, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& of) { return dtype_name(of.param); });

TEST_P(CudaHalfTest, WidenedGradientsOverwriteOrAreAdded) {
  for (const int64_t count : {1, 7, 8, 1029, 5000}) {
    for (const int64_t offset : {0, 1, 4}) {
      const std::vector<float> from = random_halves(count, 3);
      const std::vector<float> old = random_floats(count, 4);
      const Tensor gradient = halves({count}, from, offset);
      const Shifted<> overwritten(device, {count}, offset % 3, old), added(device, {count}, offset % 3, old);
      const auto run = [&](const View& to, GradMode mode) {
        const ConstView before = mode == GradMode::accumulate ? ConstView(to) : ConstView{};
        ctx().dispatch(
            {"widen", {gradient, before}, {to}}, [] {}, [&] { cuda::widen(ctx(), gradient, to, mode); });
      };
      run(overwritten, GradMode::overwrite);
      run(added, GradMode::accumulate);
      std::vector<float> sum = old;
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += from[i];
      expect_same_bits(overwritten.values(), from);
      expect_same_bits(added.values(), sum);
    }
  }
}

/// However small the workspace: image lines that two pieces of the work reach are not rounded twice.
TEST_P(CudaHalfTest, TheGradientOfAPixelIsRoundedOnce) {
  struct Case {
    Shape x, w;
    Conv2dConfig config;
  };
  for (const Case& c : {Case{{3, 9, 8, 5}, {4, 3, 3, 5}, {1, 1}}, Case{{2, 13, 11, 8}, {6, 5, 3, 8}, {2, 1}},
                        Case{{2, 20, 9, 8}, {3, 2, 2, 8}, {5, 0}}}) {
    const Shape y = conv2d_output_shape(c.config, c.x, c.w);
    const std::vector<float> grad = random_halves(y.numel(), 1), weights = random_halves(c.w.numel(), 2);
    const auto backward = [&](const Tensor& grad_y, const Tensor& w, const Tensor& grad_x) {
      ctx().dispatch(
          {"conv2d_backward_data", {grad_y, w}, {grad_x}}, [] {},
          [&] { cuda::im2col_conv2d_backward_data(ctx(), c.config, grad_y, w, grad_x); });
    };
    ctx().reserve_workspace(int64_t{1} << 20);
    const Tensor wide = device.empty(c.x);
    backward(device.tensor(y, grad), device.tensor(c.w, weights), wide);
    std::vector<float> expected = device.values(ConstView(wide));
    for (float& v : expected) v = rounded(v, GetParam());
    const int64_t line_bytes = y[2] * c.w[1] * c.w[2] * c.w[3] * 4;
    const int64_t least_lines = std::min(y[1], (c.w[1] + c.config.stride - 1) / c.config.stride);
    for (const int64_t lines : {least_lines, least_lines + 1, 2 * least_lines, y[1], 2 * y[1]}) {
      ctx().reserve_workspace(lines * line_bytes);
      const Tensor grad_x = device.empty(c.x, GetParam());
      backward(halves(y, grad), halves(c.w, weights), grad_x);
      expect_same_bits(values(grad_x), expected, std::to_string(lines) + " lines");
    }
  }
}

}  // namespace
}  // namespace vitrine::test::cuda_half_test
