// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "nn/layers/activations.h"
#include "nn/layers/attention.h"
#include "nn/layers/batch_norm2d.h"
#include "nn/layers/conv2d.h"
#include "nn/layers/dropout.h"
#include "nn/layers/embedding.h"
#include "nn/layers/flatten.h"
#include "nn/layers/layer_norm.h"
#include "nn/layers/linear.h"
#include "nn/layers/pool2d.h"
#include "nn/parameter_store.h"
#include "runtime/error.h"
#include "tests/support/gradient_check.h"

namespace vitrine::test {
namespace {

using Params = std::vector<DoubleTensor>;

constexpr Pass kTraining{.training = true, .seed = 11, .step = 3, .first_sample = 5};

TEST(LayerGradients, Linear) {
  uint64_t seed = 100;
  for (const bool relu : {false, true}) {
    for (const bool bias : {false, true}) {
      for (const auto& [rows, in, out] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1}, {3, 17, 5}, {8, 33, 20}}) {
        const Linear layer({.in_features = in, .out_features = out, .bias = bias, .relu = relu});
        check_gradients(layer, {rows, in}, kTraining, ++seed, [&](const DoubleTensor& x, const Params& p) {
          DoubleTensor y = reference_linear(x, p[0], bias ? &p[1] : nullptr);
          return relu ? reference_relu(y) : y;
        });
      }
    }
  }
}

TEST(LayerGradients, Conv2d) {
  struct Case {
    int64_t h, w, c, k, window, stride, pad;
  };
  uint64_t seed = 200;
  for (const Case& t :
       {Case{5, 5, 1, 1, 1, 1, 0}, Case{6, 7, 3, 5, 3, 1, 1}, Case{9, 8, 2, 4, 5, 2, 2}, Case{11, 13, 3, 9, 4, 3, 1}}) {
    for (const bool relu : {false, true}) {
      for (const bool bias : {false, true}) {
        const Conv2dConfig config{.stride = t.stride, .pad = t.pad, .relu = relu};
        const Conv2d layer({.in_channels = t.c, .out_channels = t.k, .window = t.window, .bias = bias, .conv = config});
        check_gradients(layer, {2, t.h, t.w, t.c}, kTraining, ++seed, [&](const DoubleTensor& x, const Params& p) {
          return reference_conv2d(config, x, p[0], bias ? &p[1] : nullptr);
        });
      }
    }
  }
}

/// The same of inputs in a form: what is no pixel counts as an input too, and a weight that the window does not have is
/// zero.
TEST(LayerGradients, Conv2dOfInputsInAForm) {
  struct Case {
    int64_t h, w, c, k, window, stride, pad;
  };
  uint64_t seed = 250;
  for (const Case& t : {Case{15, 13, 3, 4, 11, 4, 2}, Case{9, 8, 2, 4, 5, 2, 2}, Case{6, 7, 3, 5, 3, 1, 1}}) {
    for (const bool relu : {false, true}) {
      for (const bool bias : {false, true}) {
        const Conv2dConfig config{.stride = t.stride, .pad = t.pad, .relu = relu};
        const Conv2d layer({.in_channels = t.c, .out_channels = t.k, .window = t.window, .bias = bias, .conv = config});
        const Shape images{2, t.h, t.w, t.c};
        Pass pass = kTraining;
        pass.input_form = layer.input_form(images, {.packing = InputPacking::on});
        ASSERT_TRUE(pass.input_form);
        const int64_t block = pass.input_form.block, depth = pass.input_form.depth,
                      side = (t.window + block - 1) / block;
        check_gradients(layer, images, pass, ++seed, [&](const DoubleTensor& x, const Params& p) {
          DoubleTensor w{{t.k, side, side, depth}, std::vector<double>(static_cast<size_t>(t.k * side * side * depth))};
          for (int64_t i = 0; i < p[0].shape.numel(); ++i) {
            const int64_t c = i % t.c, s = i / t.c % t.window, r = i / t.c / t.window % t.window,
                          k = i / t.c / t.window / t.window;
            const int64_t channel = (r % block * block + s % block) * t.c + c;
            w.values[static_cast<size_t>(((k * side + r / block) * side + s / block) * depth + channel)] =
                p[0].values[static_cast<size_t>(i)];
          }
          const Conv2dConfig formed = block > 1 ? Conv2dConfig{.stride = 1, .pad = 0, .relu = relu} : config;
          return reference_conv2d(formed, x, w, bias ? &p[1] : nullptr);
        });
      }
    }
  }
}

TEST(LayerGradients, ReLU) {
  check_gradients(ReLU(), {3, 37}, kTraining, 300,
                  [](const DoubleTensor& x, const Params&) { return reference_relu(x); });
}

