// SPDX-License-Identifier: Apache-2.0
// Convolution on GPUs: by cuDNN where it has a plan, otherwise by im2col and cuBLASLt.
#include <array>

#include <fmt/format.h>

#include "kernels/conv2d_call.h"
#include "kernels/cuda/cudnn_conv2d.h"
#include "kernels/cuda/epilogues.h"
#include "kernels/cuda/im2col_conv2d.h"

namespace vitrine::cuda {
namespace {

/// The implementation that ran an operation, and why it was not cuDNN.
struct Verdict {
  std::string implementation;
  Reason reason;
};
const char* name_of(const CudnnRun& run) { return run.tensor_cores ? "cuDNN" : "cuDNN without tensor cores"; }
Verdict verdict(const CudnnRun& run) { return {run.refusal.empty() ? name_of(run) : "im2col + cuBLASLt", run.refusal}; }

Verdict run_forward(ExecContext& ctx, const Conv2dCall& c) {
  const CudnnRun run = cudnn_conv2d_forward(ctx, c.config, c.x, c.w, c.bias, c.y);
  if (!run.refusal.empty()) im2col_conv2d_forward(ctx, c.config, c.x, c.w, c.bias, c.y);
  return verdict(run);
}

Verdict run_backward_data(ExecContext& ctx, const Conv2dCall& c) {
  const CudnnRun run = cudnn_conv2d_backward_data(ctx, c.config, c.y, c.w, c.x);
  if (!run.refusal.empty()) im2col_conv2d_backward_data(ctx, c.config, c.y, c.w, c.x);
  return verdict(run);
}

/// The gradient of the weights only.
Verdict run_backward_weight(ExecContext& ctx, const Conv2dCall& c) {
  const CudnnRun run = cudnn_conv2d_backward_weight(ctx, c.config, c.x, c.y, c.w, c.mode);
  if (run.refusal.empty()) return verdict(run);
  if (c.x.dtype != DType::f32) {
    const CudnnRun rounded = cudnn_conv2d_backward_weight_rounded(ctx, c.config, c.x, c.y, c.w, c.mode);
    if (rounded.refusal.empty()) {
      return {fmt::format("{}, gradient rounded to {}", name_of(rounded), dtype_name(c.x.dtype)),
              Reason("for a gradient in f32 ") + run.refusal};
    }
  }
  im2col_conv2d_backward_weight(ctx, c.config, c.x, c.y, c.w, c.mode);
  return verdict(run);
}

}  // namespace

void conv2d(ExecContext& ctx, const Conv2dCall& c) {
  constexpr std::array kPasses{&run_forward, &run_backward_data, &run_backward_weight};
  const Verdict verdict = kPasses[static_cast<size_t>(c.pass)](ctx, c);
  note_choice(ctx, c.recorded(), verdict.implementation, verdict.reason);
  if (c.pass == Conv2dPass::backward_weight && c.bias) column_sum(ctx, c.y, c.bias, c.mode);
}

}  // namespace vitrine::cuda
