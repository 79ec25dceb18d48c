// SPDX-License-Identifier: Apache-2.0
#include "nn/sequential.h"

#include <array>
#include <map>
#include <span>

#include <gtest/gtest.h>

#include "nn/layers/activations.h"
#include "nn/layers/conv2d.h"
#include "nn/layers/dropout.h"
#include "nn/layers/flatten.h"
#include "nn/layers/linear.h"
#include "nn/layers/pool2d.h"
#include "nn/layers/residual.h"
#include "nn/parameter_store.h"
#include "runtime/error.h"
#include "tests/support/device_fixture.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tests/support/gradient_check.h"

namespace vitrine::test {
namespace {

using Params = std::vector<DoubleTensor>;

constexpr Pass kTraining{.training = true, .seed = 4, .step = 9, .first_sample = 2};
constexpr Pass kEvaluation{.training = false};
constexpr Conv2dConfig kConv{.stride = 1, .pad = 1};
constexpr Conv2dConfig kConvRelu{.stride = 1, .pad = 1, .relu = true};

template <class T, class... Args>
Sequential::Part part(const char* name, Args&&... args) {
  return {name, std::make_unique<T>(std::forward<Args>(args)...)};
}

template <class... Parts>
std::unique_ptr<Sequential> sequential(Parts&&... parts) {
  std::vector<Sequential::Part> list;
  (list.push_back(std::move(parts)), ...);
  return std::make_unique<Sequential>(std::move(list));
}

Sequential::Part conv(const char* name, int64_t in, int64_t out, const Conv2dConfig& config, int64_t window = 3) {
  return part<Conv2d>(name,
                      Conv2dLayerConfig{.in_channels = in, .out_channels = out, .window = window, .conv = config});
}

// Convolution, pooling, flatten, dropout, two Linears, on (N, 6, 6, 2).
std::unique_ptr<Sequential> small_net() {
  return sequential(conv("conv", 2, 4, kConvRelu), part<MaxPool2d>("pool", Pool2dConfig{2, 2, 0}),
                    part<AdaptiveAvgPool2d>("avgpool", 3, 3), part<Flatten>("flatten"), part<Dropout>("drop", 0.5F, 0),
                    part<Linear>("fc1", LinearConfig{.in_features = 36, .out_features = 7, .relu = true}),
                    part<Linear>("fc2", LinearConfig{.in_features = 7, .out_features = 3}));
}

DoubleTensor reference_small_net(const DoubleTensor& x, const Params& p) {
  DoubleTensor y = reference_max_pool2d({2, 2, 0}, reference_conv2d(kConvRelu, x, p[0], &p[1]));
  y.shape = {x.shape[0], 36};
  y = reference_dropout(
      {.p = 0.5F, .seed = kTraining.seed, .step = kTraining.step, .layer = 1, .first_sample = kTraining.first_sample},
      y);
  return reference_linear(reference_relu(reference_linear(y, p[2], &p[3])), p[4], &p[5]);
}

TEST(SequentialGradients, AllKindsOfParts) {
  check_gradients(*small_net(), {3, 6, 6, 2}, kTraining, 1, reference_small_net);
}

TEST(SequentialGradients, SharedParameter) {
  const LinearConfig own{.in_features = 6, .out_features = 6, .bias = false, .relu = true};
  LinearConfig shared = own;
  shared.shared_weight = "first.weight";
  const auto net =
      sequential(part<Linear>("first", own), part<Linear>("middle", LinearConfig{.in_features = 6, .out_features = 6}),
                 part<Linear>("second", shared), part<Linear>("third", shared));
  EXPECT_EQ(net->parameters().size(), 3U);
  check_gradients(*net, {5, 6}, kTraining, 3, [](const DoubleTensor& x, const Params& p) {
    DoubleTensor y = reference_relu(reference_linear(x, p[0], nullptr));
    y = reference_relu(reference_linear(reference_linear(y, p[1], &p[2]), p[0], nullptr));
    return reference_relu(reference_linear(y, p[0], nullptr));
  });
}

TEST(Sequential, ASharedParameterIsTheOnlyOneOfAnEarlierPart) {
  LinearConfig shared{.in_features = 6, .out_features = 6, .bias = false};
  for (const char* name : {"second.weight", "first.bias", "first.weight"}) {  // itself, and one of two
    shared.shared_weight = name;
    const auto build = [&] {
      sequential(part<Linear>("first", LinearConfig{.in_features = 6, .out_features = 6}),
                 part<Linear>("second", shared));
    };
    expect_contains(error_of<ConfigError>(build), "'second' shares ", name, "the only parameter of an earlier part");
  }
}

TEST(Sequential, PartsWithoutNameLeaveTheNamesOfTheirLayers) {
  std::vector<Sequential::Part> inner;
  inner.push_back({"", sequential(part<Linear>("a", LinearConfig{.in_features = 2, .out_features = 2}))});
  inner.push_back({"", sequential(part<Linear>("b", LinearConfig{.in_features = 2, .out_features = 2}))});
  const auto net = sequential(Sequential::Part{"outer", std::make_unique<Sequential>(std::move(inner))});
  std::vector<std::string> names;
  for (const ParamSpec& spec : net->parameters()) names.push_back(spec.name);
  EXPECT_EQ(names, (std::vector<std::string>{"outer.a.weight", "outer.a.bias", "outer.b.weight", "outer.b.bias"}));
}

TEST(SequentialGradients, IdentitiesAtBothEnds) {
  const auto net =
      sequential(part<Flatten>("flatten"), part<Linear>("fc", LinearConfig{.in_features = 12, .out_features = 5}),
                 part<Dropout>("drop", 0.0F, 0));
  check_gradients(*net, {2, 2, 2, 3}, kTraining, 2, [](DoubleTensor x, const Params& p) {
    x.shape = {2, 12};
    return reference_linear(x, p[0], &p[1]);
  });
}

TEST(SequentialGradients, OnlyIdentities) {
  const auto net = sequential(part<AdaptiveAvgPool2d>("avgpool", 2, 3), part<Flatten>("flatten"));
  const Shape images{2, 2, 3, 4};
  EXPECT_TRUE(net->is_identity(images, kTraining));
  check_gradients(*net, images, kTraining, 3, [](const DoubleTensor& x, const Params&) { return x; });
}

TEST(SequentialGradients, ElementwiseLayersWorkInPlace) {
  const auto net =
      sequential(conv("conv", 2, 3, kConv), part<ReLU>("relu"), part<Dropout>("drop", 0.25F, 1), part<ReLU>("relu2"));
  check_gradients(*net, {2, 4, 5, 2}, kTraining, 4, [](const DoubleTensor& x, const Params& p) {
    const DropoutConfig config{
        .p = 0.25F, .seed = kTraining.seed, .step = kTraining.step, .layer = 2, .first_sample = kTraining.first_sample};
    return reference_dropout(config, reference_relu(reference_conv2d(kConv, x, p[0], &p[1])));
  });
}

TEST(SequentialGradients, AReluAfterTheMaximumEqualsOneBefore) {
  const auto net = sequential(conv("conv", 2, 3, kConv), part<MaxPool2d>("pool", Pool2dConfig{3, 2, 1}, true),
                              part<Dropout>("drop", 0.25F, 1));
  check_gradients(*net, {2, 6, 5, 2}, kTraining, 9, [](const DoubleTensor& x, const Params& p) {
    const DropoutConfig config{
        .p = 0.25F, .seed = kTraining.seed, .step = kTraining.step, .layer = 2, .first_sample = kTraining.first_sample};
    return reference_dropout(config, reference_max_pool2d({3, 2, 1}, reference_conv2d(kConvRelu, x, p[0], &p[1])));
  });
}

TEST(ResidualGradients, IdentityShortcut) {
  for (const bool relu : {false, true}) {
    const Residual block(sequential(conv("conv1", 3, 5, kConvRelu), conv("conv2", 5, 3, kConv)), nullptr, relu);
    check_gradients(block, {2, 5, 4, 3}, kTraining, 5, [relu](const DoubleTensor& x, const Params& p) {
      DoubleTensor y =
          reference_add(reference_conv2d(kConv, reference_conv2d(kConvRelu, x, p[0], &p[1]), p[2], &p[3]), x);
      return relu ? reference_relu(y) : y;
    });
  }
}

// The body ends in a merged ReLU, whose output it keeps: the sum must not overwrite it.
TEST(ResidualGradients, ProjectionShortcutAfterAMergedRelu) {
  const Conv2dConfig projection{.stride = 2};
  const Conv2dConfig strided{.stride = 2, .pad = 1, .relu = true};
  for (const bool relu : {false, true}) {
    const Residual block(sequential(conv("conv1", 3, 6, strided)),
                         sequential(conv("downsample.0", 3, 6, projection, 1)), relu);
    check_gradients(block, {2, 6, 6, 3}, kTraining, 6, [=](const DoubleTensor& x, const Params& p) {
      DoubleTensor y =
          reference_add(reference_conv2d(strided, x, p[0], &p[1]), reference_conv2d(projection, x, p[2], &p[3]));
      return relu ? reference_relu(y) : y;
    });
  }
}

TEST(ResidualGradients, BlocksWithinASequential) {
  std::vector<Sequential::Part> parts;
  parts.push_back(conv("stem", 2, 3, kConvRelu));
  parts.push_back({"block", std::make_unique<Residual>(sequential(conv("conv1", 3, 3, kConvRelu)), nullptr, true)});
  parts.push_back(part<Flatten>("flatten"));
  const Sequential net(std::move(parts));
  EXPECT_EQ(net.parameters()[2].name, "block.conv1.weight");
  check_gradients(net, {2, 4, 4, 2}, kTraining, 7, [](const DoubleTensor& x, const Params& p) {
    const DoubleTensor stem = reference_conv2d(kConvRelu, x, p[0], &p[1]);
    DoubleTensor y = reference_relu(reference_add(reference_conv2d(kConvRelu, stem, p[2], &p[3]), stem));
    y.shape = {2, 48};
    return y;
  });
}

TEST(Residual, RefusesPathsOfDifferentShapes) {
  const Residual block(sequential(conv("conv1", 3, 5, kConv)), nullptr, false);
  const Shape images{2, 5, 5, 3};
  EXPECT_THROW(block.output_shape(images), ShapeError);
}

TEST(Sequential, NamesThePartWhoseInputDoesNotFit) {
  const auto net = small_net();
  const Shape images{2, 8, 8, 2};
  const Shape wrong{2, 6, 6, 3};
  EXPECT_EQ(net->output_shape(images), (Shape{2, 3}));  // the adaptive pool accepts any size
  expect_contains(error_of<ShapeError>([&] { net->output_shape(wrong); }), "conv: ");
  std::vector<Sequential::Part> twice;
  twice.push_back(part<ReLU>("a"));
  twice.push_back(part<ReLU>("a"));
  EXPECT_THROW(Sequential{std::move(twice)}, ConfigError);
}

// forward_from and backward_from on a device of any backend.
class Outermost : public ::testing::TestWithParam<Backend> {
 public:
  ~Outermost() override { group_.synchronize(); }

