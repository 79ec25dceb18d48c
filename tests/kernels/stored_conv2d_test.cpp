// SPDX-License-Identifier: Apache-2.0
// Convolution of f16 and bf16: accumulated in f32, rounded once, in as little workspace as one image needs.
#include <cmath>
#include <iterator>
#include <limits>
#include <span>

#include "kernels/conv2d.h"
#include "kernels/cpu/widened.h"
#include "runtime/error.h"
#include "tests/kernels/expect_error.h"
#include "tests/support/shifted.h"
#include "tests/support/reference.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

void widened_forward(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias, View y) {
  ctx.dispatch({"conv2d_forward", {x, w, bias}, {y}}, [=, &ctx] { cpu::widened::conv2d_forward(ctx, config, x, w, bias, y); });
}
void widened_backward_data(ExecContext& ctx, const Conv2dConfig& config, ConstView grad_y, ConstView w, View grad_x) {
  ctx.dispatch({"conv2d_backward_data", {grad_y, w}, {grad_x}}, [=, &ctx] { cpu::widened::conv2d_backward_data(ctx, config, grad_y, w, grad_x); });
}
void widened_backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y, View grad_w, View grad_bias,
                             GradMode mode) {
  ctx.dispatch({"conv2d_backward_weight", {x, grad_y}, {grad_w, grad_bias}},
               [=, &ctx] { cpu::widened::conv2d_backward_weight(ctx, config, x, grad_y, grad_w, grad_bias, mode); });
}

/// Where the CPU has instructions for bf16, what serves elsewhere is tested beside them.
struct Path {
  const char* name;
  decltype(&vitrine::conv2d_forward) forward;
  decltype(&vitrine::conv2d_backward_data) backward_data;
  decltype(&vitrine::conv2d_backward_weight) backward_weight;
};
constexpr Path kAllPaths[] = {{"dispatched", &vitrine::conv2d_forward, &vitrine::conv2d_backward_data, &vitrine::conv2d_backward_weight},
                              {"widened", &widened_forward, &widened_backward_data, &widened_backward_weight}};
std::span<const Path> paths() { return {kAllPaths, on_gpu() ? size_t{1} : std::size(kAllPaths)}; }

struct Layer {
  Shape x, w;
  Conv2dConfig config;
};
const Layer kLayers[] = {
    {{2, 35, 43, 3}, {64, 11, 11, 3}, {4, 2, true}}, {{1, 9, 9, 64}, {48, 5, 5, 64}, {1, 2, true}},  {{3, 7, 7, 48}, {40, 3, 3, 48}, {1, 1, true}},
    {{5, 8, 8, 3}, {32, 3, 3, 3}, {1, 1, false}},    {{3, 9, 7, 16}, {24, 1, 1, 16}, {1, 0, false}}, {{4, 9, 9, 16}, {24, 1, 1, 16}, {2, 0, false}},
    {{2, 28, 28, 1}, {6, 5, 5, 1}, {1, 2, false}},   {{3, 6, 11, 7}, {9, 2, 3, 7}, {3, 2, true}},    {{1, 4, 4, 8}, {8, 4, 4, 8}, {1, 0, true}},
};

class StoredConv2dTest : public StoredTest {
 protected:
  void expect_stored(const std::vector<float>& actual, const Reference& expected, const std::string& what) {
    expect_rounded(actual, expected, std::string(dtype_name(dtype())) + " " + what, unit_roundoff(dtype()), half_smallest(dtype()));
  }

  void check(TestDevice& on, const Layer& layer, uint64_t seed) {
    const ConvolutionGeometry g{layer.x, layer.w, conv2d_output_shape(layer.config, layer.x, layer.w), layer.config.stride, layer.config.pad};
    const int64_t outputs = g.w[0];
    const std::vector<float> x = random(g.x.numel(), seed), w = random(g.w.numel(), seed + 1), bias = random(outputs, seed + 2);
    const std::vector<float> grad_y = random(g.y.numel(), seed + 3);
    const std::vector<float> old_w = random_floats(g.w.numel(), seed + 4), old_bias = random_floats(outputs, seed + 5);
    const Tensor x_device = stored_tensor(on, dtype(), g.x, x), w_device = stored_tensor(on, dtype(), g.w, w);
    const Tensor grad_y_device = stored_tensor(on, dtype(), g.y, grad_y);
    const bool with_bias = seed % 3 != 0;
    Reference y = reference_conv2d_forward(g, x, w);
    if (with_bias) add_bias(y, bias);
    if (layer.config.relu) apply_relu(y);
    const Reference grad_x = reference_conv2d_backward_data(g, grad_y, w);
    for (const Path& path : paths()) {
      const std::string what = std::string(path.name) + " " + g.x.str() + " * " + g.w.str();
      const GuardedTensor y_device = on.guarded(g.y, dtype()), grad_x_device = on.guarded(g.x, dtype());
      path.forward(on.ctx(), layer.config, x_device, w_device, with_bias ? stored_tensor(on, dtype(), {outputs}, bias) : Tensor(), y_device);
      expect_stored(stored_values(on, y_device), y, what + " y");
      path.backward_data(on.ctx(), layer.config, grad_y_device, w_device, grad_x_device);
      expect_stored(stored_values(on, grad_x_device), grad_x, what + " grad_x");
      for (const bool accumulate : {false, true}) {
        const GuardedTensor grad_w = accumulate ? on.guarded(g.w, old_w) : on.guarded(g.w);
        const GuardedTensor grad_bias = accumulate ? on.guarded({outputs}, old_bias) : on.guarded({outputs});
        const auto initial = [&](const std::vector<float>& old) { return accumulate ? std::span<const float>(old) : std::span<const float>(); };
        path.backward_weight(on.ctx(), layer.config, x_device, grad_y_device, grad_w, with_bias ? grad_bias.view : View{},
                             accumulate ? GradMode::accumulate : GradMode::overwrite);
        // A GPU's library may round the gradient to the storage type before it is added to what is there, of up to 1.
        const double rounded = on_gpu() ? unit_roundoff(dtype()) : 0;
        expect_rounded(on.values(grad_w), reference_conv2d_backward_weight(g, x, grad_y, initial(old_w)), what + " grad_w", rounded, rounded);
        if (!with_bias) continue;
        expect_rounded(on.values(grad_bias), reference_column_sums(g.y.numel() / outputs, outputs, grad_y, initial(old_bias)), what + " grad_bias");
      }
    }
  }
};

