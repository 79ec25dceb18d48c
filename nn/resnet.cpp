// SPDX-License-Identifier: Apache-2.0
#include "nn/resnet.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "nn/layers/batch_norm2d.h"
#include "nn/layers/conv2d.h"
#include "nn/layers/flatten.h"
#include "nn/layers/linear.h"
#include "nn/layers/pool2d.h"
#include "nn/layers/residual.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

using Parts = std::vector<Sequential::Part>;

constexpr int64_t kExpansion = 4;  // of a bottleneck's output

struct Convolution {
  int64_t in_channels, out_channels, window, stride;
};

/// A convolution without bias that keeps the size at stride 1, and its batch norm.
void add_normalized(Parts& parts, std::string conv_name, std::string norm_name, const Convolution& c, bool relu) {
  const auto fan_out = static_cast<double>(c.out_channels * c.window * c.window);
  parts.push_back(
      {std::move(conv_name), std::make_unique<Conv2d>(Conv2dLayerConfig{
                                 .in_channels = c.in_channels,
                                 .out_channels = c.out_channels,
                                 .window = c.window,
                                 .bias = false,
                                 .weight_init = Init{Init::Kind::normal, static_cast<float>(std::sqrt(2.0 / fan_out))},
                                 .conv = {.stride = c.stride, .pad = c.window / 2},
                             })});
  parts.push_back({std::move(norm_name), std::make_unique<BatchNorm2d>(c.out_channels, BatchNormConfig{.relu = relu})});
}

std::unique_ptr<Layer> block(bool bottleneck, int64_t in_channels, int64_t width, int64_t stride) {
  const int64_t out_channels = bottleneck ? width * kExpansion : width;
  Parts body;
  if (bottleneck) {
    add_normalized(body, "conv1", "bn1", {in_channels, width, 1, 1}, true);
    add_normalized(body, "conv2", "bn2", {width, width, 3, stride}, true);
    add_normalized(body, "conv3", "bn3", {width, out_channels, 1, 1}, false);
  } else {
    add_normalized(body, "conv1", "bn1", {in_channels, width, 3, stride}, true);
    add_normalized(body, "conv2", "bn2", {width, width, 3, 1}, false);
  }
  std::unique_ptr<Sequential> shortcut;
  if (stride != 1 || in_channels != out_channels) {
    Parts projection;
    add_normalized(projection, "downsample.0", "downsample.1", {in_channels, out_channels, 1, stride}, false);
    shortcut = std::make_unique<Sequential>(std::move(projection));
  }
  return std::make_unique<Residual>(std::make_unique<Sequential>(std::move(body)), std::move(shortcut), true);
}

}  // namespace

std::vector<Sequential::Part> resnet_parts(const ResNetConfig& config, int64_t in_channels, int64_t classes) {
  if (in_channels < 1 || classes < 1 || config.width < 1 || *std::ranges::min_element(config.blocks) < 1) {
    throw ConfigError(fmt::format(
        "resnet_parts: in_channels is {}, classes {}, width {} and blocks {} {} {} {}; expected at least 1",
        in_channels, classes, config.width, config.blocks[0], config.blocks[1], config.blocks[2], config.blocks[3]));
  }
  Parts parts;
  if (config.small_images) {
    add_normalized(parts, "conv1", "bn1", {in_channels, config.width, 3, 1}, true);
  } else {
    add_normalized(parts, "conv1", "bn1", {in_channels, config.width, 7, 2}, false);
    // The ReLU comes after the maximum: the values are the same (see MaxPool2d).
    parts.push_back({"maxpool", std::make_unique<MaxPool2d>(Pool2dConfig{.window = 3, .stride = 2, .pad = 1}, true)});
  }
  int64_t channels = config.width;
  for (size_t layer = 0; layer < config.blocks.size(); ++layer) {
    const int64_t width = config.width << layer;
    for (int i = 0; i < config.blocks[layer]; ++i) {
      const int64_t stride = layer > 0 && i == 0 ? 2 : 1;
      parts.push_back({fmt::format("layer{}.{}", layer + 1, i), block(config.bottleneck, channels, width, stride)});
      channels = config.bottleneck ? width * kExpansion : width;
    }
  }
  parts.push_back({"avgpool", std::make_unique<AdaptiveAvgPool2d>(1, 1)});
  parts.push_back({"flatten", std::make_unique<Flatten>()});
  parts.push_back({"fc", std::make_unique<Linear>(
                             LinearConfig{.in_features = channels,
                                          .out_features = classes,
                                          .weight_layout = {CheckpointLayout::Kind::linear_chw, 1, 1, channels}})});
  return parts;
}

}  // namespace vitrine