TEST(LayerGradients, Pooling) {
  struct Case {
    int64_t h, w, c;
    Pool2dConfig config;
  };
  uint64_t seed = 400;
  for (const Case& t :
       {Case{4, 6, 3, {2, 2, 0}}, Case{7, 8, 5, {3, 2, 0}}, Case{7, 5, 2, {3, 2, 1}}, Case{5, 5, 9, {2, 1, 1}}}) {
    const Pool2dConfig config = t.config;
    check_gradients(MaxPool2d(config), {2, t.h, t.w, t.c}, kTraining, ++seed,
                    [config](const DoubleTensor& x, const Params&) { return reference_max_pool2d(config, x); });
    check_gradients(
        MaxPool2d(config, true), {2, t.h, t.w, t.c}, kTraining, ++seed,
        [config](const DoubleTensor& x, const Params&) { return reference_max_pool2d(config, reference_relu(x)); });
    // A window of 16 takes two passes.
    check_gradients(MaxPool2d({16, 3, 8}, true), {1, t.h, t.w, t.c}, kTraining, ++seed,
                    [](const DoubleTensor& x, const Params&) {
                      return reference_max_pool2d({16, 3, 8}, reference_relu(x));
                    });
    check_gradients(AvgPool2d(config), {2, t.h, t.w, t.c}, kTraining, ++seed,
                    [config](const DoubleTensor& x, const Params&) { return reference_avg_pool2d(config, x); });
    check_gradients(AdaptiveAvgPool2d(3, 2), {2, t.h, t.w, t.c}, kTraining, ++seed,
                    [](const DoubleTensor& x, const Params&) { return reference_adaptive_avg_pool2d(3, 2, x); });
  }
}

TEST(LayerGradients, LinearOverLeadingDimensions) {
  const Linear layer({.in_features = 7, .out_features = 4, .relu = true});
  check_gradients(layer, {2, 3, 2, 7}, kTraining, 450, [](DoubleTensor x, const Params& p) {
    x.shape = {12, 7};
    DoubleTensor y = reference_relu(reference_linear(x, p[0], &p[1]));
    y.shape = {2, 3, 2, 4};
    return y;
  });
}

TEST(LayerGradients, GeluTanh) {
  check_gradients(GELU(GeluForm::tanh), {3, 37}, kTraining, 460,
                  [](const DoubleTensor& x, const Params&) { return reference_gelu_tanh(x); });
}

TEST(LayerGradients, LayerNorm) {
  uint64_t seed = 470;
  for (const Shape& shape : {Shape{3, 17}, Shape{2, 5, 64}, Shape{4, 2, 3, 9}}) {
    check_gradients(LayerNorm(shape[shape.rank() - 1], 1e-3F), shape, kTraining, ++seed,
                    [](const DoubleTensor& x, const Params& p) { return reference_layer_norm(1e-3F, x, p[0], p[1]); });
  }
}

TEST(LayerGradients, Positions) {
  check_gradients(Positions(7, 5), {3, 4, 5}, kTraining, 480, [](DoubleTensor x, const Params& p) {
    for (size_t i = 0; i < x.values.size(); ++i) x.values[i] += p[0].values[i % 20];
    return x;
  });
}

TEST(LayerGradients, Attention) {
  uint64_t seed = 490;
  for (const auto& [length, heads, size] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 4}, {5, 2, 8}, {70, 3, 16}}) {
    check_gradients(Attention(heads), {2, length, 3 * heads * size}, kTraining, ++seed,
                    [heads = heads](const DoubleTensor& x, const Params&) { return reference_attention(heads, x); });
  }
}

TEST(LayerGradients, Dropout) {
  for (const float p : {0.25F, 0.5F, 0.9F}) {
    const DropoutConfig config{
        .p = p, .seed = kTraining.seed, .step = kTraining.step, .layer = 3, .first_sample = kTraining.first_sample};
    check_gradients(Dropout(p, 2), {4, 30}, kTraining, 500,
                    [config](const DoubleTensor& x, const Params&) { return reference_dropout(config, x); });
  }
}

TEST(LayerGradients, FlattenIntoOtherMemory) {
  check_gradients(Flatten(), {2, 3, 4, 5}, kTraining, 600, [](const DoubleTensor& x, const Params&) { return x; });
}

