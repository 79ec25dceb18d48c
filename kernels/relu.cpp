// SPDX-License-Identifier: Apache-2.0
#include "kernels/relu.h"

#include "kernels/check.h"
#include "kernels/cpu/levels.h"
#include "kernels/run.h"

namespace vitrine {
namespace cpu {  // relu_cpu.cpp
VITRINE_CPU_LEVELS(relu_forward, ExecContext&, ConstView, View);
VITRINE_CPU_LEVELS(relu_backward, ExecContext&, ConstView, ConstView, View, View, GradMode);
}  // namespace cpu

namespace cuda {  // relu.cu
void relu_forward(ExecContext& ctx, ConstView x, View y);
void relu_backward(ExecContext& ctx, ConstView y, ConstView grad_y, View grad_x, View sums, GradMode mode);
}  // namespace cuda

void relu_forward(ExecContext& ctx, ConstView x, View y) {
  constexpr const char* kName = "relu_forward";
  check::tensor(kName, "x", x, ctx);
  check::tensor(kName, "y", y, x.shape, x.dtype, ctx);
  check::same_or_apart(kName, {"y", y}, {{"x", x}});
  run(ctx, {kName, {x}, {y}}, cpu::relu_forward, VITRINE_IF_CUDA(cuda::relu_forward), x, y);
}

void relu_backward(ExecContext& ctx, ConstView y, ConstView grad_y, View grad_x, View sums, GradMode mode) {
  constexpr const char* kName = "relu_backward";
  check::tensor(kName, "y", y, ctx);
  check::tensor(kName, "grad_y", grad_y, y.shape, y.dtype, ctx);
  check::tensor(kName, "grad_x", grad_x, y.shape, y.dtype, ctx);
  check::no_overlap(kName, {"grad_x", grad_x}, {{"y", y}});
  check::same_or_apart(kName, {"grad_x", grad_x}, {{"grad_y", grad_y}});
  check::column_sums(kName, sums, grad_x, ctx);
  check::no_overlap(kName, {"sums", sums}, {{"y", y}, {"grad_y", grad_y}, {"grad_x", grad_x}});
  if (y.numel() == 0) return add_nothing(ctx, mode, {sums});
  run(ctx, {kName, {y, grad_y, content_of(sums, mode)}, {grad_x, sums}}, cpu::relu_backward,
      VITRINE_IF_CUDA(cuda::relu_backward), y, grad_y, grad_x, sums, mode);
}

}  // namespace vitrine
