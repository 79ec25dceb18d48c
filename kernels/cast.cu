// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include "kernels/cast.h"
#include "kernels/cuda/cast.h"
#include "kernels/cuda/index.cuh"
#include "runtime/cuda/dtype.cuh"

namespace vitrine::cuda {
namespace {

/// Packs that a thread loads before it converts.
constexpr int kFlight = 4;

template <class From, class To, bool kAdd>
__device__ inline void cast_element(From x, To& y) {
  y = from_float<To>(kAdd ? to_float(y) + to_float(x) : to_float(x));
}

/// Elements [0, head), then packs of N, then a tail. Head and tail are shorter than a block.   kAdd: adds to the
/// content.
template <class From, class To, int N, bool kAdd>
__global__ void __launch_bounds__(kBlockThreads)
    cast_kernel(const From* x, To* y, int64_t head, int64_t packs, int64_t count) {
  wait_for_earlier_work();
  for (int64_t tile = int64_t{blockIdx.x} * (kFlight * kBlockThreads); tile < packs;
       tile += int64_t{gridDim.x} * (kFlight * kBlockThreads)) {
    const int64_t first = tile + threadIdx.x;
    Pack<From, N> in[kFlight];
    for (int k = 0; k < kFlight; ++k) {
      const int64_t at = first + k * kBlockThreads;
      if (at < packs) in[k] = reinterpret_cast<const Pack<From, N>*>(x + head)[at];
    }
    for (int k = 0; k < kFlight; ++k) {
      const int64_t at = first + k * kBlockThreads;
      if (at >= packs) break;
      auto& to = reinterpret_cast<Pack<To, N>*>(y + head)[at];
      Pack<To, N> out;
      if constexpr (kAdd) out = to;
      for (int e = 0; e < N; ++e) cast_element<From, To, kAdd>(in[k].v[e], out.v[e]);
      to = out;
    }
  }
  if (blockIdx.x != 0) return;
  const int64_t tail = head + packs * N + threadIdx.x;
  if (threadIdx.x < head) cast_element<From, To, kAdd>(x[threadIdx.x], y[threadIdx.x]);
  if (tail < count) cast_element<From, To, kAdd>(x[tail], y[tail]);
}

/// Elements before the first position where both buffers may be accessed N elements at a time, at most `count`; -1 when
/// there is none.
template <int N, class From, class To>
int64_t elements_before_packs(const From* x, const To* y, int64_t count) {
  for (int64_t head = 0; head < N; ++head) {
    if (reinterpret_cast<uintptr_t>(x + head) % sizeof(Pack<From, N>) == 0 &&
        reinterpret_cast<uintptr_t>(y + head) % sizeof(Pack<To, N>) == 0) {
      return std::min(head, count);
    }
  }
  return -1;
}

template <class From, class To, bool kAdd>
void queue_cast(ExecContext& ctx, const From* x, To* y, int64_t count) {
  constexpr int kElements = std::min(kPackElements<From>, kPackElements<To>);
  const auto queue = [&](auto* kernel, int64_t head, int64_t packs) {
    const int64_t blocks = ceil_div(std::max<int64_t>(packs, 1), int64_t{kFlight} * kBlockThreads);
    launch(native_stream(ctx), kernel, grid_of(blocks), dim3(kBlockThreads), x, y, head, packs, count);
  };
  const int64_t head = elements_before_packs<kElements>(x, y, count);
  if (head >= 0) return queue(&cast_kernel<From, To, kElements, kAdd>, head, (count - head) / kElements);
  queue(&cast_kernel<From, To, 1, kAdd>, 0, count);
}

}  // namespace

void cast(ExecContext& ctx, ConstView x, View y) {
  with_storage(x.dtype, [&]<class From>() {
    with_storage(y.dtype, [&]<class To>() { queue_cast<From, To, false>(ctx, x.as<From>(), y.as<To>(), x.numel()); });
  });
}

void widen(ExecContext& ctx, ConstView x, View y, GradMode mode) {
  const auto from = [&]<class From>(From) {
    const auto queue = mode == GradMode::accumulate ? &queue_cast<From, float, true> : &queue_cast<From, float, false>;
    queue(ctx, x.as<From>(), y.as<float>(), x.numel());
  };
  x.dtype == DType::f16 ? from(__half{}) : from(__nv_bfloat16{});
}

}  // namespace vitrine::cuda