TEST(LayerGradients, FlattenChannelsFirst) {
  for (const Shape& shape : {Shape{2, 3, 4, 5}, Shape{3, 1, 1, 7}, Shape{1, 9, 2, 1}, Shape{2, 6, 3}}) {
    check_gradients(Flatten(true), shape, kTraining, 610, [](const DoubleTensor& x, const Params&) {
      const int64_t n = x.shape[0], c = x.shape[x.shape.rank() - 1],
                    positions = static_cast<int64_t>(x.values.size()) / n / c;
      DoubleTensor y{{n, c * positions}, std::vector<double>(x.values.size())};
      for (size_t i = 0; i < x.values.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        const int64_t image = at / (c * positions), position = at / c % positions;
        y.values[static_cast<size_t>((image * c + at % c) * positions + position)] = x.values[i];
      }
      return y;
    });
  }
}

TEST(LayerGradients, BatchNorm2d) {
  uint64_t seed = 700;
  for (const Shape& shape : {Shape{2, 1, 1, 3}, Shape{3, 4, 5, 7}, Shape{2, 6, 6, 20}}) {
    for (const bool relu : {false, true}) {
      const BatchNormConfig config{.eps = 0.01F, .relu = relu};
      check_gradients(
          BatchNorm2d(shape[3], config), shape, kTraining, ++seed,
          [config](const DoubleTensor& x, const Params& p) { return reference_batch_norm(config, x, p[0], p[1]); });
    }
  }
}

TEST(LayerGradients, GELU) {
  check_gradients(GELU(), {3, 37}, kTraining, 800,
                  [](const DoubleTensor& x, const Params&) { return reference_gelu(x); });
}

/// A batch norm on a device, its parameters and buffers.
class BatchNormLayer : public ::testing::Test {
 protected:
  void SetUp() override { device.ctx().reserve_workspace(int64_t{1} << 20); }
  std::vector<float> forward(const Tensor& input, const Pass& pass) {
    const Tensor y = device.empty(input.shape());
    layer.forward({device.ctx(), parameters.views(flat), input, y, pass, buffers.views(saved, transient)});
    return device.values(ConstView(y));
  }
  std::vector<float> running() { return device.values(ConstView(saved)); }

  TestDevice device;
  const BatchNorm2d layer{3};
  const FlatLayout parameters{layer.parameters(), 0};
  const BufferLayout buffers{layer};
  const Tensor flat = device.random({parameters.parameter_elements()}, 1);
  const Tensor saved = device.tensor({buffers.saved().parameter_elements()}, buffers.initial().values);
  const Tensor transient = device.empty({buffers.transient().parameter_elements()});
  const Tensor x = device.tensor({2, 1, 2, 3}, std::vector<float>{1, 2, 3, 3, 2, 1, 5, 2, 8, 7, 2, 0});
};

TEST_F(BatchNormLayer, RunningStatisticsMoveToMeanAndUnbiasedVariance) {
  forward(x, kTraining);
  const std::vector<float> values = running();
  const auto at = [&](const char* name, int64_t channel) {
    for (int i = 0; i < buffers.saved().size(); ++i) {
      if (buffers.saved().specs()[static_cast<size_t>(i)].name == name)
        return values[static_cast<size_t>(buffers.saved().offset(i) + channel)];
    }
    return -1.0F;
  };
  EXPECT_FLOAT_EQ(at("running_mean", 0), 0.1F * 4.0F);
  EXPECT_FLOAT_EQ(at("running_mean", 2), 0.1F * 3.0F);
  EXPECT_FLOAT_EQ(at("running_var", 0), 0.9F + 0.1F * 20.0F / 3.0F);
  EXPECT_FLOAT_EQ(at("running_var", 1), 0.9F);
}

TEST_F(BatchNormLayer, EvaluationDoesNotLookAtOtherSamples) {
  forward(x, kTraining);
  const std::vector<float> before = running();
  const std::vector<float> all = forward(x, {.training = false});
  const std::vector<float> first = forward(x.rows(0, 1), {.training = false});
  EXPECT_EQ(first, (std::vector<float>{all.begin(), all.begin() + 6}));
  EXPECT_EQ(running(), before);
}

TEST_F(BatchNormLayer, RecomputationAndSearchesLeaveTheRunningStatistics) {
  const std::vector<float> y = forward(x, kTraining);
  const std::vector<float> before = running();
  Pass again = kTraining;
  again.recomputes = true;
  EXPECT_EQ(forward(x, again), y);
  Pass search = kTraining;
  search.updates_buffers = false;
  EXPECT_EQ(forward(x, search), y);
  EXPECT_EQ(running(), before);
}

TEST_F(BatchNormLayer, OneValueForEachChannelIsRefused) {
  const Tensor one = device.random({1, 1, 1, 3}, 5);
  EXPECT_THROW(forward(one, kTraining), ShapeError);
  EXPECT_NO_THROW(forward(one, {.training = false}));
}

