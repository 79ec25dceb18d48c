// SPDX-License-Identifier: Apache-2.0
#include "kernels/embedding.h"

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/cpu/levels.h"
#include "kernels/run.h"
#include "runtime/error.h"

namespace vitrine {
namespace cpu {  // embedding_cpu.cpp
VITRINE_CPU_LEVELS(embedding_backward, ExecContext&, ConstView, ConstView, View);
VITRINE_CPU_LEVELS(add_positions, ExecContext&, ConstView, ConstView, View);
VITRINE_CPU_LEVELS(add_positions_backward, ExecContext&, ConstView, View, GradMode);
}  // namespace cpu

namespace cuda {  // embedding.cu
void embedding_backward(ExecContext& ctx, ConstView rows, ConstView grad_y, View grad_table);
void add_positions(ExecContext& ctx, ConstView x, ConstView table, View y);
void add_positions_backward(ExecContext& ctx, ConstView grad_y, View grad_table, GradMode mode);
}  // namespace cuda

namespace {

void check_table(const char* name, const char* argument, const ConstView& table, const ConstView& x) {
  check::rank(name, argument, table, 2, "(P, C)");
  if (table.shape[0] >= x.shape[1] && table.shape[1] == x.shape[2]) return;
  throw ShapeError(fmt::format("{}: {} has shape {}, expected ({} or more, {})", name, argument, table.shape.str(),
                               x.shape[1], x.shape[2]));
}

}  // namespace

void embedding_backward(ExecContext& ctx, ConstView rows, ConstView grad_y, View grad_table, GradMode mode) {
  constexpr const char* kName = "embedding_backward";
  check::rank(kName, "rows", rows, 1, "(N)");
  check::rank(kName, "grad_table", grad_table, 2, "(V, C)");
  check::tensor(kName, "rows", rows, DType::i32, ctx);
  check::tensor(kName, "grad_table", grad_table, DType::f32, ctx);
  check::shape(kName, "grad_y", grad_y, {rows.shape[0], grad_table.shape[1]});
  check::tensor(kName, "grad_y", grad_y, ctx);
  check::no_overlap(kName, {"grad_table", grad_table}, {{"rows", rows}, {"grad_y", grad_y}});
  if (mode == GradMode::overwrite && grad_table.numel() > 0) zero(ctx, grad_table);
  if (grad_y.numel() == 0) return;
  run(ctx, {kName, {rows, grad_y, grad_table}, {grad_table}}, cpu::embedding_backward,
      VITRINE_IF_CUDA(cuda::embedding_backward), rows, grad_y, grad_table);
}

void add_positions(ExecContext& ctx, ConstView x, ConstView table, View y) {
  constexpr const char* kName = "add_positions";
  check::rank(kName, "x", x, 3, "(N, T, C)");
  check_table(kName, "table", table, x);
  check::tensor(kName, "x", x, ctx);
  check::tensor(kName, "table", table, x.dtype, ctx);
  check::tensor(kName, "y", y, x.shape, x.dtype, ctx);
  check::same_or_apart(kName, {"y", y}, {{"x", x}});
  check::no_overlap(kName, {"y", y}, {{"table", table}});
  if (x.numel() == 0) return;
  run(ctx, {kName, {x, table}, {y}}, cpu::add_positions, VITRINE_IF_CUDA(cuda::add_positions), x, table, y);
}

void add_positions_backward(ExecContext& ctx, ConstView grad_y, View grad_table, GradMode mode) {
  constexpr const char* kName = "add_positions_backward";
  check::rank(kName, "grad_y", grad_y, 3, "(N, T, C)");
  check_table(kName, "grad_table", grad_table, grad_y);
  check::tensor(kName, "grad_y", grad_y, ctx);
  check::tensor(kName, "grad_table", grad_table, DType::f32, ctx);
  check::no_overlap(kName, {"grad_table", grad_table}, {{"grad_y", grad_y}});
  const int64_t length = grad_y.numel() > 0 ? grad_y.shape[1] : 0;
  const View used = grad_table.rows(0, length), rest = grad_table.rows(length, grad_table.shape[0]);
  if (rest.numel() > 0) add_nothing(ctx, mode, {rest});
  if (used.numel() == 0) return;
  run(ctx, {kName, {grad_y, content_of(used, mode)}, {used}}, cpu::add_positions_backward,
      VITRINE_IF_CUDA(cuda::add_positions_backward), grad_y, used, mode);
}

}  // namespace vitrine