 protected:
  Outermost()
      : group_({.devices = {DeviceId{GetParam(), 0}},
                .memory_bytes = {int64_t{64} << 20},
                .threads_per_device = {2},
                .check_order = true}) {
    ctx().reserve_workspace(int64_t{16} << 20);
    params_ = ctx().allocate({layout_.parameter_elements()}, DType::f32, Category::parameters, "params");
    grads_ = ctx().allocate({layout_.parameter_elements()}, DType::f32, Category::gradients, "grads");
    input_ = ctx().allocate({3, 6, 6, 2}, DType::f32, Category::staging, "input");
    zero(ctx(), params_);
    zero(ctx(), input_);
  }
  ExecContext& ctx() { return group_[0].compute(); }
  int64_t activation_bytes() {
    return group_[0].pool().statistics().allocated_by_category[static_cast<size_t>(Category::activations)];
  }

  std::unique_ptr<Sequential> net_ = small_net();
  FlatLayout layout_{net_->parameters(), 0};
  DeviceGroup group_;
  Tensor params_, grads_, input_;
};

TEST_P(Outermost, BackwardReportsGradientsFromTheLastLayerAndReleasesMemory) {
  Tensor output;
  Saved saved = net_->forward_from(ctx(), layout_.views(params_), input_, output, kTraining);
  EXPECT_EQ(output.shape(), (Shape{3, 3}));
  Tensor grad = ctx().allocate(output.shape(), DType::f32, Category::activations, "grad");
  zero(ctx(), grad);
  output = {};
  std::vector<int> ready;
  std::vector<int64_t> held{activation_bytes()};
  net_->backward_from(ctx(), layout_.views(params_), std::move(saved), std::move(grad), layout_.views(grads_),
                      GradMode::overwrite, kTraining, {.ready = [&](int first_parameter) {
                        ready.push_back(first_parameter);
                        held.push_back(activation_bytes());
                      }});
  EXPECT_EQ(ready, (std::vector<int>{4, 2, 0}));
  // Blocks are multiples of 256 bytes. Kept initially: conv's output 1792, the pool's indices 256, fc1's input 512 and
  // output 256; the gradient 256. fc2 releases its gradient and allocates one of the same size; fc1 releases all it
  // kept and allocates one of 512.
  EXPECT_EQ(held, (std::vector<int64_t>{3072, 3072, 2560, 0}));
}

class NoSum final : public BatchSum {
 public:
  void sum(ExecContext& /*ctx*/, const View& /*values*/) override {}
};

TEST_P(Outermost, LayersOfABlockWithoutShortcutReportTheirGradients) {
  using Numbers = std::vector<int>;
  const auto linear = [](int64_t in, int64_t out) { return LinearConfig{.in_features = in, .out_features = out}; };
  for (const bool has_shortcut : {false, true}) {
    const auto net = sequential(
        part<Linear>("first", linear(8, 8)),
        part<Residual>(
            "block",
            sequential(part<Linear>("one", linear(8, 6)), part<ReLU>("relu"), part<Linear>("two", linear(6, 8))),
            has_shortcut ? sequential(part<Linear>("short", linear(8, 8))) : nullptr, true),
        part<Linear>("last", linear(8, 3)));
    const FlatLayout layout(net->parameters(), 0);
    const auto zeros = [&](const Shape& shape) {
      Tensor tensor = ctx().allocate(shape, DType::f32, Category::activations, "zeros");
      zero(ctx(), tensor);
      return tensor;
    };
    const Tensor params = zeros({layout.parameter_elements()}), grads = zeros({layout.parameter_elements()});
    Tensor output;
    Saved saved = net->forward_from(ctx(), layout.views(params), zeros({3, 8}), output, kTraining);
    Numbers begun, ready;
    net->backward_from(ctx(), layout.views(params), std::move(saved), std::move(output), layout.views(grads),
                       GradMode::overwrite, kTraining,
                       {.begin = [&](int first_parameter) { begun.push_back(first_parameter); },
                        .ready = [&](int first_parameter) { ready.push_back(first_parameter); }});
    // ReLU computes the gradient of the bias before it.
    EXPECT_EQ(begun, has_shortcut ? Numbers({8, 2, 0}) : Numbers({6, 4, 3, 2, 0}));
    EXPECT_EQ(ready, has_shortcut ? Numbers({8, 2, 0}) : Numbers({6, 4, 2, 0}));
    // A device without samples calls them where layers take part in sums.
    for (const bool sums : {false, true}) {
      NoSum no_sum;
      Pass pass = kTraining;
      if (sums) pass.batch_sum = &no_sum;
      Numbers empty;
      net->backward_empty({ctx(), {1, 8}, pass, {}, {.ready = [&](int first) { empty.push_back(first); }}}, {},
                          nullptr);
      EXPECT_EQ(empty, sums || has_shortcut ? ready : Numbers({6, 2, 0}));
    }
  }
}

TEST_P(Outermost, EvaluationKeepsOnlyTheOutput) {
  Tensor output;
  const Saved saved = net_->forward_from(ctx(), layout_.views(params_), input_, output, kEvaluation);
  EXPECT_TRUE(saved.parts.empty());
  EXPECT_EQ(activation_bytes(), OffsetAllocator::aligned(output.bytes()));
}

TEST_P(Outermost, ElementwiseLayersReuseAFreeInput) {
  const auto net = sequential(part<Dropout>("first", 0.5F, 0), part<Flatten>("flatten"),
                              part<Linear>("fc1", LinearConfig{.in_features = 72, .out_features = 9, .relu = true}),
                              part<Dropout>("drop", 0.5F, 1), part<ReLU>("relu"),
                              part<Linear>("fc2", LinearConfig{.in_features = 9, .out_features = 3}));
  const FlatLayout layout(net->parameters(), 0);
  const Tensor params = ctx().allocate({layout.parameter_elements()}, DType::f32, Category::parameters, "params");
  zero(ctx(), params);
  static constexpr std::array kBeforeRelu{PartRange{0, 4}};
  for (const Sequential::Recomputed recomputed : {Sequential::Recomputed(), Sequential::Recomputed(kBeforeRelu)}) {
    group_[0].pool().record_history(true);
    const size_t before = group_[0].pool().history().changes.size();
    Tensor output;
    net->forward_from(ctx(), layout.views(params), input_, output, kTraining, nullptr, recomputed);
    std::vector<std::string> names;
    for (const MemoryEvent& event : std::span(group_[0].pool().history().changes).subspan(before)) {
      if (event.bytes > 0) names.push_back(event.tensor);
    }
    // The input of the model belongs to the caller, and the input of a segment must stay unchanged.
    std::vector<std::string> expected{"first.output", "fc1.output", "fc2.output"};
    if (!recomputed.empty()) expected.insert(expected.begin() + 2, "relu.output");
    EXPECT_EQ(names, expected);
  }
  group_[0].pool().record_history(false);  // the names of these layers end here
}

TEST_P(Outermost, SegmentsKeepOnlyTheirInputs) {
  const std::array recomputed{PartRange{0, 4}, PartRange{4, 6}};  // up to drop, and from there up to fc2
  Tensor output;
  Saved saved = net_->forward_from(ctx(), layout_.views(params_), input_, output, kTraining, nullptr, recomputed);
  ASSERT_EQ(saved.tensors.size(), 2U);
  EXPECT_EQ(saved.tensors[0].view().data, input_.view().data);
  EXPECT_EQ(saved.tensors[1].shape(), (Shape{3, 36}));
  EXPECT_EQ(activation_bytes(), 512 + 256 + 256);  // the inputs of drop and fc2, and the output
  std::vector<int> ready;
  Tensor grad = ctx().allocate(output.shape(), DType::f32, Category::activations, "grad");
  zero(ctx(), grad);
  net_->backward_from(ctx(), layout_.views(params_), std::move(saved), std::move(grad), layout_.views(grads_),
                      GradMode::overwrite, kTraining,
                      {.ready = [&](int first_parameter) { ready.push_back(first_parameter); }}, recomputed);
  EXPECT_EQ(ready, (std::vector<int>{4, 2, 0}));
}

TEST_P(Outermost, WorkIsRecordedUnderTheNameOfTheLayer) {
  group_[0].pool().record_history(true);
  Tensor output;
  net_->forward_from(ctx(), layout_.views(params_), input_, output, kEvaluation);
  std::vector<std::string> names;
  for (const MemoryEvent& event : group_[0].pool().history().changes) {
    if (event.bytes > 0) names.push_back(event.layer + "/" + event.tensor);
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"conv/conv.output", "pool/pool.output", "fc1/fc1.output", "fc2/fc2.output"}));
}

