// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/index.cuh"
#include "kernels/embedding.h"
#include "runtime/cuda/dtype.cuh"

namespace vitrine::cuda {
namespace {

/// A bit for each lane of the warp for which `matches` is true.
__device__ inline unsigned lanes_that(bool matches) { return warp_sum(matches ? 1U << threadIdx.x % 32 : 0U); }

/// A warp for each place whose row does not occur before: it adds the gradients of that place and of all later ones
/// with this row, in order.
template <class T>
__global__ void __launch_bounds__(kBlockThreads) add_to_rows(const int32_t* rows, const T* grad_y, int64_t count,
                                                             int64_t table_rows, int64_t columns, float* grad_table) {
  wait_for_earlier_work();
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const int64_t warps = int64_t{gridDim.x} * (kBlockThreads / 32);
  for (int64_t n = int64_t{blockIdx.x} * (kBlockThreads / 32) + threadIdx.x / 32; n < count; n += warps) {
    const int32_t row = rows[n];
    bool first = row >= 0 && row < table_rows;
    for (int64_t before = 0; first && before < n; before += 32)
      first = lanes_that(before + lane < n && rows[before + lane] == row) == 0;
    if (!first) continue;
    float* const to = grad_table + int64_t{row} * columns;
    for (int64_t group = n / 32 * 32; group < count; group += 32) {
      const int64_t place = group + lane;
      unsigned matches = lanes_that(place >= n && place < count && rows[place] == row);
      for (int k = 0; matches != 0; ++k, matches >>= 1) {
        if ((matches & 1U) == 0) continue;
        for (int64_t c = lane; c < columns; c += 32) to[c] += to_float(grad_y[(group + k) * columns + c]);
      }
    }
  }
}

template <class T, class Index>
__global__ void __launch_bounds__(kBlockThreads)
    add_table(const T* x, const T* table, Index count, Divisor<Index> elements, T* y) {
  wait_for_earlier_work();
  const auto stride = static_cast<Index>(item_stride());
  for (auto i = static_cast<Index>(first_item()); i < count; i += stride) {
    Index sample = i;
    y[i] = from_float<T>(to_float(x[i]) + to_float(table[elements.split(sample)]));
  }
}

template <class T>
struct AddSample {
  const T* grad_y;
  int64_t elements;
  __device__ void operator()(int64_t sample, int64_t i, float (&sums)[1]) const {
    sums[0] += to_float(grad_y[sample * elements + i]);
  }
};

}  // namespace

void embedding_backward(ExecContext& ctx, ConstView rows, ConstView grad_y, View grad_table) {
  with_storage(grad_y.dtype, [&]<class T>() {
    launch_cooperating(native_stream(ctx), add_to_rows<T>, grid_for(ctx, rows.numel() * 32), dim3(kBlockThreads),
                       rows.as<int32_t>(), grad_y.as<T>(), rows.numel(), grad_table.shape[0], grad_table.shape[1],
                       grad_table.as<float>());
  });
}

void add_positions(ExecContext& ctx, ConstView x, ConstView table, View y) {
  const int64_t count = x.numel(), elements = x.shape[1] * x.shape[2];
  const dim3 grid = grid_for(ctx, count);
  with_storage(x.dtype, [&]<class T>() {
    const auto queue = [&]<class Index>(Index) {
      launch(native_stream(ctx), add_table<T, Index>, grid, dim3(kBlockThreads), x.as<T>(), table.as<T>(),
             static_cast<Index>(count), Divisor<Index>(elements), y.as<T>());
    };
    if (fits_int32(count + int64_t{grid.x} * kBlockThreads)) {
      queue(int32_t{});
    } else {
      queue(int64_t{});
    }
  });
}

void add_positions_backward(ExecContext& ctx, ConstView grad_y, View grad_table, GradMode mode) {
  const int64_t elements = grad_table.numel();
  with_storage(grad_y.dtype, [&]<class T>() {
    queue_column_sums<1>(ctx, grad_y.shape[0], AddSample<T>{grad_y.as<T>(), elements}, grad_table.reshape({elements}),
                         mode);
  });
}

}  // namespace vitrine::cuda
