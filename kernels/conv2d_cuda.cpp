// SPDX-License-Identifier: Apache-2.0
// Convolution on GPUs: by cuDNN where it has a plan, otherwise by im2col and cuBLASLt.
#include <array>
#include <set>

#include <fmt/format.h>

#include "kernels/conv2d_call.h"
#include "kernels/conv2d_choice.h"
#include "kernels/cuda/column_sum.h"
#include "kernels/cuda/cudnn_conv2d.h"
#include "kernels/cuda/im2col_conv2d.h"

namespace vitrine::cuda {
namespace {

struct Choices {
  std::set<RecordedConv2d::Key> known;
  std::vector<Conv2dChoice> list;
};

/// The implementation that ran an operation, and why it was not cuDNN.
struct Verdict {
  std::string implementation;
  Reason reason;
};
Verdict verdict(const Reason& refusal) { return {refusal.empty() ? "cuDNN" : "im2col + cuBLASLt", refusal}; }

/// Remembers the first choice for an operation.
void note_choice(ExecContext& ctx, RecordedConv2d operation, const Verdict& verdict) {
  auto& choices = ctx.plans().get<Choices>();
  operation.config.relu = operation.bias = operation.accumulate = false;
  if (choices.known.insert(operation.key()).second)
    choices.list.push_back({operation.str(), verdict.implementation, verdict.reason});
}

Verdict run_forward(ExecContext& ctx, const Conv2dCall& c) {
  const Reason refusal = cudnn_conv2d_forward(ctx, c.config, c.x, c.w, c.bias, c.y);
  if (!refusal.empty()) im2col_conv2d_forward(ctx, c.config, c.x, c.w, c.bias, c.y);
  return verdict(refusal);
}

Verdict run_backward_data(ExecContext& ctx, const Conv2dCall& c) {
  const Reason refusal = cudnn_conv2d_backward_data(ctx, c.config, c.y, c.w, c.x);
  if (!refusal.empty()) im2col_conv2d_backward_data(ctx, c.config, c.y, c.w, c.x);
  return verdict(refusal);
}

/// The gradient of the weights only.
Verdict run_backward_weight(ExecContext& ctx, const Conv2dCall& c) {
  const Reason refusal = cudnn_conv2d_backward_weight(ctx, c.config, c.x, c.y, c.w, c.mode);
  if (refusal.empty()) return verdict(refusal);
  if (c.x.dtype != DType::f32 && cudnn_conv2d_backward_weight_rounded(ctx, c.config, c.x, c.y, c.w, c.mode).empty()) {
    return {fmt::format("cuDNN, gradient rounded to {}", dtype_name(c.x.dtype)),
            Reason("for a gradient in f32 ") + refusal};
  }
  im2col_conv2d_backward_weight(ctx, c.config, c.x, c.y, c.w, c.mode);
  return verdict(refusal);
}

}  // namespace

void conv2d(ExecContext& ctx, const Conv2dCall& c) {
  constexpr std::array kPasses{&run_forward, &run_backward_data, &run_backward_weight};
  note_choice(ctx, c.recorded(), kPasses[static_cast<size_t>(c.pass)](ctx, c));
  if (c.pass == Conv2dPass::backward_weight && c.bias) column_sum(ctx, c.y, c.bias, c.mode);
}

}  // namespace vitrine::cuda

std::vector<vitrine::Conv2dChoice> vitrine::conv2d_choices(ExecContext& ctx) {
  if (ctx.backend() != Backend::cuda) return {};
  return ctx.plans().get<cuda::Choices>().list;
}