TEST_P(Outermost, FrozenPartsKeepNothingForBackward) {
  net_->freeze({"conv.*"});
  const FlatLayout layout(net_->parameters(), 0);
  Tensor output;
  Saved saved = net_->forward_from(ctx(), layout.views(params_), input_, output, kTraining);
  EXPECT_EQ(activation_bytes(), 512 + 256 + 256);  // fc1's input and output, the output; nothing before them
  Tensor grad = ctx().allocate(output.shape(), DType::f32, Category::activations, "grad");
  zero(ctx(), grad);
  output = {};
  std::vector<int> ready;
  net_->backward_from(ctx(), layout.views(params_), std::move(saved), std::move(grad), layout.gradient_views(grads_),
                      GradMode::overwrite, kTraining,
                      {.ready = [&](int first_parameter) { ready.push_back(first_parameter); }});
  EXPECT_EQ(ready, (std::vector<int>{4, 2}));
  EXPECT_EQ(activation_bytes(), 0);
}

TEST_P(Outermost, SegmentsOfFrozenPartsKeepNoInput) {
  net_->freeze({"conv.*"});
  const FlatLayout layout(net_->parameters(), 0);
  const std::array recomputed{PartRange{0, 2}, PartRange{4, 6}};
  Tensor output;
  Saved saved = net_->forward_from(ctx(), layout.views(params_), input_, output, kTraining, nullptr, recomputed);
  ASSERT_EQ(saved.tensors.size(), 2U);
  EXPECT_FALSE(saved.tensors[0]);
  EXPECT_TRUE(saved.tensors[1]);
}

