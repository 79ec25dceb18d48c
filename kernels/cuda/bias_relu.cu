// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/bias_relu.h"
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

}  // namespace

void add_bias_relu(ExecContext& ctx, ConstView bias, bool relu, View y) {
  if (y.numel() == 0) return;
  with_storage(y.dtype, [&]<class T>() {
    launch(native_stream(ctx), bias_relu_kernel<T>, grid_for(ctx, y.numel()), dim3(kBlockThreads), y.as<T>(),
           bias ? bias.as<T>() : nullptr, y.numel(), y.shape[1], relu);
  });
}

}  // namespace vitrine::cuda
