// SPDX-License-Identifier: Apache-2.0
#include "nn/model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "nn/gpt.h"
#include "nn/layers/conv2d.h"
#include "nn/layers/dropout.h"
#include "nn/layers/linear.h"
#include "nn/layers/pool2d.h"
#include "nn/model_builder.h"
#include "nn/resnet.h"
#include "nn/settings.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

constexpr int64_t kWideHeadFeatures = 512;

/// Adds the layers of the models below.
class Builder : public ModelBuilder {
 public:
  using ModelBuilder::ModelBuilder;

  /// Layers added afterwards start with normal weights and zero biases: convolutions as in He et al. 2015 with fan_out,
  /// Linear with deviation 0.01.
  void start_normal() { normal_ = true; }

  void conv(std::string name, int64_t out_channels, int64_t window, int64_t stride, int64_t pad) {
    conv(name, out_channels, window, stride, pad, true);
  }
  /// A convolution, a maximum, then the ReLU that papers place between them: the values are the same, and the larger
  /// tensor is not kept for the ReLU.
  void conv_and_max_pool(std::string conv_name, int64_t out_channels, int64_t window, int64_t stride, int64_t pad,
                         std::string pool_name, int64_t pool_window, int64_t pool_stride) {
    conv(std::move(conv_name), out_channels, window, stride, pad, false);
    add(std::move(pool_name),
        std::make_unique<MaxPool2d>(Pool2dConfig{.window = pool_window, .stride = pool_stride}, true));
  }
  void flatten() { add_flatten("flatten"); }
  void linear(std::string name, int64_t out_features, bool relu) {
    add(std::move(name), std::make_unique<Linear>(LinearConfig{
                             .in_features = shape()[shape().rank() - 1],
                             .out_features = out_features,
                             .relu = relu,
                             .weight_init = normal_ ? std::optional<Init>({Init::Kind::normal, 0.01F}) : std::nullopt,
                             .weight_layout = take_flattened()}));
  }

 private:
  void conv(std::string name, int64_t out_channels, int64_t window, int64_t stride, int64_t pad, bool relu) {
    Conv2dLayerConfig config{
        .in_channels = shape()[3], .out_channels = out_channels, .window = window, .conv = {stride, pad, relu}};
    if (normal_)
      config.weight_init = {Init::Kind::normal,
                            static_cast<float>(std::sqrt(2.0 / static_cast<double>(out_channels * window * window)))};
    add(std::move(name), std::make_unique<Conv2d>(config));
  }

  bool normal_ = false;
};

constexpr float kDropout = 0.5F;  // of alexnet and vgg16

// Krizhevsky 2014, as in torchvision. Indices missing here are ReLUs, merged into the layer before.
void build_alexnet(Builder& b, const ModelOptions& options, int64_t classes) {
  const float p = options.dropout.value_or(kDropout);
  b.conv_and_max_pool("features.0", 64, 11, 4, 2, "features.2", 3, 2);
  b.conv_and_max_pool("features.3", 192, 5, 1, 2, "features.5", 3, 2);
  b.conv("features.6", 384, 3, 1, 1);
  b.conv("features.8", 256, 3, 1, 1);
  b.conv_and_max_pool("features.10", 256, 3, 1, 1, "features.12", 3, 2);
  b.add("avgpool", std::make_unique<AdaptiveAvgPool2d>(6, 6));
  b.flatten();
  b.add("classifier.0", std::make_unique<Dropout>(p, 0));
  b.linear("classifier.1", 4096, true);
  b.add("classifier.3", std::make_unique<Dropout>(p, 1));
  b.linear("classifier.4", 4096, true);
  b.linear("classifier.6", classes, false);
}

// Simonyan & Zisserman 2015, configuration D, as in torchvision.
void build_vgg16(Builder& b, const ModelOptions& options, int64_t classes) {
  const float p = options.dropout.value_or(kDropout);
  b.start_normal();
  struct Block {
    int64_t channels, convolutions;
  };
  int64_t index = 0;
  const auto next = [&index](int64_t layers) {
    return fmt::format("features.{}", std::exchange(index, index + layers));
  };
  for (const Block block : {Block{64, 2}, {128, 2}, {256, 3}, {512, 3}, {512, 3}}) {
    for (int64_t i = 1; i < block.convolutions; ++i) b.conv(next(2), block.channels, 3, 1, 1);
    const std::string conv = next(2);
    b.conv_and_max_pool(conv, block.channels, 3, 1, 1, next(1), 2, 2);
  }
  b.add("avgpool", std::make_unique<AdaptiveAvgPool2d>(7, 7));
  b.flatten();
  b.linear("classifier.0", 4096, true);
  b.add("classifier.2", std::make_unique<Dropout>(p, 0));
  b.linear("classifier.3", 4096, true);
  b.add("classifier.5", std::make_unique<Dropout>(p, 1));
  b.linear("classifier.6", classes, false);
}

