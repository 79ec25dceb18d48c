// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "kernels/accumulate.h"
#include "kernels/cuda/device.cuh"

/// Column sums of a matrix in the pass that reads or computes its elements: the gradient of a bias. The matrix is cut
/// into strips of rows and chunks of columns, one block for each pair. A block adds up its strip in a fixed order; the
/// last block of a chunk to finish adds up the strips, in their order. The strips depend on the shape and the workspace
/// alone, so the order is the same on every GPU.
namespace vitrine::cuda {

struct ColumnTiles {
  int64_t rows, packs;     // packs of V columns in a row
  int64_t rows_per_strip;  // the last strip may be shorter
  int32_t width;           // packs of a chunk, read by adjacent threads; at most 32
  int32_t slots;           // rows that a block reads at once
};

struct ColumnSums {
  float* sums;
  float* partial;     // (strips, columns); not used with one strip
  int32_t* counters;  // one per chunk; not used with one strip
  bool accumulate;
};

/// Adds up the strips of the block's chunk, whose `columns` columns begin at `first` of `all`.   shared (kBlockThreads)
__device__ inline void add_strips(const ColumnSums& out, int64_t first, int columns, int64_t all, float* shared) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int groups = kBlockThreads / columns, group = thread / columns;
  const int64_t column = first + thread % columns;
  const volatile float* const partial = out.partial;
  float total = 0.0F;
  if (group < groups && column < all) {
    for (int64_t strip = group; strip < gridDim.y; strip += groups) total += partial[strip * all + column];
  }
  shared[thread] = total;
  __syncthreads();
  if (group != 0 || column >= all) return;
  for (int g = 1; g < groups; ++g) total += shared[g * columns + thread];
  out.sums[column] = out.accumulate ? out.sums[column] + total : total;
}

/// add_row(row, pack, sums) adds the V elements of a pack to `sums`; it may also compute and write them.
template <int V, class AddRow>
__global__ void __launch_bounds__(kBlockThreads) sum_columns(ColumnTiles t, AddRow add_row, ColumnSums out) {
  wait_for_earlier_work();
  __shared__ float shared[kBlockThreads * V];
  const auto thread = static_cast<int>(threadIdx.x);
  const int slot = thread / t.width, lane = thread % t.width;
  const int64_t pack = int64_t{blockIdx.x} * t.width + lane;
  float sums[V] = {};
  if (slot < t.slots && pack < t.packs) {
    const int64_t begin = int64_t{blockIdx.y} * t.rows_per_strip;
    const int64_t end = begin + t.rows_per_strip < t.rows ? begin + t.rows_per_strip : t.rows;
    for (int64_t row = begin + slot; row < end; row += t.slots) add_row(row, pack, sums);
  }
  for (int e = 0; e < V; ++e)
    shared[thread * V + e] = sums[e];  // (slot, lane, element), because slots * width <= kBlockThreads
  __syncthreads();
  const int columns = t.width * V;  // of the chunk, at most kBlockThreads
  const int64_t first = int64_t{blockIdx.x} * columns, all = t.packs * V, column = first + thread;
  const bool strips = gridDim.y > 1;
  if (thread < columns && column < all) {
    float total = 0.0F;
    for (int s = 0; s < t.slots; ++s) total += shared[s * columns + thread];
    if (strips) {
      out.partial[int64_t{blockIdx.y} * all + column] = total;
    } else {
      out.sums[column] = out.accumulate ? out.sums[column] + total : total;
    }
  }
  if (strips && arrives_last(out.counters + blockIdx.x, gridDim.y)) add_strips(out, first, columns, all, shared);
}

/// Queues sum_columns over `rows` (>= 1) rows of sums.numel() columns, a multiple of V. Without workspace for strips,
/// there is one.
template <int V, class AddRow>
void queue_column_sums(ExecContext& ctx, int64_t rows, const AddRow& add_row, View sums, GradMode mode) {
  static_assert(32 * V <= kBlockThreads);
  constexpr int64_t kRowsPerThread = 4, kMostStrips = 512, kMostBlocks = 2048;
  const int64_t columns = sums.numel(), packs = columns / V;
  const int64_t chunks = ceil_div(packs, 32), width = ceil_div(packs, chunks), slots = kBlockThreads / width;
  const int64_t room = chunks > ExecContext::kCounters ? 1
                       : ctx.workspace()               ? ctx.workspace().bytes() / (columns * int64_t{sizeof(float)})
                                                       : 1;
  const int64_t wanted =
      std::min({ceil_div(rows, slots * kRowsPerThread), kMostStrips, std::max<int64_t>(1, kMostBlocks / chunks)});
  const int64_t rows_per_strip = ceil_div(rows, std::clamp<int64_t>(room, 1, wanted));
  const ColumnTiles tiles{rows, packs, rows_per_strip, static_cast<int32_t>(width), static_cast<int32_t>(slots)};
  const ColumnSums out{sums.as<float>(), static_cast<float*>(ctx.workspace().data), ctx.counters().as<int32_t>(),
                       mode == GradMode::accumulate};
  const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(ceil_div(rows, rows_per_strip)));
  launch_cooperating(native_stream(ctx), sum_columns<V, AddRow>, grid, dim3(kBlockThreads), tiles, add_row, out);
}

}  // namespace vitrine::cuda
