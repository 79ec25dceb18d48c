// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/column_sum.h"
#include "kernels/cuda/column_sums.cuh"
#include "runtime/cuda/dtype.cuh"

namespace vitrine::cuda {
namespace {

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