TEST_P(StoredConv2dTest, EqualsTheReference) {
  for (const int threads : {1, 2, 3}) {
    if (on_gpu() && threads > 1) continue;
    TestDevice on(threads);
    on.ctx().reserve_workspace(int64_t{16} << 20);
    uint64_t seed = 10;
    for (const Layer& layer : kLayers) check(on, layer, ++seed);
  }
}

int64_t aligned(int64_t count) { return (count * 4 + 255) / 256 * 256; }

/// What one image and the weights take in f32, and a row of columns.
int64_t least_bytes(const Layer& layer, bool backward_weight, bool with_bias) {
  const Shape y = conv2d_output_shape(layer.config, layer.x, layer.w);
  const int64_t weights = backward_weight ? 0 : aligned(layer.w.numel()) + (with_bias ? aligned(layer.w[0]) : 0);
  const int64_t images = aligned(layer.x.with_dim0(1).numel()) + aligned(y.with_dim0(1).numel());
  return weights + images + layer.w.numel() / layer.w[0] * 4;
}

TEST_P(StoredConv2dTest, ChunksOfImagesOfAnySizeWillDo) {
  if (on_gpu()) GTEST_SKIP() << "a GPU convolves f16 and bf16 directly";
  const Layer layer{{7, 9, 8, 5}, {6, 3, 3, 5}, {1, 1, true}};
  const int64_t least = least_bytes(layer, false, true);
  for (const int64_t more : {0, 5000, 9000, 20'000, 100'000}) {
    ctx().reserve_workspace(least + more);
    check(device, layer, static_cast<uint64_t>(100 + more));
  }
}

TEST_P(StoredConv2dTest, TooLittleWorkspaceIsSaidWithTheBytesNeeded) {
  if (on_gpu()) GTEST_SKIP() << "a GPU convolves f16 and bf16 directly";
  const Layer layer{{2, 9, 8, 5}, {7, 3, 3, 5}, {1, 1, false}};
  const Shape y_shape = conv2d_output_shape(layer.config, layer.x, layer.w);
  const Tensor x = tensor(layer.x, random(layer.x.numel(), 1)), w = tensor(layer.w, random(layer.w.numel(), 2));
  const Tensor grad_y = tensor(y_shape, random(y_shape.numel(), 3));
  const Tensor y = device.empty(y_shape, dtype()), grad_x = device.empty(layer.x, dtype()), grad_w = device.empty(layer.w);
  const auto refused = [&](const char* name, bool backward_weight, const auto& pass) {
    const int64_t least = least_bytes(layer, backward_weight, false);
    ctx().release_workspace();
    ctx().reserve_workspace(least - 1);
    expect_error<OutOfMemory>(
        [&] {
          pass();
          device.synchronize();
        },
        std::string(name) + ": an image of x (2, 9, 8, 5) and w (7, 3, 3, 5) need a workspace of at least " + std::to_string(least) + " bytes, but " +
            std::to_string(least - 1) + " bytes are reserved");
    ctx().release_workspace();
    ctx().reserve_workspace(least);
    pass();
    device.synchronize();
  };
  refused("conv2d_forward", false, [&] { widened_forward(ctx(), layer.config, x, w, {}, y); });
  refused("conv2d_backward_data", false, [&] { widened_backward_data(ctx(), layer.config, grad_y, w, grad_x); });
  refused("conv2d_backward_weight", true, [&] { widened_backward_weight(ctx(), layer.config, x, grad_y, grad_w, {}, GradMode::overwrite); });
}

