// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/elementwise.cuh"
#include "kernels/implementations.h"

namespace vitrine::cuda {
namespace {

struct Add {
  static constexpr int kReads = 2, kWrites = 1;
  __device__ bool begin() { return true; }
  __device__ void operator()(const float (&x)[2], float (&y)[1]) const { y[0] = x[0] + x[1]; }
};

/// Packs that a thread loads before it converts.
constexpr int kFlight = 4;

/// Elements [0, head), packs of N behind them, and a tail. Head and tail are shorter than a block.
template <class From, class To, int N>
__global__ void __launch_bounds__(kBlockThreads) cast_kernel(const From* x, To* y, int64_t head, int64_t packs, int64_t count) {
  const auto convert = [](From value) { return from_float<To>(to_float(value)); };
  for (int64_t tile = int64_t{blockIdx.x} * (kFlight * kBlockThreads); tile < packs; tile += int64_t{gridDim.x} * (kFlight * kBlockThreads)) {
    const int64_t first = tile + threadIdx.x;
    Pack<From, N> in[kFlight];
    for (int k = 0; k < kFlight; ++k) {
      const int64_t at = first + k * kBlockThreads;
      if (at < packs) in[k] = reinterpret_cast<const Pack<From, N>*>(x + head)[at];
    }
    for (int k = 0; k < kFlight; ++k) {
      const int64_t at = first + k * kBlockThreads;
      if (at >= packs) break;
      Pack<To, N> out;
      for (int e = 0; e < N; ++e) out.v[e] = convert(in[k].v[e]);
      reinterpret_cast<Pack<To, N>*>(y + head)[at] = out;
    }
  }
  if (blockIdx.x != 0) return;
  const int64_t tail = head + packs * N + threadIdx.x;
  if (threadIdx.x < head) y[threadIdx.x] = convert(x[threadIdx.x]);
  if (tail < count) y[tail] = convert(x[tail]);
}

/// Elements in front of the first place where both buffers may be accessed N elements at a time, at most `count`; -1 when there is none.
template <int N, class From, class To>
int64_t elements_before_packs(const From* x, const To* y, int64_t count) {
  for (int64_t head = 0; head < N; ++head) {
    if (reinterpret_cast<uintptr_t>(x + head) % sizeof(Pack<From, N>) == 0 && reinterpret_cast<uintptr_t>(y + head) % sizeof(Pack<To, N>) == 0) {
      return std::min(head, count);
    }
  }
  return -1;
}

template <class From, class To>
void queue_cast(ExecContext& ctx, const From* x, To* y, int64_t count) {
  constexpr int kElements = std::min(kPackElements<From>, kPackElements<To>);
  const auto queue = [&](auto* kernel, int64_t head, int64_t packs) {
    const int64_t blocks = ceil_div(std::max<int64_t>(packs, 1), int64_t{kFlight} * kBlockThreads);
    launch(native_stream(ctx), kernel, grid_of(blocks), dim3(kBlockThreads), x, y, head, packs, count);
  };
  const int64_t head = elements_before_packs<kElements>(x, y, count);
  if (head >= 0) return queue(&cast_kernel<From, To, kElements>, head, (count - head) / kElements);
  queue(&cast_kernel<From, To, 1>, 0, count);
}

}  // namespace

void add(ExecContext& ctx, ConstView a, ConstView b, View y) {
  with_storage(a.dtype, [&]<class T>() { map_elements<T, Add>(ctx, {{a.as<T>(), b.as<T>()}}, {{y.as<T>()}}, a.numel(), {}); });
}

void cast(ExecContext& ctx, ConstView x, View y) {
  with_storage(x.dtype, [&]<class From>() { with_storage(y.dtype, [&]<class To>() { queue_cast(ctx, x.as<From>(), y.as<To>(), x.numel()); }); });
}

}  // namespace vitrine::cuda
