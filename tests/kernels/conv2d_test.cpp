// SPDX-License-Identifier: Apache-2.0
// Convolution: accumulated in f32, rounded once.
#include "kernels/conv2d.h"

#include <cmath>
#include <limits>
#include <span>

#include "kernels/cpu/onednn.h"
#include "kernels/cpu/portable.h"
#include "kernels/cpu/widened.h"
#include "runtime/error.h"
#include "tests/kernels/conv2d_cases.h"
#include "tests/kernels/expect_error.h"
#include "tests/support/seeds.h"

namespace vitrine::test::conv2d_test {
namespace {

using Implementation = void (*)(ExecContext& ctx, const Conv2dCall& call);
void portable(ExecContext& ctx, const Conv2dCall& call) { cpu::portable::conv2d(ctx, ctx.workspace(), call); }

template <Implementation conv2d>
void forward(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias, View y) {
  const Conv2dCall call{Conv2dPass::forward, config, read_only(x), read_only(w), read_only(bias), y};
  ctx.dispatch({"conv2d_forward", {x, w, bias}, {y}}, [=, &ctx] { conv2d(ctx, call); });
}
template <Implementation conv2d>
void backward_data(ExecContext& ctx, const Conv2dConfig& config, ConstView grad_y, ConstView w, View grad_x) {
  const Conv2dCall call{Conv2dPass::backward_data, config, grad_x, read_only(w), {}, read_only(grad_y)};
  ctx.dispatch({"conv2d_backward_data", {grad_y, w}, {grad_x}}, [=, &ctx] { conv2d(ctx, call); });
}
template <Implementation conv2d>
void backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y, View grad_w,
                     View grad_bias, GradMode mode) {
  const Conv2dCall call{Conv2dPass::backward_weight, config, read_only(x), grad_w, grad_bias, read_only(grad_y), mode};
  ctx.dispatch({"conv2d_backward_weight", {x, grad_y}, {grad_w, grad_bias}}, [=, &ctx] { conv2d(ctx, call); });
}

template <Implementation conv2d>
constexpr Conv2dPath path(const char* name) {
  return {name, &forward<conv2d>, &backward_data<conv2d>, &backward_weight<conv2d>};
}
constexpr Conv2dPath kFloatPaths[] = {kDispatched, path<portable>("portable")};
constexpr Conv2dPath kHalfPaths[] = {kDispatched, path<cpu::widened::conv2d>("widened")};
/// The operation itself, and the implementation that it may hide: without oneDNN on the CPU, without cuDNN on GPUs.
std::span<const Conv2dPath> paths(DType dtype) {
  if (on_gpu()) return gpu_conv2d_paths();
  return dtype == DType::f32 ? kFloatPaths : kHalfPaths;
}
void check(TestDevice& device, const Conv2dCase& c, bool with_bias) {
  for (const Conv2dPath& path : paths(c.dtype)) {
    check_forward(device, c, path, with_bias);
    check_backward(device, c, path, GradMode::overwrite, with_bias);
    check_backward(device, c, path, GradMode::accumulate, with_bias);
  }
}

class Conv2dTest : public DtypeTest {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Conv2dTest, ::testing::ValuesIn(kStorageTypes), dtype_test_name);

TEST_P(Conv2dTest, EqualsTheReferenceOnRandomShapes) {
  for (const int threads : {1, 2, 3}) {
    if (on_gpu() && threads > 1) continue;
    TestDevice on(threads);
    on.ctx().reserve_workspace(kWorkspace);
    for (uint64_t seed = 0; seed < (is_half() ? 8 : kSeedStep > 1 ? 16 : 40); seed += kSeedStep) {
      const Conv2dCase c = random_case(on, dtype(), seed);
      for (const Conv2dPath& path : paths(dtype())) {
        check_forward(on, c, path, seed % 3 != 0);
        check_backward(on, c, path, seed % 2 == 0 ? GradMode::overwrite : GradMode::accumulate, seed % 3 != 1);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(Conv2dTest, EqualsTheReferenceOnShapesOfModels) {
  const struct {
    Shape x, w;
    Conv2dConfig config;
  } cases[] = {
      {{2, 35, 43, 3}, {64, 11, 11, 3}, {4, 2, true}}, {{1, 9, 9, 64}, {48, 5, 5, 64}, {1, 2, true}},
      {{3, 7, 7, 48}, {40, 3, 3, 48}, {1, 1, true}},   {{5, 8, 8, 3}, {32, 3, 3, 3}, {1, 1, false}},
      {{3, 9, 7, 16}, {24, 1, 1, 16}, {1, 0, false}},  {{4, 9, 9, 16}, {24, 1, 1, 16}, {2, 0, false}},
      {{2, 28, 28, 1}, {6, 5, 5, 1}, {1, 2, false}},   {{3, 6, 11, 7}, {9, 2, 3, 7}, {3, 2, true}},
      {{1, 4, 4, 8}, {8, 4, 4, 8}, {1, 0, true}},
  };
  for (const int threads : {1, 2, 3}) {
    if (on_gpu() && threads > 1) continue;
    TestDevice on(threads);
    on.ctx().reserve_workspace(kWorkspace);
    uint64_t seed = 10;
    for (const auto& shape : cases) {
      ++seed;
      check(on, make_case(on, dtype(), shape.x, shape.w, shape.config, seed), !is_half() || seed % 3 != 0);
      if (HasFailure()) return;
    }
  }
}

TEST_P(Conv2dTest, GivesTheSameBitsEveryTime) {
  ctx().reserve_workspace(kWorkspace);
  const Conv2dCase c = make_case(device, dtype(), {3, 17, 13, 16}, {24, 3, 3, 16}, {1, 1, true}, 5);
  for (const Conv2dPath& path : paths(dtype())) {
    std::vector<uint32_t> first[3];
    for (int repeat = 0; repeat < 5; ++repeat) {
      const GuardedTensor y = guarded(c.g.y), grad_x = guarded(c.g.x), grad_w = device.guarded(c.g.w);
      path.forward(ctx(), c.config, c.x_device, c.w_device, c.bias_device, y);
      path.backward_data(ctx(), c.config, c.grad_y_device, c.w_device, grad_x);
      path.backward_weight(ctx(), c.config, c.x_device, c.grad_y_device, grad_w, {}, GradMode::overwrite);
      const std::vector<uint32_t> results[3] = {bits(y), bits(grad_x), bits(grad_w)};
      for (int i = 0; i < 3; ++i) {
        if (repeat == 0) first[i] = results[i];
        expect_same_bits(results[i], first[i], path.name);
      }
    }
  }
}

TEST_P(Conv2dTest, AcceptsAnyAlignment) {
  ctx().reserve_workspace(kWorkspace);
  const Conv2dCase c = make_case(device, dtype(), {3, 11, 9, 13}, {17, 3, 3, 13}, {1, 1, true}, 1);
  const GuardedTensor y = guarded(c.g.y);
  conv2d_forward(ctx(), c.config, c.x_device, c.w_device, c.bias_device, y);
  Reference expected = reference_conv2d_forward(c.g, c.x, c.w);
  add_bias(expected, c.bias);
  apply_relu(expected);
  for (const int64_t offset : {0, 1, 3}) {
    const ShiftedStored out = shifted(c.g.y, offset);
    conv2d_forward(ctx(), c.config, shifted(c.g.x, offset, c.x), shifted(c.g.w, offset, c.w),
                   shifted({17}, offset, c.bias), out);
    expect_stored(out.values(), expected, "shifted by " + std::to_string(offset));
    if (offset == 0) expect_same_bits(out.bits(), bits(y), "repeated");
  }
}

TEST_P(Conv2dTest, PropagatesNonFiniteNumbersToTheirWindowsOnly) {
  ctx().reserve_workspace(kWorkspace);
  const Shape x_shape{2, 8, 8, 16}, w_shape{8, 3, 3, 16};
  std::vector<float> x(static_cast<size_t>(x_shape.numel()), 1.0F);
  x[0] = std::numeric_limits<float>::quiet_NaN();
  x.back() = std::numeric_limits<float>::infinity();
  const std::vector<float> w(static_cast<size_t>(w_shape.numel()), 1.0F);
  for (const Conv2dPath& path : paths(dtype())) {
    for (const bool relu : {false, true}) {
      if (relu && !on_gpu()) continue;  // oneDNN's ReLU turns NaN into 0
      const GuardedTensor y = guarded({2, 6, 6, 8});
      path.forward(ctx(), {.relu = relu}, tensor(x_shape, x), tensor(w_shape, w), {}, y);
      const std::vector<float> v = unchecked_values(y);
      for (size_t i = 0; i < v.size(); ++i) {
        if (i < 8) {
          EXPECT_TRUE(std::isnan(v[i])) << path.name << " " << i << " " << relu;
        } else {
          EXPECT_EQ(v[i], i < v.size() - 8 ? 144.0F : std::numeric_limits<float>::infinity()) << path.name << " " << i;
        }
      }
    }
  }
}

TEST_F(DeviceTest, Conv2dRunsInASmallWorkspace) {
  // One row of columns for each of one or two threads, then a few more; GPUs need whole output lines, of 8 rows of
  // columns.
  const Shape x{2, 9, 8, 5}, w{7, 3, 3, 5};
  for (const int64_t rows : {1, 2, 3, 11}) {
    ctx().reserve_workspace(rows * (on_gpu() ? 8 : 1) * 3 * 3 * 5 * 4);
    const Conv2dCase c = make_case(device, DType::f32, x, w, {1, 1, true}, static_cast<uint64_t>(rows));
    for (const Conv2dPath& path : paths(DType::f32)) {
      check_forward(device, c, path, true);
      check_backward(device, c, path, GradMode::accumulate, true);
    }
  }
}

TEST_F(DeviceTest, Conv2dCutsTheWorkAtAnyLine) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    const Conv2dCase c = random_case(device, DType::f32, seed);
    const int64_t line_bytes = c.g.y[2] * c.g.w.numel() / c.g.w[0] * 4;
    const int64_t lines[] = {1, 2, 3, c.g.y[1], c.g.y[1] + 1};
    ctx().reserve_workspace(lines[seed % 5] * line_bytes);
    for (const Conv2dPath& path : paths(DType::f32)) {
      check_forward(device, c, path, seed % 3 != 0);
      check_backward(device, c, path, seed % 2 == 0 ? GradMode::overwrite : GradMode::accumulate, seed % 3 != 1);
      if (HasFailure()) return;
    }
  }
}

TEST_F(DeviceTest, Conv2dWithoutWorkspaceNamesTheBytesNeeded) {
  const Conv2dCase c = make_case(device, DType::f32, {2, 9, 8, 5}, {7, 3, 3, 5}, {1, 1, false}, 1);
  const Tensor y = device.empty(c.g.y);
  expect_error<OutOfMemory>(
      std::string("conv2d_forward: x (2, 9, 8, 5) with a window of 3 x 3 needs a workspace of at least ") +
          (on_gpu() ? "1440" : "180") + " bytes, but 0 bytes are reserved",
      [&] {
        // On GPUs, cuDNN may need no workspace.
        paths(DType::f32)[on_gpu() ? 1 : 0].forward(ctx(), c.config, c.x_device, c.w_device, {}, y);
        device.synchronize();
      });
}

class Conv2dHalfTest : public Conv2dTest {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Conv2dHalfTest, ::testing::ValuesIn(kHalfTypes), dtype_test_name);

struct Layer {
  Shape x, w;
  Conv2dConfig config;
};

int64_t aligned(int64_t count) { return (count * 4 + 255) / 256 * 256; }

/// Bytes of one image and the weights in f32, and of a row of columns.
int64_t least_bytes(const Layer& layer, bool backward_weight, bool with_bias) {
  const Shape y = conv2d_output_shape(layer.config, layer.x, layer.w);
  const int64_t weights = backward_weight ? 0 : aligned(layer.w.numel()) + (with_bias ? aligned(layer.w[0]) : 0);
  const int64_t images = aligned(layer.x.with_dim0(1).numel()) + aligned(y.with_dim0(1).numel());
  return weights + images + layer.w.numel() / layer.w[0] * 4;
}

TEST_P(Conv2dHalfTest, AcceptsAnyWorkspaceAboveTheLeast) {
  if (on_gpu()) GTEST_SKIP() << "a GPU convolves f16 and bf16 directly";
  const Layer layer{{7, 9, 8, 5}, {6, 3, 3, 5}, {1, 1, true}};
  const int64_t least = least_bytes(layer, false, true);
  for (const int64_t more : {0, 5000, 9000, 20'000, 100'000}) {
    ctx().reserve_workspace(least + more);
    const auto seed = static_cast<uint64_t>(100 + more);
    check(device, make_case(device, dtype(), layer.x, layer.w, layer.config, seed), seed % 3 != 0);
  }
}

TEST_P(Conv2dHalfTest, NamesTheWorkspaceThatItNeeds) {
  if (on_gpu()) GTEST_SKIP() << "a GPU convolves f16 and bf16 directly";
  const Layer layer{{2, 9, 8, 5}, {7, 3, 3, 5}, {1, 1, false}};
  const Shape y_shape = conv2d_output_shape(layer.config, layer.x, layer.w);
  const Tensor x = tensor(layer.x, random(layer.x.numel(), 1)), w = tensor(layer.w, random(layer.w.numel(), 2));
  const Tensor grad_y = tensor(y_shape, random(y_shape.numel(), 3));
  const Tensor y = device.empty(y_shape, dtype()), grad_x = device.empty(layer.x, dtype()),
               grad_w = device.empty(layer.w);
  const auto refused = [&](const char* name, bool backward_weight, const auto& pass) {
    const int64_t least = least_bytes(layer, backward_weight, false);
    ctx().release_workspace();
    ctx().reserve_workspace(least - 1);
    expect_error<OutOfMemory>(
        std::string(name) + ": an image of x (2, 9, 8, 5) with w (7, 3, 3, 5) needs a workspace of at least " +
            std::to_string(least) + " bytes, but " + std::to_string(least - 1) + " bytes are reserved",
        [&] {
          pass();
          device.synchronize();
        });
    ctx().release_workspace();
    ctx().reserve_workspace(least);
    pass();
    device.synchronize();
  };
  refused("conv2d_forward", false, [&] { forward<cpu::widened::conv2d>(ctx(), layer.config, x, w, {}, y); });
  refused("conv2d_backward_data", false,
          [&] { backward_data<cpu::widened::conv2d>(ctx(), layer.config, grad_y, w, grad_x); });
  refused("conv2d_backward_weight", true, [&] {
    backward_weight<cpu::widened::conv2d>(ctx(), layer.config, x, grad_y, grad_w, {}, GradMode::overwrite);
  });
}

/// AlexNet's first layer in the default arena of a CPU device; all images are equal.
TEST_P(Conv2dHalfTest, AlexNetsFirstLayerFitsTheDefaultWorkspace) {
  ctx().reserve_workspace(int64_t{32} << 20);
  constexpr int64_t kImages = 16;  // their patches take 35 MiB
  const Layer layer{{kImages, 227, 227, 3}, {64, 11, 11, 3}, {4, 2, false}};
  const Shape y_shape = conv2d_output_shape(layer.config, layer.x, layer.w);
  const ConvolutionGeometry one{layer.x.with_dim0(1), layer.w, y_shape.with_dim0(1), layer.config.stride,
                                layer.config.pad};
  const std::vector<float> w = random(layer.w.numel(), 1), image = random(one.x.numel(), 2),
                           gradient = random(one.y.numel(), 3);
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

TEST_F(DeviceTest, Conv2dBackwardWeightOfNoSamples) {
  const Tensor x = device.empty({0, 4, 4, 3});
  const Tensor grad_y = device.empty({0, 2, 2, 2});
  const GuardedTensor grad_w = device.guarded(Shape{2, 3, 3, 3}, std::vector<float>(54, 5.0F));
  conv2d_backward_weight(ctx(), {}, x, grad_y, grad_w, {}, GradMode::accumulate);
  expect_same_bits(device.values(grad_w), std::vector<float>(54, 5.0F), "accumulated");
  conv2d_backward_weight(ctx(), {}, x, grad_y, grad_w, {}, GradMode::overwrite);
  expect_same_bits(device.values(grad_w), std::vector<float>(54, 0.0F), "overwritten");
}

TEST_F(DeviceTest, Conv2dRefusesWrongArguments) {
  const Tensor x = device.empty({2, 8, 6, 3});
  const Tensor w = device.empty({4, 3, 3, 3});
  const Tensor y = device.empty({2, 6, 4, 4});
  expect_error<ShapeError>("conv2d_forward: x has shape (2, 8, 6, 3) but w (4, 3, 3, 2) needs x of shape (N, H, W, 2)",
                           [&] {
                             conv2d_forward(ctx(), {}, x, device.empty({4, 3, 3, 2}), {}, y);
                           });
  expect_error<ShapeError>(
      "conv2d_forward: x has shape (2, 8, 6, 3), padded 8 x 6, but w (4, 3, 7, 3) needs at least 3 x 7", [&] {
        conv2d_forward(ctx(), {}, x, device.empty({4, 3, 7, 3}), {}, y);
      });
  expect_error<ShapeError>("conv2d_forward: stride is 0 and pad is 0", [&] {
    conv2d_forward(ctx(), {0, 0, false}, x, w, {}, y);
  });
  expect_error<ShapeError>("conv2d_forward: y has shape (2, 6, 4, 4), expected (2, 3, 2, 4)", [&] {
    conv2d_forward(ctx(), {2, 0, false}, x, w, {}, y);
  });
  expect_error<ShapeError>("conv2d_forward: x has shape (16, 6, 3), expected (N, H, W, C)", [&] {
    conv2d_forward(ctx(), {}, x.reshape({16, 6, 3}), w, {}, y);
  });
  expect_error<ShapeError>("conv2d_backward_data: x has shape (2, 6, 4, 4)",
                           [&] { conv2d_backward_data(ctx(), {}, y, w, y); });
  expect_error<ShapeError>("conv2d_backward_weight: grad_bias has shape (4, 3, 3, 3), expected (4)",
                           [&] { conv2d_backward_weight(ctx(), {}, x, y, w, w, GradMode::overwrite); });
  EXPECT_EQ(conv2d_output_shape({4, 2, false}, {1, 227, 227, 3}, {64, 11, 11, 3}), (Shape{1, 56, 56, 64}));
}

TEST_F(DeviceTest, Conv2dUsesOneDnnWhenTheWorkspaceSuffices) {
  if (on_gpu() || !cpu::onednn::library()) GTEST_SKIP() << "needs a CPU device and oneDNN";
  ctx().reserve_workspace(kWorkspace);
  const Conv2dCase c = make_case(device, DType::f32, {2, 13, 13, 16}, {32, 3, 3, 16}, {1, 1, true}, 1);
  const Tensor y = device.empty(c.g.y), grad_x = device.empty(c.g.x), grad_w = device.empty(c.g.w);
  int served = 0;
  const View y_view = y, grad_x_view = grad_x, grad_w_view = grad_w;
  const ConstView x = c.x_device, w = c.w_device, grad_y = c.grad_y_device;
  ctx().dispatch({"conv2d", {x, w, grad_y}, {y_view, grad_x_view, grad_w_view}}, [&, this] {
    for (const Conv2dCall& call :
         {Conv2dCall{Conv2dPass::forward, c.config, read_only(x), read_only(w), {}, y_view},
          Conv2dCall{Conv2dPass::backward_data, c.config, grad_x_view, read_only(w), {}, read_only(grad_y)},
          Conv2dCall{Conv2dPass::backward_weight,
                     c.config,
                     read_only(x),
                     grad_w_view,
                     {},
                     read_only(grad_y),
                     GradMode::accumulate}})
      served += cpu::onednn::conv2d(ctx(), ctx().workspace(), call) ? 1 : 0;
  });
  device.synchronize();
  EXPECT_EQ(served, 3);
}

}  // namespace
}  // namespace vitrine::test::conv2d_test