/// AlexNet's first layer in the arena that a CPU device has unless told otherwise; all images are alike.
TEST_P(StoredConv2dTest, AlexNetsFirstLayerFitsTheDefaultWorkspace) {
  ctx().reserve_workspace(int64_t{32} << 20);
  constexpr int64_t kImages = 64;
  const Layer layer{{kImages, 227, 227, 3}, {64, 11, 11, 3}, {4, 2, false}};
  const Shape y_shape = conv2d_output_shape(layer.config, layer.x, layer.w);
  const ConvolutionGeometry one{layer.x.with_dim0(1), layer.w, y_shape.with_dim0(1), layer.config.stride, layer.config.pad};
  const std::vector<float> w = random(layer.w.numel(), 1), image = random(one.x.numel(), 2), gradient = random(one.y.numel(), 3);
  const auto repeated = [](const std::vector<float>& values) {
    std::vector<float> all;
    for (int64_t n = 0; n < kImages; ++n) all.insert(all.end(), values.begin(), values.end());
    return all;
  };
  const Tensor x = tensor(layer.x, repeated(image));
  const GuardedTensor y = guarded(y_shape), grad_w = device.guarded(layer.w);
  conv2d_forward(ctx(), layer.config, x, tensor(layer.w, w), {}, y);
  const Reference expected = reference_conv2d_forward(one, image, w);
  const std::vector<float> all = values(y);
  const int64_t size = one.y.numel();
  for (const int64_t n : {int64_t{0}, kImages / 2, kImages - 1}) {
    expect_stored({all.begin() + n * size, all.begin() + (n + 1) * size}, expected, "image " + std::to_string(n));
  }

  conv2d_backward_weight(ctx(), layer.config, x, tensor(y_shape, repeated(gradient)), grad_w, {}, GradMode::overwrite);
  Reference sum = reference_conv2d_backward_weight(one, image, gradient);
  for (double& v : sum.values) v *= kImages;
  for (double& m : sum.magnitudes) m *= kImages;
  sum.terms *= kImages;
  expect_rounded(device.values(grad_w), sum, "grad_w", on_gpu() ? unit_roundoff(dtype()) : 0);
}

TEST_P(StoredConv2dTest, NonFiniteNumbersPassOnToTheirWindowsAlone) {
  ctx().reserve_workspace(int64_t{16} << 20);
  const Layer layer{{2, 8, 8, 16}, {8, 3, 3, 16}, {1, 0, false}};
  const Shape y_shape = conv2d_output_shape(layer.config, layer.x, layer.w);
  std::vector<float> x(static_cast<size_t>(layer.x.numel()), 1.0F);
  x[0] = std::numeric_limits<float>::quiet_NaN();
  x.back() = std::numeric_limits<float>::infinity();
  const std::vector<float> w(static_cast<size_t>(layer.w.numel()), 1.0F);
  for (const Path& path : paths()) {
    const GuardedTensor y = guarded(y_shape);
    path.forward(ctx(), layer.config, tensor(layer.x, x), tensor(layer.w, w), {}, y);
    const std::vector<float> v = from_bits(dtype(), device.values<uint16_t>(ConstView(y.view)));
    for (size_t i = 0; i < v.size(); ++i) {
      if (i < 8) {
        EXPECT_TRUE(std::isnan(v[i])) << path.name << " " << i;
      } else {
        EXPECT_EQ(v[i], i < v.size() - 8 ? 144.0F : std::numeric_limits<float>::infinity()) << path.name << " " << i;
      }
    }
  }
}

TEST_P(StoredConv2dTest, AnyAlignmentAndEveryTimeTheSameBits) {
  ctx().reserve_workspace(int64_t{16} << 20);
  const Layer layer{{3, 11, 9, 13}, {17, 3, 3, 13}, {1, 1, true}};
  const Shape y_shape = conv2d_output_shape(layer.config, layer.x, layer.w);
  const std::vector<float> x = random(layer.x.numel(), 1), w = random(layer.w.numel(), 2), bias = random(17, 3);
  const GuardedTensor y = guarded(y_shape);
  conv2d_forward(ctx(), layer.config, tensor(layer.x, x), tensor(layer.w, w), tensor({17}, bias), y);
  const ConvolutionGeometry g{layer.x, layer.w, y_shape, 1, 1};
  Reference expected = reference_conv2d_forward(g, x, w);
  add_bias(expected, bias);
  apply_relu(expected);
  for (const int64_t offset : {0, 1, 3}) {
    const auto at = [&](const Shape& shape, const std::vector<float>& content) {
      return Shifted<uint16_t>(device, shape, offset, to_bits(dtype(), content), dtype());
    };
    const Shifted<uint16_t> x_device = at(layer.x, x), w_device = at(layer.w, w), bias_device = at({17}, bias), out(device, y_shape, offset, dtype());
    conv2d_forward(ctx(), layer.config, x_device, w_device, bias_device, out);
    expect_stored(from_bits(dtype(), out.values()), expected, "shifted by " + std::to_string(offset));
    if (offset > 0) continue;
    EXPECT_EQ(out.values(), device.values<uint16_t>(y)) << "not the same bits again";
  }
}

INSTANTIATE_TEST_SUITE_P(Stored, StoredConv2dTest, ::testing::ValuesIn(kStoredTypes), stored_type_name);

}  // namespace
}  // namespace vitrine::test
