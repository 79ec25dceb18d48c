// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <vector>

#include <vitrine/nn/sequential.h>

namespace vitrine {

/// A residual network in torchvision's form (torchvision.models.resnet).   source  He et al. 2016
struct ResNetConfig {
  bool bottleneck = false;  // blocks of 1x1, 3x3 (with the stride) and 1x1 convolutions, else of two 3x3
  std::array<int, 4> blocks = {2, 2, 2, 2};  // of layer1 to layer4
  int64_t width = 64;                        // channels of the first layer; doubled from layer to layer
  bool small_images =
      false;  // conv1 3x3 with stride 1 and no max pool, instead of 7x7 with stride 2 and 3x3 with stride 2
};

/// Its parts, with torchvision's names: conv1, bn1, layer1.0 (conv1, bn1, conv2, bn2, downsample.0, downsample.1), ...,
/// fc. Initialized as there: convolutions, which have no bias, from a normal distribution with deviation sqrt(2 /
/// (out_channels * window^2)), batch norm with weight 1 and bias 0, fc as torch.nn.Linear. throws ConfigError when a
/// size is below 1.
std::vector<Sequential::Part> resnet_parts(const ResNetConfig& config, int64_t in_channels, int64_t classes);

}  // namespace vitrine