void build_small_cnn(Builder& b, const ModelOptions&, int64_t classes) {
  b.conv_and_max_pool("features.0", 32, 3, 1, 1, "features.2", 2, 2);
  b.conv_and_max_pool("features.3", 64, 3, 1, 1, "features.5", 2, 2);
  b.flatten();
  b.linear("classifier.0", 128, true);
  b.linear("classifier.2", classes, false);
}

void build_lenet5(Builder& b, const ModelOptions&, int64_t classes) {
  b.conv_and_max_pool("conv1", 6, 5, 1, 2, "pool1", 2, 2);
  b.conv_and_max_pool("conv2", 16, 5, 1, 0, "pool2", 2, 2);
  b.flatten();
  b.linear("fc1", 120, true);
  b.linear("fc2", 84, true);
  b.linear("fc3", classes, false);
}

void build_mlp(Builder& b, const ModelOptions&, int64_t classes) {
  b.flatten();
  b.linear("classifier.0", 256, true);
  b.linear("classifier.2", 128, true);
  b.linear("classifier.4", classes, false);
}

void build_wide_head(Builder& b, const ModelOptions&, int64_t classes) {
  b.linear("encoder", kWideHeadFeatures, true);
  b.linear("decoder", classes, false);
}

void add_resnet(Builder& b, const ResNetConfig& config, int64_t classes) {
  for (Sequential::Part& part : resnet_parts(config, b.shape()[3], classes)) {
    b.add(std::move(part.name), std::move(part.layer));
  }
}

void build_resnet18(Builder& b, const ModelOptions&, int64_t classes) { add_resnet(b, {}, classes); }

void build_resnet50(Builder& b, const ModelOptions&, int64_t classes) {
  add_resnet(b, {.bottleneck = true, .blocks = {3, 4, 6, 3}}, classes);
}

void build_resnet18_cifar(Builder& b, const ModelOptions&, int64_t classes) {
  add_resnet(b, {.small_images = true}, classes);
}

struct Recipe {
  std::string name;
  bool has_dropout;
  void (*build)(Builder&, const ModelOptions&, int64_t classes);
  int64_t image_size = 0;  // 0: set by the data
  int64_t channels = 3, classes = 10;
  bool sequence = false;  // image_size positions, each with a target
  GptConfig gpt = {};     // with layers: takes tokens
};

Recipe gpt_recipe(std::string name, int64_t layers, int64_t width, int64_t heads, int64_t positions,
                  int64_t vocabulary) {
  return {.name = std::move(name),
          .has_dropout = true,
          .build = nullptr,
          .classes = vocabulary,
          .gpt = {.layers = layers, .width = width, .heads = heads, .positions = positions}};
}

const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> all{
      {.name = "alexnet", .has_dropout = true, .build = build_alexnet, .image_size = 227},
      {.name = "vgg16", .has_dropout = true, .build = build_vgg16, .image_size = 224},
      {.name = "resnet18", .has_dropout = false, .build = build_resnet18, .image_size = 224},
      {.name = "resnet50", .has_dropout = false, .build = build_resnet50, .image_size = 224},
      {.name = "resnet18-cifar", .has_dropout = false, .build = build_resnet18_cifar},
      {.name = "small-cnn", .has_dropout = false, .build = build_small_cnn},
      {.name = "lenet5", .has_dropout = false, .build = build_lenet5},
      {.name = "mlp", .has_dropout = false, .build = build_mlp},
      {.name = "wide-head",
       .has_dropout = false,
       .build = build_wide_head,
       .image_size = 250,
       .channels = kWideHeadFeatures,
       .classes = 40000,
       .sequence = true},
      gpt_recipe("gpt2", 12, 768, 12, 1024, 50257),
      gpt_recipe("gpt2-medium", 24, 1024, 16, 1024, 50257),
      gpt_recipe("gpt2-large", 36, 1280, 20, 1024, 50257),
      gpt_recipe("gpt2-xl", 48, 1600, 25, 1024, 50257),
      gpt_recipe("nano-gpt", 6, 384, 6, 256, 256),
  };
  return all;
}

const Recipe& find_recipe(const std::string& name) {
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == name) return recipe;
  }
  throw ConfigError(
      fmt::format("make_model: unknown model '{}', expected one of {}", name, fmt::join(model_names(), ", ")));
}