TEST(Layers, IdentitiesAreRecognized) {
  const Shape images{2, 6, 6, 4};
  const Pass evaluation{.training = false};
  EXPECT_TRUE(AdaptiveAvgPool2d(6, 6).is_identity(images, kTraining));
  EXPECT_FALSE(AdaptiveAvgPool2d(6, 5).is_identity(images, kTraining));
  EXPECT_FALSE(Dropout(0.5F, 0).is_identity(images, kTraining));
  EXPECT_TRUE(Dropout(0.5F, 0).is_identity(images, evaluation));
  EXPECT_TRUE(Dropout(0.0F, 0).is_identity(images, kTraining));
  EXPECT_TRUE(Flatten().is_identity(images, kTraining));
  EXPECT_FALSE(Flatten(true).is_identity(images, kTraining));
  EXPECT_TRUE(Flatten(true).is_identity({2, 1, 1, 4}, kTraining));
  EXPECT_TRUE(Flatten(true).is_identity({2, 6, 6, 1}, kTraining));
}

// The memory that layers keep determines the peak of a training step.
TEST(Layers, KeepOnlyWhatBackwardNeeds) {
  TestDevice device;
  device.ctx().reserve_workspace(int64_t{16} << 20);
  const Tensor x = device.random({2, 8, 8, 4}, 1);
  const auto kept = [&](const Layer& layer, const Pass& pass) {
    const FlatLayout layout(layer.parameters(), 0);
    const Tensor flat = device.random({layout.parameter_elements()}, 2);
    const std::vector<View> params = layout.views(flat);
    const Tensor y = device.empty(layer.output_shape(x.shape()));
    const Saved saved = layer.forward({device.ctx(), params, x, y, pass});
    device.synchronize();
    int64_t bytes = 0;
    for (const Tensor& tensor : saved.tensors) bytes += tensor.bytes();
    return bytes;
  };
  const Pass evaluation{.training = false};
  const Conv2dLayerConfig conv{.in_channels = 4, .out_channels = 8, .window = 3, .conv = {.stride = 1, .pad = 1}};
  Conv2dLayerConfig conv_relu = conv;
  conv_relu.conv.relu = true;
  EXPECT_EQ(kept(Conv2d(conv), kTraining), x.bytes());
  EXPECT_EQ(kept(Conv2d(conv_relu), kTraining), x.bytes() + 2 * x.bytes());
  EXPECT_EQ(kept(Conv2d(conv_relu), evaluation), 0);
  EXPECT_EQ(kept(MaxPool2d({2, 2, 0}), kTraining), 2 * 4 * 4 * 4);
  EXPECT_EQ(kept(MaxPool2d({2, 2, 0}, true), kTraining), 2 * 4 * 4 * 4) << "the position also says where the ReLU is 0";
  EXPECT_EQ(kept(MaxPool2d({2, 2, 0}), evaluation), 0);
  EXPECT_EQ(kept(AvgPool2d({2, 2, 0}), kTraining), 0);
  EXPECT_EQ(kept(Dropout(0.5F, 0), kTraining), 0);
}

TEST(Layers, RefuseInputsThatDoNotFit) {
  const Shape images{2, 8, 8, 3};
  const Shape rows{2, 10};
  EXPECT_THROW(Linear({.in_features = 11, .out_features = 2}).output_shape(rows), ShapeError);
  EXPECT_THROW(Linear({.in_features = 8, .out_features = 2}).output_shape(images), ShapeError);
  EXPECT_THROW(Conv2d({.in_channels = 4, .out_channels = 2, .window = 3}).output_shape(images), ShapeError);
  EXPECT_THROW(Conv2d({.in_channels = 3, .out_channels = 2, .window = 9}).output_shape(images), ShapeError);
  EXPECT_THROW(MaxPool2d({2, 2, 0}).output_shape(rows), ShapeError);
  EXPECT_THROW(Dropout(1.0F, 0), ConfigError);
  EXPECT_THROW(Linear({.in_features = 0, .out_features = 2}), ConfigError);
  EXPECT_THROW(
      Linear({.in_features = 12, .out_features = 2, .weight_layout = {CheckpointLayout::Kind::linear_chw, 2, 2, 2}}),
      ConfigError);
  EXPECT_THROW(Conv2d({.in_channels = 3, .out_channels = 2, .window = 3, .conv = {.stride = 0}}), ConfigError);
  EXPECT_THROW(AdaptiveAvgPool2d(0, 1), ConfigError);
  EXPECT_THROW(BatchNorm2d(4).output_shape(images), ShapeError);
  EXPECT_THROW(BatchNorm2d(0), ConfigError);
  EXPECT_THROW(BatchNorm2d(3, {.momentum = 1.5F}), ConfigError);
}

}  // namespace
}  // namespace vitrine::test
