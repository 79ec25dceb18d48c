// SPDX-License-Identifier: Apache-2.0
// Convolution on GPUs: by cuDNN where it has a plan, otherwise by im2col and cuBLASLt.
#include <array>
#include <set>

#include <fmt/format.h>

#include "kernels/conv2d_choice.h"
#include "kernels/cuda/column_sum.h"
#include "kernels/cuda/cudnn_conv2d.h"
#include "kernels/cuda/im2col_conv2d.h"

namespace vitrine::cuda {
namespace {

struct Choices {
  using Key = std::array<int64_t, 11>;
  std::set<Key> known;
  std::vector<Conv2dChoice> list;
};

/// The implementation that ran an operation, and why it was not cuDNN.
struct Verdict {
  std::string implementation;
  Reason reason;
};
Verdict verdict(const Reason& refusal) { return {refusal.empty() ? "cuDNN" : "im2col + cuBLASLt", refusal}; }

void note_choice(ExecContext& ctx, const char* operation, const Conv2dConfig& config, DType dtype, const Shape& x,
                 const Shape& w, const Verdict& verdict) {
  auto& choices = ctx.plans().get<Choices>();
  // The name of the operation is a literal of this file, so its address identifies it.
  if (!choices.known
           .insert({static_cast<int64_t>(reinterpret_cast<intptr_t>(operation)), x[0], x[1], x[2], x[3], w[0], w[1],
                    w[2], config.stride, config.pad, static_cast<int64_t>(dtype)})
           .second)
    return;
  std::string text =
      fmt::format("{} x {} w {} stride {} pad {}", operation, x.str(), w.str(), config.stride, config.pad);
  if (dtype != DType::f32) text += fmt::format(", {}", dtype_name(dtype));
  choices.list.push_back({std::move(text), verdict.implementation, verdict.reason});
}

/// The gradient of the weights only.
Verdict run_backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y, View grad_w,
                            GradMode mode) {
  const Reason refusal = cudnn_conv2d_backward_weight(ctx, config, x, grad_y, grad_w, mode);
  if (refusal.empty()) return verdict(refusal);
  if (x.dtype != DType::f32 && cudnn_conv2d_backward_weight_rounded(ctx, config, x, grad_y, grad_w, mode).empty()) {
    return {fmt::format("cuDNN, gradient rounded to {}", dtype_name(x.dtype)),
            Reason("for a gradient in f32 ") + refusal};
  }
  im2col_conv2d_backward_weight(ctx, config, x, grad_y, grad_w, mode);
  return verdict(refusal);
}

}  // namespace

void conv2d_forward(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias, View y) {
  const Reason refusal = cudnn_conv2d_forward(ctx, config, x, w, bias, y);
  if (!refusal.empty()) im2col_conv2d_forward(ctx, config, x, w, bias, y);
  note_choice(ctx, "conv2d_forward", config, x.dtype, x.shape, w.shape, verdict(refusal));
}

void conv2d_backward_data(ExecContext& ctx, const Conv2dConfig& config, ConstView grad_y, ConstView w, View grad_x) {
  const Reason refusal = cudnn_conv2d_backward_data(ctx, config, grad_y, w, grad_x);
  if (!refusal.empty()) im2col_conv2d_backward_data(ctx, config, grad_y, w, grad_x);
  note_choice(ctx, "conv2d_backward_data", config, grad_x.dtype, grad_x.shape, w.shape, verdict(refusal));
}

void conv2d_backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y, View grad_w,
                            View grad_bias, GradMode mode) {
  const Verdict verdict = run_backward_weight(ctx, config, x, grad_y, grad_w, mode);
  note_choice(ctx, "conv2d_backward_weight", config, x.dtype, x.shape, grad_w.shape, verdict);
  if (grad_bias) column_sum(ctx, grad_y, grad_bias, mode);
}

}  // namespace vitrine::cuda

std::vector<vitrine::Conv2dChoice> vitrine::conv2d_choices(ExecContext& ctx) {
  if (ctx.backend() != Backend::cuda) return {};
  return ctx.plans().get<cuda::Choices>().list;
}
