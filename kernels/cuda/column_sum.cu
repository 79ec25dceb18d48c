// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/column_sum.h"
#include "kernels/cuda/device.cuh"
#include "runtime/cuda/dtype.cuh"

namespace vitrine::cuda {
namespace {

constexpr int kColumns = 32;  // of a block, one per lane
constexpr int kRows = 8;      // warps of a block
constexpr int64_t kRowsPerStrip = 128;
constexpr int64_t kMostStrips = 128;

int64_t strips_of(int64_t rows) { return std::min(kMostStrips, ceil_div(rows, kRowsPerStrip)); }

/// Block (x, y) sums strip y of 32 columns: each warp sums every eighth row, then the sums of the warps are added in order.
template <class T>
__global__ void sum_strips(const T* x, int64_t rows, int64_t columns, int64_t rows_per_strip, bool accumulate, float* partial) {
  __shared__ float sums[kRows][kColumns];
  const int lane = static_cast<int>(threadIdx.x) % kColumns, warp = static_cast<int>(threadIdx.x) / kColumns;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + lane;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * rows_per_strip;
  const int64_t end = begin + rows_per_strip < rows ? begin + rows_per_strip : rows;
  float sum = 0.0F;
  if (column < columns) {
#pragma unroll(16 / static_cast <int>(sizeof(T)))
    for (int64_t row = begin + warp; row < end; row += kRows) sum += to_float(x[row * columns + column]);
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= columns) return;
  float* const result = partial + static_cast<int64_t>(blockIdx.y) * columns + column;
  float total = accumulate ? *result : 0.0F;
  for (int w = 0; w < kRows; ++w) total += sums[w][lane];
  *result = total;
}

__global__ void add_strips(const float* partial, int64_t strips, int64_t columns, bool accumulate, float* sums) {
  for (int64_t column = first_item(); column < columns; column += item_stride()) {
    float total = accumulate ? sums[column] : 0.0F;
    for (int64_t s = 0; s < strips; ++s) total += partial[s * columns + column];
    sums[column] = total;
  }
}

}  // namespace

void column_sum(ExecContext& ctx, ConstView x, View sums, GradMode mode, View scratch) {
  const int64_t columns = sums.numel();
  if (columns == 0) return;
  const int64_t rows = x.numel() / columns;
  const int64_t room = scratch ? scratch.bytes() / (columns * static_cast<int64_t>(sizeof(float))) : 0;
  const int64_t strips = std::min(strips_of(rows), std::max<int64_t>(1, room));
  const cudaStream_t stream = native_stream(ctx);
  const dim3 grid(static_cast<unsigned>(ceil_div(columns, kColumns)), static_cast<unsigned>(strips));
  const int64_t rows_per_strip = ceil_div(rows, strips);
  float* const partial = strips == 1 ? sums.as<float>() : static_cast<float*>(scratch.data);
  const bool accumulate = mode == GradMode::accumulate;
  with_storage(x.dtype, [&]<class T>() {
    launch_cooperating(stream, sum_strips<T>, grid, dim3(kColumns * kRows), x.as<T>(), rows, columns, rows_per_strip, accumulate && strips == 1,
                       partial);
  });
  if (strips == 1) return;
  launch(stream, add_strips, grid_for(ctx, columns), dim3(kBlockThreads), partial, strips, columns, accumulate, sums.as<float>());
}

}  // namespace vitrine::cuda
