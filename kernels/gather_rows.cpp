// SPDX-License-Identifier: Apache-2.0
#include "kernels/gather_rows.h"

#include <algorithm>
#include <cstring>
#include <string>

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/run.h"
#include "runtime/cpu/parallel.h"
#include "runtime/error.h"

namespace vitrine {

/// Message of the DataError for a row that x does not have, on every backend.
std::string row_out_of_range(int64_t row, int64_t place, int64_t count) {
  return fmt::format("gather_rows: row {} at place {} is out of range, expected 0 <= row < {}", row, place, count);
}

namespace cpu {
namespace {

constexpr int64_t kGrainBytes = int64_t{64} << 10;

void gather_rows(ExecContext&, ConstView x, ConstView rows, View y) {
  const int64_t row_bytes = y.bytes() / y.shape[0];
  const auto* const from = x.as<char>();
  const auto* const places = rows.as<int32_t>();
  auto* const to = y.as<char>();
  parallel_for(y.shape[0], std::max<int64_t>(1, kGrainBytes / row_bytes),
               [&, from, places, to](int64_t begin, int64_t end) {
                 int64_t bad = -1;  // the first place whose row is out of range
                 for (int64_t i = begin; i < end; ++i) {
                   const int64_t row = places[i];
                   if (row >= 0 && row < x.shape[0]) {
                     std::memcpy(to + i * row_bytes, from + row * row_bytes, static_cast<size_t>(row_bytes));
                   } else {
                     std::memset(to + i * row_bytes, 0, static_cast<size_t>(row_bytes));
                     if (bad < 0) bad = i;
                   }
                 }
                 if (bad >= 0) throw DataError(row_out_of_range(places[bad], bad, x.shape[0]));
               });
}

}  // namespace
}  // namespace cpu

namespace cuda {  // gather_rows.cu
void gather_rows(ExecContext& ctx, ConstView x, ConstView rows, View y);
}  // namespace cuda

void gather_rows(ExecContext& ctx, ConstView x, ConstView rows, View y) {
  constexpr const char* kName = "gather_rows";
  check::rank(kName, "rows", rows, 1, "(N)");
  if (x.shape.rank() < 1) throw ShapeError(fmt::format("{}: x has shape {}, expected (M, ...)", kName, x.shape.str()));
  check::device(kName, "x", x, ctx);
  check::tensor(kName, "rows", rows, DType::i32, ctx);
  check::tensor(kName, "y", y, x.shape.with_dim0(rows.shape[0]), x.dtype, ctx);
  check::no_overlap(kName, {"y", y}, {{"x", x}, {"rows", rows}});
  if (y.numel() == 0) return;
  run(ctx, {kName, {x, rows}, {y}}, cpu::gather_rows, VITRINE_IF_CUDA(cuda::gather_rows), x, rows, y);
}

}  // namespace vitrine
