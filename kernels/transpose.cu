// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/index.cuh"
#include "kernels/transpose.h"
#include "runtime/cuda/dtype.cuh"

namespace vitrine::cuda {
namespace {

template <class T, class Index>
__global__ void __launch_bounds__(kBlockThreads)
    transpose_kernel(const T* x, T* y, Index count, Divisor<Index> rows, Divisor<Index> columns) {
  wait_for_earlier_work();
  const auto stride = static_cast<Index>(item_stride());
  for (auto i = static_cast<Index>(first_item()); i < count; i += stride) {
    Index image = i;
    const Index row = rows.split(image);
    const Index column = columns.split(image);
    y[i] = x[(image * rows.value() + row) * columns.value() + column];
  }
}

}  // namespace

void transpose(ExecContext& ctx, ConstView x, View y) {
  const int64_t count = x.numel();
  const dim3 grid = grid_for(ctx, count);
  with_storage(x.dtype, [&]<class T>() {
    const auto queue = [&]<class Index>(Index) {
      launch(native_stream(ctx), transpose_kernel<T, Index>, grid, dim3(kBlockThreads), x.as<T>(), y.as<T>(),
             static_cast<Index>(count), Divisor<Index>(x.shape[1]), Divisor<Index>(x.shape[2]));
    };
    if (fits_int32(count + int64_t{grid.x} * kBlockThreads)) {
      queue(int32_t{});
    } else {
      queue(int64_t{});
    }
  });
}

}  // namespace vitrine::cuda
