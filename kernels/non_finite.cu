// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/device.cuh"
#include "kernels/non_finite.h"
#include "runtime/cuda/dtype.cuh"

namespace vitrine::cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(kBlockThreads) find(const T* x, int64_t count, int32_t tag, int32_t* found) {
  wait_for_earlier_work();
  for (int64_t i = first_item(); i < count; i += item_stride()) {
    const float value = to_float(x[i]);
    if (value - value == 0.0F) continue;
    atomicCAS(found, -1, tag);  // all threads have the same tag, so it does not matter which one writes it
    return;
  }
}

}  // namespace

void find_non_finite(ExecContext& ctx, ConstView x, int32_t tag, View found) {
  with_storage(x.dtype, [&]<class T>() {
    launch(native_stream(ctx), find<T>, grid_for(ctx, x.numel()), dim3(kBlockThreads), x.as<T>(), x.numel(), tag,
           found.as<int32_t>());
  });
}

}  // namespace vitrine::cuda
