// SPDX-License-Identifier: Apache-2.0
#include "kernels/conv2d_form.h"

#include <algorithm>

namespace vitrine {
namespace {

// What tensor cores load at a time.
constexpr int64_t kDepthBytes = 16;
// The least channels and outputs with which channels of zeros pay.
constexpr int64_t kLeastChannels = 3;
constexpr int64_t kOutputMultiple = 64;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool pays(const Shape& x, const Shape& w, bool in_blocks, const InputTarget& target) {
  const bool tensor_cores = target.backend == Backend::cuda && (target.dtype != DType::f32 || target.tf32);
  if (!tensor_cores) return false;
  return in_blocks || (target.dtype != DType::f32 && x[3] >= kLeastChannels && w[0] % kOutputMultiple == 0);
}

}  // namespace

ImageForm conv2d_input_form(const Conv2dConfig& config, const Shape& x, const Shape& w, const InputTarget& target) {
  const Shape y = conv2d_output_shape(config, x, w);
  const bool in_blocks = config.stride > 1 && std::min(w[1], w[2]) >= config.stride;
  const int64_t depth_multiple = kDepthBytes / size_of(target.dtype);
  if (x[3] >= depth_multiple || target.packing == InputPacking::off) return {};
  if (target.packing == InputPacking::automatic && !pays(x, w, in_blocks, target)) return {};
  const int64_t block = in_blocks ? config.stride : 1;
  ImageForm form{.height = x[1], .width = x[2], .channels = x[3], .block = block};
  form.depth = ceil_div(block * block * x[3], depth_multiple) * depth_multiple;
  form.pad = in_blocks ? config.pad : 0;
  form.rows = in_blocks ? y[1] + ceil_div(w[1], block) - 1 : x[1];
  form.columns = in_blocks ? y[2] + ceil_div(w[2], block) - 1 : x[2];
  return form;
}

FormedConv2d formed_conv2d(const Conv2dConfig& config, const ImageForm& input, const Shape& w) {
  FormedConv2d formed{config, {.height = w[1], .width = w[2], .channels = w[3], .block = input.block}};
  formed.weight.rows = ceil_div(w[1], input.block);
  formed.weight.columns = ceil_div(w[2], input.block);
  formed.weight.depth = input.depth;
  if (input.block > 1) {
    formed.config.stride = 1;
    formed.config.pad = 0;
  }
  return formed;
}

}  // namespace vitrine