/// Gradients of small_net() with frozen parameters, by the name of the parameter; the same input and values each time.
std::map<std::string, std::vector<float>> gradients_with_frozen(const std::vector<std::string>& patterns,
                                                                GradMode mode) {
  TestDevice device;
  device.ctx().reserve_workspace(int64_t{16} << 20);
  const auto net = small_net();
  if (!patterns.empty()) net->freeze(patterns);
  const FlatLayout layout(net->parameters(), 0);
  std::vector<float> values(static_cast<size_t>(layout.parameter_elements()));
  initialize(layout, 3, values);
  const Tensor params = device.tensor({layout.parameter_elements()}, values);
  const Tensor grads = device.empty({layout.trained().parameter_elements()});
  zero(device.ctx(), grads);
  const Tensor input = device.random({3, 6, 6, 2}, 4), grad_output = device.random({3, 3}, 6);
  Tensor output;
  Saved saved = net->forward_from(device.ctx(), layout.views(params), input, output, kTraining);
  net->backward_from(device.ctx(), layout.views(params), std::move(saved), grad_output, layout.gradient_views(grads),
                     mode, kTraining, {});
  const std::vector<View> views = layout.gradient_views(grads);
  std::map<std::string, std::vector<float>> found;
  for (size_t i = 0; i < views.size(); ++i) {
    if (views[i]) found[layout.specs()[i].name] = device.values<float>(views[i]);
  }
  return found;
}

