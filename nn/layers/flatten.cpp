// SPDX-License-Identifier: Apache-2.0
#include "nn/layers/flatten.h"

#include <fmt/format.h>

#include "kernels/transpose.h"
#include "runtime/copy.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

/// Images (N, ..., C) as (N, positions, C).
View by_position(const View& images) {
  const Shape& s = images.shape;
  const int64_t channels = s[s.rank() - 1];
  return images.reshape({s[0], s.with_dim0(1).numel() / channels, channels});
}
/// The same images channels first, as (N, C, positions).
View by_channel(const View& flat, const Shape& images) {
  const int64_t channels = images[images.rank() - 1];
  return flat.reshape({images[0], channels, images.with_dim0(1).numel() / channels});
}

}  // namespace

Shape Flatten::output_shape(const Shape& x) const {
  if (x.rank() < 1) throw ShapeError(fmt::format("flatten: input has shape {}, expected (N, ...)", x.str()));
  return {x[0], x.with_dim0(1).numel()};
}

bool Flatten::is_identity(const Shape& x, const Pass& /*pass*/) const {
  const int64_t channels = x[x.rank() - 1];
  return !channels_first_ || channels == 1 || channels == x.with_dim0(1).numel();
}

Saved Flatten::forward(const ForwardCall& call) const {
  if (channels_first_) {
    transpose(call.ctx, by_position(call.x), by_channel(call.y, call.x.shape()));
  } else {
    copy(call.ctx, call.x.view().reshape(call.y.shape()), call.y);
  }
  return {};
}

void Flatten::backward(const BackwardCall& call) const {
  if (!call.grad_x) return;
  if (channels_first_) {
    transpose(call.ctx, by_channel(call.grad_y, call.grad_x.shape()), by_position(call.grad_x));
  } else {
    copy(call.ctx, call.grad_y.view().reshape(call.grad_x.shape()), call.grad_x);
  }
}

}  // namespace vitrine
