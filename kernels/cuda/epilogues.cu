// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/epilogues.h"
#include "kernels/cuda/index.cuh"
#include "runtime/cuda/dtype.cuh"

namespace vitrine::cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    bias_relu_kernel(T* y, const T* bias, int64_t count, int64_t columns, bool relu) {
  wait_for_earlier_work();
  for (int64_t i = first_item(); i < count; i += item_stride()) {
    float value = to_float(y[i]);
    if (bias != nullptr) value += to_float(bias[i % columns]);
    if (relu && value <= 0.0F) value = 0.0F;  // NaN stays NaN
    y[i] = from_float<T>(value);
  }
}

template <class T, int V>
struct AddStored {
  const T* x;
  int64_t packs;

  __device__ void operator()(int64_t row, int64_t pack, float (&sums)[V]) const {
    const Pack<T, V> values = reinterpret_cast<const Pack<T, V>*>(x)[row * packs + pack];
    for (int e = 0; e < V; ++e) sums[e] += to_float(values.v[e]);
  }
};

}  // namespace

void add_bias_relu(ExecContext& ctx, ConstView bias, bool relu, View y) {
  if (y.numel() == 0) return;
  with_storage(y.dtype, [&]<class T>() {
    launch(native_stream(ctx), bias_relu_kernel<T>, grid_for(ctx, y.numel()), dim3(kBlockThreads), y.as<T>(),
           bias ? bias.as<T>() : nullptr, y.numel(), y.shape[1], relu);
  });
}

void column_sum(ExecContext& ctx, ConstView x, View sums, GradMode mode) {
  const int64_t columns = sums.numel();
  if (columns == 0) return;
  const int64_t rows = x.numel() / columns;
  with_storage(x.dtype, [&]<class T>() {
    constexpr int kElements = kPackElements<T>;
    if (columns % kElements == 0 && is_pack_aligned(x.data)) {
      queue_column_sums<kElements>(ctx, rows, AddStored<T, kElements>{x.as<T>(), columns / kElements}, sums, mode);
    } else {
      queue_column_sums<1>(ctx, rows, AddStored<T, 1>{x.as<T>(), columns}, sums, mode);
    }
  });
}

}  // namespace vitrine::cuda