TEST(Freeze, TrainedParametersKeepTheirGradients) {
  for (const GradMode mode : {GradMode::overwrite, GradMode::accumulate}) {
    const auto all = gradients_with_frozen({}, mode);
    for (const std::vector<std::string>& patterns :
         {std::vector<std::string>{"conv.*"}, {"fc1.weight"}, {"*.bias"}, {"fc2.*"}, {"conv.weight", "fc?.weight"}}) {
      const auto trained = gradients_with_frozen(patterns, mode);
      EXPECT_LT(trained.size(), all.size());
      for (const auto& [name, gradient] : trained) EXPECT_EQ(gradient, all.at(name)) << name;
    }
  }
}

TEST(Freeze, RefusesPatternsThatFreezeNothingOrEverything) {
  const auto net = small_net();
  const auto message = [&](const std::vector<std::string>& patterns) {
    return error_of<ConfigError>([&] { net->freeze(patterns); });
  };
  EXPECT_EQ(message({"head.*"}),
            "no parameter matches 'head.*'; the parameters are conv.weight, conv.bias, fc1.weight, "
            "fc1.bias, fc2.weight, fc2.bias");
  EXPECT_EQ(message({"*"}), "\"*\": no parameter of the model is left to train");
}

INSTANTIATE_TEST_SUITE_P(Backends, Outermost, ::testing::Values(Backend::cpu, Backend::meta),
                         [](const auto& backend) { return std::string(backend_name(backend.param)); });

}  // namespace
}  // namespace vitrine::test
