// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm.h"

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/cpu/f32.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/portable.h"
#include "kernels/cpu/widened.h"
#include "kernels/recorded_operations.h"
#include "kernels/run.h"
#include "runtime/error.h"

namespace vitrine {
namespace cpu {

void f32::gemm(ExecContext& ctx, const View& workspace, bool transpose_a, bool transpose_b, ConstView a, ConstView b,
               View c, int64_t c_stride, GradMode mode) {
  if (onednn::gemm(ctx, workspace, transpose_a, transpose_b, a, b, c, c_stride, mode)) return;
  portable::gemm(transpose_a, transpose_b, a, b, c, c_stride, mode);
}

void gemm(ExecContext& ctx, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c, GradMode mode) {
  if (a.dtype == DType::f32) {
    f32::gemm(ctx, ctx.workspace(), transpose_a, transpose_b, a, b, c, c.shape[1], mode);
  } else if (!onednn::computes(a.dtype) ||
             !onednn::gemm(ctx, ctx.workspace(), transpose_a, transpose_b, a, b, c, c.shape[1], mode)) {
    widened::gemm(ctx, transpose_a, transpose_b, a, b, c, mode);
  }
}

}  // namespace cpu

namespace cuda {  // products_cuda.cpp
void gemm(ExecContext& ctx, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c, GradMode mode);
}  // namespace cuda

void gemm(ExecContext& ctx, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c, GradMode mode) {
  constexpr const char* kName = "gemm";
  check::rank(kName, "a", a, 2, transpose_a ? "(K, M)" : "(M, K)");
  check::rank(kName, "b", b, 2, transpose_b ? "(N, K)" : "(K, N)");
  const int64_t m = a.shape[transpose_a ? 1 : 0];
  const int64_t k = a.shape[transpose_a ? 0 : 1];
  const int64_t n = b.shape[transpose_b ? 0 : 1];
  if (b.shape[transpose_b ? 1 : 0] != k) {
    throw ShapeError(fmt::format("gemm: b has shape {} but {}a {} needs b of shape {}", b.shape.str(),
                                 transpose_a ? "transposed " : "", a.shape.str(),
                                 transpose_b ? fmt::format("(N, {})", k) : fmt::format("({}, N)", k)));
  }
  const bool wide = c.dtype == DType::f32 || mode == GradMode::accumulate;
  check::tensor(kName, "a", a, ctx);
  check::tensor(kName, "b", b, a.dtype, ctx);
  check::tensor(kName, "c", c, {m, n}, wide ? DType::f32 : a.dtype, ctx);
  check::no_overlap(kName, {"c", c}, {{"a", a}, {"b", b}});
  if (c.numel() == 0) return;
  if (k == 0) return add_nothing(ctx, mode, {c});
  record(ctx, {.m = m,
               .n = n,
               .k = k,
               .dtype = a.dtype,
               .c_dtype = c.dtype,
               .transpose_a = transpose_a,
               .transpose_b = transpose_b,
               .accumulate = mode == GradMode::accumulate});
  run(ctx, {kName, {a, b, content_of(c, mode)}, {c}}, cpu::gemm, VITRINE_IF_CUDA(cuda::gemm), transpose_a, transpose_b,
      a, b, c, mode);
}

}  // namespace vitrine
