// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention.h"

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/cpu/levels.h"
#include "kernels/run.h"
#include "runtime/error.h"

namespace vitrine {
namespace cpu {  // attention_cpu.cpp
VITRINE_CPU_LEVELS(attention_forward, ExecContext&, int64_t, ConstView, View, View);
VITRINE_CPU_LEVELS(attention_backward, ExecContext&, int64_t, ConstView, ConstView, ConstView, ConstView, View, View);
}  // namespace cpu

namespace cuda {  // attention.cu
void attention_forward(ExecContext& ctx, int64_t heads, ConstView x, View y, View log_sums);
void attention_backward(ExecContext& ctx, int64_t heads, ConstView x, ConstView y, ConstView log_sums, ConstView grad_y,
                        View dots, View grad_x);
}  // namespace cuda

namespace {

/// throws ShapeError unless x has queries, keys and values for these heads.
void check_heads(const char* name, int64_t heads, const ConstView& x) {
  check::rank(name, "x", x, 3, "(N, T, 3 * H * D)");
  const int64_t size = heads > 0 ? x.shape[2] / (3 * heads) : 0;
  if (size >= 1 && size <= kLargestHead && x.shape[2] == 3 * heads * size) return;
  throw ShapeError(fmt::format("{}: x has shape {}, expected (N, T, 3 * {} * D) with D from 1 to {}", name,
                               x.shape.str(), heads, kLargestHead));
}

}  // namespace

void attention_forward(ExecContext& ctx, int64_t heads, ConstView x, View y, View log_sums) {
  constexpr const char* kName = "attention_forward";
  check_heads(kName, heads, x);
  check::tensor(kName, "x", x, ctx);
  check::tensor(kName, "y", y, x.shape.with_last(x.shape[2] / 3), x.dtype, ctx);
  check::tensor(kName, "log_sums", log_sums, {x.shape[0], heads, x.shape[1]}, DType::f32, ctx);
  check::no_overlap(kName, {"y", y}, {{"x", x}, {"log_sums", log_sums}});
  check::no_overlap(kName, {"log_sums", log_sums}, {{"x", x}});
  if (x.numel() == 0) return;
  run(ctx, {kName, {x}, {y, log_sums}}, cpu::attention_forward, VITRINE_IF_CUDA(cuda::attention_forward), heads, x, y,
      log_sums);
}

void attention_backward(ExecContext& ctx, int64_t heads, ConstView x, ConstView y, ConstView log_sums, ConstView grad_y,
                        View dots, View grad_x) {
  constexpr const char* kName = "attention_backward";
  check_heads(kName, heads, x);
  const Shape shape = x.shape.with_last(x.shape[2] / 3), of_rows{x.shape[0], heads, x.shape[1]};
  check::tensor(kName, "x", x, ctx);
  check::tensor(kName, "y", y, shape, x.dtype, ctx);
  check::tensor(kName, "log_sums", log_sums, of_rows, DType::f32, ctx);
  check::tensor(kName, "grad_y", grad_y, shape, x.dtype, ctx);
  check::tensor(kName, "dots", dots, of_rows, DType::f32, ctx);
  check::tensor(kName, "grad_x", grad_x, x.shape, x.dtype, ctx);
  check::no_overlap(kName, {"grad_x", grad_x},
                    {{"x", x}, {"y", y}, {"log_sums", log_sums}, {"grad_y", grad_y}, {"dots", dots}});
  check::no_overlap(kName, {"dots", dots}, {{"x", x}, {"y", y}, {"log_sums", log_sums}, {"grad_y", grad_y}});
  if (x.numel() == 0) return;
  run(ctx, {kName, {x, y, log_sums, grad_y}, {dots, grad_x}}, cpu::attention_backward,
      VITRINE_IF_CUDA(cuda::attention_backward), heads, x, y, log_sums, grad_y, dots, grad_x);
}

}  // namespace vitrine
