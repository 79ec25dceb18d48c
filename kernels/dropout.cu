// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/cuda/index.cuh"
#include "kernels/cuda/philox.cuh"
#include "kernels/dropout.h"
#include "runtime/cuda/dtype.cuh"

namespace vitrine::cuda {
namespace {

constexpr int kWords = 4;   // one Philox block serves four elements
constexpr int kFlight = 4;  // pieces that a thread loads before it computes

struct Draw {
  uint32_t key0, key1;
  uint32_t first_sample, step, layer;
  uint32_t threshold;
  float scale;               // 1 / probability to keep
  const StepValues* values;  // null, or the first sample and the step

  __device__ void read_values() {
    if (values == nullptr) return;
    first_sample = static_cast<uint32_t>(values->first_sample);
    step = static_cast<uint32_t>(values->step);
  }
};

/// Pieces of consecutive elements of one sample; the last one of a sample may be shorter.
template <class Index>
struct Pieces {
  Divisor<Index> per_sample;
  Index count;     // of all samples
  Index elements;  // of a sample
};

/// Computes N elements of one sample, starting with the kWords elements of Philox block `block`.
template <class T, int N>
__device__ inline void drop(const Draw& draw, uint32_t sample, uint32_t block, const Pack<T, N>& in, Pack<T, N>& out) {
  for (int b = 0; b < N / kWords; ++b) {
    uint32_t words[4] = {block + static_cast<uint32_t>(b), draw.first_sample + sample, draw.step, draw.layer};
    philox4x32(draw.key0, draw.key1, words);
    for (int w = 0; w < kWords; ++w) {
      const int e = b * kWords + w;
      out.v[e] = from_float<T>(words[w] >= draw.threshold ? to_float(in.v[e]) * draw.scale : 0.0F);
    }
  }
}

/// For samples whose length is a multiple of N, and aligned x and y: a piece is a pack.
template <class T, int N, class Index>
__global__ void __launch_bounds__(kBlockThreads) dropout_packs(Draw draw, Pieces<Index> pieces, const T* x, T* y) {
  wait_for_earlier_work();
  draw.read_values();
  using P = Pack<T, N>;
  for (int64_t tile = int64_t{blockIdx.x} * (kFlight * kBlockThreads); tile < pieces.count;
       tile += int64_t{gridDim.x} * (kFlight * kBlockThreads)) {
    const int64_t first = tile + threadIdx.x;
    P in[kFlight];
    for (int k = 0; k < kFlight; ++k) {
      const int64_t at = first + k * kBlockThreads;
      if (at < pieces.count) in[k] = reinterpret_cast<const P*>(x)[at];
    }
    for (int k = 0; k < kFlight; ++k) {
      const int64_t at = first + k * kBlockThreads;
      if (at >= pieces.count) break;
      auto sample = static_cast<Index>(at);
      const auto block = static_cast<uint32_t>(pieces.per_sample.split(sample)) * (N / kWords);
      P out;
      drop<T, N>(draw, static_cast<uint32_t>(sample), block, in[k], out);
      reinterpret_cast<P*>(y)[at] = out;
    }
  }
}

/// For any length and alignment: a piece is the elements of one Philox block, accessed one by one.
template <class T, class Index>
__global__ void __launch_bounds__(kBlockThreads) dropout_elements(Draw draw, Pieces<Index> pieces, const T* x, T* y) {
  wait_for_earlier_work();
  draw.read_values();
  for (int64_t piece = first_item(); piece < pieces.count; piece += item_stride()) {
    auto sample = static_cast<Index>(piece);
    const Index block = pieces.per_sample.split(sample);
    const int64_t offset = int64_t{sample} * pieces.elements + int64_t{block} * kWords;
    const Index left = pieces.elements - block * kWords;
    Pack<T, kWords> in{};
    Pack<T, kWords> out;
    for (int w = 0; w < kWords; ++w) {
      if (w < left) in.v[w] = x[offset + w];
    }
    drop<T, kWords>(draw, static_cast<uint32_t>(sample), static_cast<uint32_t>(block), in, out);
    for (int w = 0; w < kWords; ++w) {
      if (w < left) y[offset + w] = out.v[w];
    }
  }
}

template <class T, class Index>
void queue_dropout(ExecContext& ctx, const Draw& draw, int64_t samples, int64_t elements, const T* x, T* y) {
  constexpr int kElements = kPackElements<T>;
  const bool packed = elements % kElements == 0 && is_pack_aligned(x) && is_pack_aligned(y);
  const int64_t per_sample = ceil_div(elements, packed ? kElements : kWords);
  const int64_t count = samples * per_sample;
  const Pieces<Index> pieces{Divisor<Index>(per_sample), static_cast<Index>(count), static_cast<Index>(elements)};
  if (packed) {
    launch(native_stream(ctx), dropout_packs<T, kElements, Index>, grid_of(ceil_div(count, kFlight * kBlockThreads)),
           dim3(kBlockThreads), draw, pieces, x, y);
  } else {
    launch(native_stream(ctx), dropout_elements<T, Index>, grid_of(ceil_div(count, kBlockThreads)), dim3(kBlockThreads),
           draw, pieces, x, y);
  }
}

}  // namespace

void dropout(ExecContext& ctx, const DropoutConfig& config, ConstView x, View y, ConstView values) {
  if (x.numel() == 0) return;
  const int64_t samples = x.shape[0];
  const Draw draw{static_cast<uint32_t>(config.seed),
                  static_cast<uint32_t>(config.seed >> 32),
                  static_cast<uint32_t>(config.first_sample),
                  static_cast<uint32_t>(config.step),
                  static_cast<uint32_t>(config.layer),
                  static_cast<uint32_t>(std::ceil(static_cast<double>(config.p) * 0x1p32)),
                  static_cast<float>(1.0 / (1.0 - static_cast<double>(config.p))),
                  values ? reinterpret_cast<const StepValues*>(values.as<int32_t>()) : nullptr};
  with_storage(x.dtype, [&]<class T>() {
    if (fits_int32(x.numel() + kWords)) {
      queue_dropout<T, int32_t>(ctx, draw, samples, x.numel() / samples, x.as<T>(), y.as<T>());
    } else {
      queue_dropout<T, int64_t>(ctx, draw, samples, x.numel() / samples, x.as<T>(), y.as<T>());
    }
  });
}

}  // namespace vitrine::cuda
