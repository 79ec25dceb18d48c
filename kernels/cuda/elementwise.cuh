// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>

#include "kernels/cuda/index.cuh"
#include "runtime/cuda/dtype.cuh"

/// Operations that read flat buffers at i and write flat buffers at i, in one pass of 16-byte accesses.
namespace vitrine::cuda {

template <class P, int N>
struct Pointers {
  P at[N];
};

/// An operation is a struct with
///   static constexpr int kReads, kWrites
///   __device__ bool begin()                                                       once per thread, before the first
///     element; false: nothing to do
///   __device__ void operator()(const float (&in)[kReads], float (&out)[kWrites])  one element
///   using Narrow                                                                  optional: the first output is also
///     written as this 16-bit type
///
/// Base of operations without state:
template <int kInputs, int kOutputs = 1>
struct Stateless {
  static constexpr int kReads = kInputs, kWrites = kOutputs;
  __device__ bool begin() { return true; }
};

template <class F>
struct NarrowOutput {
  using Type = void;
};
template <class F>
requires requires { typename F::Narrow; }
struct NarrowOutput<F> {
  using Type = typename F::Narrow;
};
template <class F>
using Narrow = typename NarrowOutput<F>::Type;
template <class F>
inline constexpr bool kHasNarrow = !std::is_void_v<Narrow<F>>;

template <class T, class F>
struct FlatBuffers {
  Pointers<const T*, F::kReads> in;
  Pointers<T*, F::kWrites> out;  // each is one of `in` or overlaps none
  Narrow<F>* narrow;             // overlaps none; not used without F::Narrow
  int64_t count;
  int64_t head;   // elements before the packs
  int64_t packs;  // after the head; the rest is the tail
};

/// Packs that a thread loads before it computes: at least 32 bytes in flight, at most 128.
template <class F>
inline constexpr int kPacksInFlight = F::kReads <= 2 ? 4 : 2;

template <class T, class F>
__device__ inline void map_element(const FlatBuffers<T, F>& buffers, F& f, int64_t i) {
  float in[F::kReads];
  float out[F::kWrites];
  for (int r = 0; r < F::kReads; ++r) in[r] = to_float(buffers.in.at[r][i]);
  f(in, out);
  for (int w = 0; w < F::kWrites; ++w) buffers.out.at[w][i] = from_float<T>(out[w]);
  if constexpr (kHasNarrow<F>) buffers.narrow[i] = from_float<Narrow<F>>(out[0]);
}

/// The tile of a block is kPacksInFlight * kBlockThreads packs of N elements.
template <class T, int N, class F>
__global__ void __launch_bounds__(kBlockThreads) map_kernel(FlatBuffers<T, F> buffers, F f) {
  wait_for_earlier_work();
  if (!f.begin()) return;
  constexpr int kFlight = kPacksInFlight<F>;
  using P = Pack<T, N>;
  for (int64_t tile = int64_t{blockIdx.x} * (kFlight * kBlockThreads); tile < buffers.packs;
       tile += int64_t{gridDim.x} * (kFlight * kBlockThreads)) {
    const int64_t first = tile + threadIdx.x;
    P in[kFlight][F::kReads];
    for (int k = 0; k < kFlight; ++k) {
      const int64_t at = first + k * kBlockThreads;
      for (int r = 0; r < F::kReads; ++r) {
        if (at < buffers.packs) in[k][r] = reinterpret_cast<const P*>(buffers.in.at[r] + buffers.head)[at];
      }
    }
    for (int k = 0; k < kFlight; ++k) {
      const int64_t at = first + k * kBlockThreads;
      if (at >= buffers.packs) break;
      P out[F::kWrites];
      for (int e = 0; e < N; ++e) {
        float x[F::kReads];
        float y[F::kWrites];
        for (int r = 0; r < F::kReads; ++r) x[r] = to_float(in[k][r].v[e]);
        f(x, y);
        for (int w = 0; w < F::kWrites; ++w) out[w].v[e] = from_float<T>(y[w]);
      }
      for (int w = 0; w < F::kWrites; ++w) reinterpret_cast<P*>(buffers.out.at[w] + buffers.head)[at] = out[w];
      if constexpr (kHasNarrow<F>) {
        static_assert(std::is_same_v<T, float>, "the narrow output is rounded once");
        Pack<Narrow<F>, N> narrow;
        for (int e = 0; e < N; ++e) narrow.v[e] = from_float<Narrow<F>>(out[0].v[e]);
        reinterpret_cast<Pack<Narrow<F>, N>*>(buffers.narrow + buffers.head)[at] = narrow;
      }
    }
  }
  // Head and tail are shorter than two packs.
  if (blockIdx.x != 0) return;
  const int64_t tail = buffers.head + buffers.packs * N;
  if (threadIdx.x < buffers.head) map_element(buffers, f, threadIdx.x);
  if (tail + threadIdx.x < buffers.count) map_element(buffers, f, tail + threadIdx.x);
}

/// Queues the operation on `count` elements. Buffers with different alignments are accessed element by element.
template <class T, class F>
void map_elements(ExecContext& ctx, const Pointers<const T*, F::kReads>& in, const Pointers<T*, F::kWrites>& out,
                  int64_t count, F f, Narrow<F>* narrow = nullptr) {
  if (count == 0) return;
  std::array<const void*, F::kReads + F::kWrites> all{};
  std::copy(std::begin(out.at), std::end(out.at), std::copy(std::begin(in.at), std::end(in.at), all.begin()));
  constexpr int kElements = kPackElements<T>;
  constexpr int kTile = kPacksInFlight<F> * kBlockThreads;
  int64_t head = head_elements<T>(all, count);
  if constexpr (kHasNarrow<F>) {
    if (head >= 0 && reinterpret_cast<uintptr_t>(narrow + head) % sizeof(Pack<Narrow<F>, kElements>) != 0) head = -1;
  }
  if (head >= 0) {
    const int64_t packs = (count - head) / kElements;
    launch(native_stream(ctx), map_kernel<T, kElements, F>, grid_of(ceil_div(std::max<int64_t>(packs, 1), kTile)),
           dim3(kBlockThreads), FlatBuffers<T, F>{in, out, narrow, count, head, packs}, f);
  } else {
    launch(native_stream(ctx), map_kernel<T, 1, F>, grid_of(ceil_div(count, kTile)), dim3(kBlockThreads),
           FlatBuffers<T, F>{in, out, narrow, count, 0, count}, f);
  }
}

}  // namespace vitrine::cuda
