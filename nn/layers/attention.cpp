// SPDX-License-Identifier: Apache-2.0
#include "nn/layers/attention.h"

#include <fmt/format.h>

#include "kernels/attention.h"
#include "runtime/error.h"

namespace vitrine {

Attention::Attention(int64_t heads) : heads_(heads) {
  if (heads < 1) throw ConfigError(fmt::format("Attention: heads is {}, expected at least 1", heads));
}

std::string Attention::describe() const { return fmt::format("attention({} heads)", heads_); }

Shape Attention::output_shape(const Shape& x) const {
  const int64_t width = x.rank() == 3 ? x[2] / 3 : 0;
  if (width >= 1 && x[2] == 3 * width && width % heads_ == 0 && width / heads_ <= kLargestHead)
    return x.with_last(width);
  throw ShapeError(fmt::format("{}: input has shape {}, expected (N, T, 3 * {} * D) with D from 1 to {}", describe(),
                               x.str(), heads_, kLargestHead));
}

Work Attention::forward_work(const Shape& x) const {
  const int64_t pairs = x[0] * x[1] * (x[1] + 1) / 2;  // of queries and keys
  return {4 * pairs * (x[2] / 3), x.numel() / 3 * 4};
}

Tensor Attention::allocate_rows(ExecContext& ctx, const Shape& x, const char* name) const {
  return ctx.allocate({x[0], heads_, x[1]}, DType::f32, Category::activations, name);
}

Saved Attention::forward(const ForwardCall& call) const {
  const Tensor log_sums = allocate_rows(call.ctx, call.x.shape(), "attention.log_sums");
  attention_forward(call.ctx, heads_, call.x, call.y, log_sums);
  Saved saved;
  if (call.pass.training) saved.tensors = {call.x, call.y, log_sums};
  return saved;
}

void Attention::backward(const BackwardCall& call) const {
  if (!call.grad_x) return;
  const std::vector<Tensor>& kept = call.saved.tensors;
  const Tensor dots = allocate_rows(call.ctx, kept[0].shape(), "attention.dots");
  attention_backward(call.ctx, heads_, kept[0], kept[1], kept[2], call.grad_y, dots, call.grad_x);
}

}  // namespace vitrine