Model make_gpt(const Recipe& recipe, const ModelOptions& options) {
  GptConfig config = recipe.gpt;
  config.vocabulary = options.classes.value_or(recipe.classes);
  config.dropout = options.dropout.value_or(0.0F);
  const int64_t length = options.sequence_length != 0 ? options.sequence_length : config.positions;
  if (options.image_size != 0)
    throw ConfigError(fmt::format("make_model: image_size is {}, but {} takes tokens; leave it out", options.image_size,
                                  recipe.name));
  if (length < 2 || length > config.positions) {
    throw ConfigError({given(settings::kSequenceLength, std::to_string(length)),
                       fmt::format(": {} takes sequences of 2 to {} tokens", recipe.name, config.positions)});
  }
  Model model{.name = recipe.name,
              .classes = config.vocabulary,
              .net = std::make_unique<Sequential>(gpt_parts(config)),
              .targets_per_sample = length,
              .sample_shape = {length}};
  return model;
}

}  // namespace

Shape Model::input_shape(int64_t samples) const {
  if (takes_images()) return {samples, height, width, channels};
  std::vector<int64_t> sizes = {samples};
  for (int i = 0; i < sample_shape.rank(); ++i) sizes.push_back(sample_shape[i]);
  return Shape(std::span<const int64_t>(sizes));
}

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Recipe& recipe : recipes()) all.push_back(recipe.name);
    return all;
  }();
  return names;
}

int64_t model_image_size(const std::string& name) { return find_recipe(name).image_size; }

int64_t model_sequence_length(const std::string& name) { return find_recipe(name).gpt.positions; }

float model_dropout(const std::string& name) {
  const Recipe& recipe = find_recipe(name);
  return recipe.has_dropout && recipe.gpt.layers == 0 ? kDropout : 0.0F;
}

Model make_model(const std::string& name, const ModelOptions& options) {
  const Recipe& recipe = find_recipe(name);
  if (recipe.gpt.layers > 0) return make_gpt(recipe, options);
  if (options.sequence_length != 0)
    throw ConfigError({given(settings::kSequenceLength, std::to_string(options.sequence_length)),
                       fmt::format(": {} takes no tokens; leave it out", name)});
  const int64_t size = options.image_size != 0 ? options.image_size : recipe.image_size;
  const int64_t channels = options.channels.value_or(recipe.channels),
                classes = options.classes.value_or(recipe.classes);
  if (size < 1)
    throw ConfigError(fmt::format("make_model: {} has image_size {}, expected at least 1", name, options.image_size));
  if (channels < 1 || classes < 1) {
    throw ConfigError(
        fmt::format("make_model: {} has channels {} and classes {}, expected at least 1", name, channels, classes));
  }
  if (!recipe.has_dropout && options.dropout.value_or(0.0F) != 0.0F) {
    throw ConfigError(fmt::format(
        "make_model: dropout is {1}, but {0} has no dropout; leave the option out, or choose alexnet, vgg16 or a GPT",
        name, *options.dropout));
  }
  Model model{.name = name,
              .height = size,
              .width = recipe.sequence ? 1 : size,
              .channels = channels,
              .classes = classes,
              .net = nullptr};
  if (recipe.sequence) model.targets_per_sample = size;
  const auto build = [&] {
    Builder builder(model.input_shape(1));
    recipe.build(builder, options, classes);
    return builder.build();
  };
  try {
    model.net = build();
  } catch (const ShapeError&) {
    constexpr int64_t kLargestTried = 1024;
    while (model.net == nullptr) {
      if (model.height++ >= kLargestTried) throw;
      model.width = recipe.sequence ? 1 : model.height;
      try {
        model.net = build();
      } catch (const ShapeError&) {  // too small, too
      }
    }
    throw ShapeError(
        {given(settings::kImageSize, std::to_string(size)),
         fmt::format(": {0} needs images of at least {1}x{1}, got {2}x{2}; use ", name, model.height, size),
         propose(settings::kImageSize, model.height)});
  }
  return model;
}

Model make_mlp(const std::vector<int64_t>& sizes) {
  if (sizes.size() < 2 || *std::ranges::min_element(sizes) < 1)
    throw ConfigError(fmt::format("make_mlp: got the sizes {}, expected two or more, each at least 1", sizes));
  Builder builder({1, sizes.front()});
  for (size_t i = 1; i < sizes.size(); ++i) builder.linear(fmt::format("fc{}", i), sizes[i], i + 1 < sizes.size());
  Model model{.name = "mlp", .classes = sizes.back(), .net = builder.build()};
  model.sample_shape = {sizes.front()};
  return model;
}

}  // namespace vitrine
