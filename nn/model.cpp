// SPDX-License-Identifier: Apache-2.0
#include "nn/model.h"

#include <exception>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "nn/layers/conv2d.h"
#include "nn/layers/dropout.h"
#include "nn/layers/flatten.h"
#include "nn/layers/linear.h"
#include "nn/layers/pool2d.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

// Adds parts one by one and keeps the shape that the next one gets.
class Builder {
 public:
  explicit Builder(const Shape& input) : shape_(input) {}

  void conv(std::string name, int64_t out_channels, int64_t window, int64_t stride, int64_t pad) {
    add(std::move(name),
        std::make_unique<Conv2d>(Conv2dLayerConfig{
            .in_channels = shape_[3], .out_channels = out_channels, .window = window, .conv = {.stride = stride, .pad = pad, .relu = true}}));
  }
  void max_pool(std::string name, int64_t window, int64_t stride) {
    add(std::move(name), std::make_unique<MaxPool2d>(Pool2dConfig{.window = window, .stride = stride}));
  }
  void flatten() {
    if (shape_.rank() == 4) flattened_ = {CheckpointLayout::Kind::linear_chw, shape_[1], shape_[2], shape_[3]};
    add("flatten", std::make_unique<Flatten>());
  }
  void linear(std::string name, int64_t out_features, bool relu) {
    add(std::move(name), std::make_unique<Linear>(LinearConfig{
                             .in_features = shape_[1], .out_features = out_features, .relu = relu, .weight_layout = std::exchange(flattened_, {})}));
  }
  void add(std::string name, std::unique_ptr<Layer> layer) {
    try {
      shape_ = layer->output_shapes({&shape_, 1})[0];
    } catch (const ShapeError&) {
      rethrow_with_prefix(std::current_exception(), name + ": ");
    }
    parts_.push_back({std::move(name), std::move(layer)});
  }
  std::unique_ptr<Sequential> build() { return std::make_unique<Sequential>(std::move(parts_)); }

 private:
  Shape shape_;
  CheckpointLayout flattened_;  // what the next Linear reads, when it follows the flatten
  std::vector<Sequential::Part> parts_;
};

// Krizhevsky 2014, as torchvision has it: numbers that are missing here are ReLUs, merged into the layer before.
void build_alexnet(Builder& b, const ModelOptions& options) {
  const float p = options.dropout.value_or(0.5F);
  b.conv("features.0", 64, 11, 4, 2);
  b.max_pool("features.2", 3, 2);
  b.conv("features.3", 192, 5, 1, 2);
  b.max_pool("features.5", 3, 2);
  b.conv("features.6", 384, 3, 1, 1);
  b.conv("features.8", 256, 3, 1, 1);
  b.conv("features.10", 256, 3, 1, 1);
  b.max_pool("features.12", 3, 2);
  b.add("avgpool", std::make_unique<AdaptiveAvgPool2d>(6, 6));
  b.flatten();
  b.add("classifier.0", std::make_unique<Dropout>(p, 0));
  b.linear("classifier.1", 4096, true);
  b.add("classifier.3", std::make_unique<Dropout>(p, 1));
  b.linear("classifier.4", 4096, true);
  b.linear("classifier.6", options.classes, false);
}

void build_small_cnn(Builder& b, const ModelOptions& options) {
  b.conv("features.0", 32, 3, 1, 1);
  b.max_pool("features.2", 2, 2);
  b.conv("features.3", 64, 3, 1, 1);
  b.max_pool("features.5", 2, 2);
  b.flatten();
  b.linear("classifier.0", 128, true);
  b.linear("classifier.2", options.classes, false);
}

void build_lenet5(Builder& b, const ModelOptions& options) {
  b.conv("conv1", 6, 5, 1, 2);
  b.max_pool("pool1", 2, 2);
  b.conv("conv2", 16, 5, 1, 0);
  b.max_pool("pool2", 2, 2);
  b.flatten();
  b.linear("fc1", 120, true);
  b.linear("fc2", 84, true);
  b.linear("fc3", options.classes, false);
}

void build_mlp(Builder& b, const ModelOptions& options) {
  b.flatten();
  b.linear("classifier.0", 256, true);
  b.linear("classifier.2", 128, true);
  b.linear("classifier.4", options.classes, false);
}

struct Recipe {
  std::string name;
  int64_t image_size;  // 0: given by the data
  bool has_dropout;
  void (*build)(Builder&, const ModelOptions&);
};

const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> all{{"alexnet", 227, true, build_alexnet},
                                       {"small-cnn", 0, false, build_small_cnn},
                                       {"lenet5", 0, false, build_lenet5},
                                       {"mlp", 0, false, build_mlp}};
  return all;
}

const Recipe& find_recipe(const std::string& name) {
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == name) return recipe;
  }
  throw ConfigError(fmt::format("make_model: there is no model '{}'; choose one of {}", name, fmt::join(model_names(), ", ")));
}

}  // namespace

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Recipe& recipe : recipes()) all.push_back(recipe.name);
    return all;
  }();
  return names;
}

Model make_model(const std::string& name, const ModelOptions& options) {
  const Recipe& recipe = find_recipe(name);
  const int64_t size = options.image_size != 0 ? options.image_size : recipe.image_size;
  if (size < 1) throw ConfigError(fmt::format("make_model: {} needs an image_size of at least 1, got {}", name, options.image_size));
  if (options.channels < 1 || options.classes < 1) {
    throw ConfigError(fmt::format("make_model: {} has channels {} and classes {}; both must be at least 1", name, options.channels, options.classes));
  }
  if (!recipe.has_dropout && options.dropout.value_or(0.0F) != 0.0F) {
    throw ConfigError(fmt::format("make_model: {} has no dropout to set to {}; leave the option out, or choose alexnet", name, *options.dropout));
  }
  Model model{.name = name, .height = size, .width = size, .channels = options.channels, .classes = options.classes, .net = nullptr};
  Builder builder(model.input_shape(1));
  try {
    recipe.build(builder, options);
  } catch (const ShapeError&) {
    rethrow_with_prefix(std::current_exception(), fmt::format("make_model: {} needs images larger than {}x{}: ", name, size, size));
  }
  model.net = builder.build();
  return model;
}

}  // namespace vitrine
