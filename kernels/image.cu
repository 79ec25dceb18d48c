// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/index.cuh"
#include "kernels/image.h"
#include "runtime/cuda/dtype.cuh"

// The same operations as on the CPU, in the same order and never contracted: the bits are equal.
namespace vitrine::cuda {
namespace {

/// Where one output coordinate samples: source[first] * first_weight + source[second] * second_weight.
template <class Index>
struct Sample {
  Index first, second;
  float first_weight, second_weight;
};

template <class Index>
struct Axis {
  Axis(int64_t source, int64_t target)
      : target_size(std::max<int64_t>(1, target)),
        source_size(static_cast<Index>(source)),
        scale(static_cast<float>(source) / static_cast<float>(target)),
        same(source == target) {}

  __device__ Sample<Index> sample(Index target) const {
    if (same) return {target, target, 1.0F, 0.0F};
    const float position = fmaxf(0.0F, __fsub_rn(__fmul_rn(scale, __fadd_rn(static_cast<float>(target), 0.5F)), 0.5F));
    const auto below = static_cast<Index>(position);
    const Index first = below < source_size ? below : source_size - 1;
    const Index second = first + 1 < source_size ? first + 1 : first;
    const float second_weight = fminf(1.0F, fmaxf(0.0F, __fsub_rn(position, static_cast<float>(first))));
    return {first, second, __fsub_rn(1.0F, second_weight), second_weight};
  }

  Divisor<Index> target_size;
  Index source_size;
  float scale;
  bool same;
};

template <class Index>
struct Resize {
  Axis<Index> vertical, horizontal;
  Divisor<Index> channels;
  int64_t source_image;  // elements
  int64_t count;         // elements of y
  float mean[4], deviation[4];
};

/// An element of y, and where its row and column sample.
template <class Index>
class Cursor {
 public:
  __device__ Cursor(const Resize<Index>& resize, Index element) : r_(resize) {
    channel = r_.channels.split(element);
    column_ = r_.horizontal.target_size.split(element);
    row_ = r_.vertical.target_size.split(element);
    image = element;
    down = r_.vertical.sample(row_);
    across = r_.horizontal.sample(column_);
  }
  __device__ void advance() {
    if (++channel < r_.channels.value()) return;
    channel = 0;
    if (++column_ == r_.horizontal.target_size.value()) {
      column_ = 0;
      if (++row_ == r_.vertical.target_size.value()) {
        row_ = 0;
        ++image;
      }
      down = r_.vertical.sample(row_);
    }
    across = r_.horizontal.sample(column_);
  }

  Index image, channel;
  Sample<Index> down, across;

 private:
  const Resize<Index>& r_;
  Index row_, column_;
};

/// pixel / 255, rounded like a division: an estimate, its exact remainder, one correction.
__device__ inline float to_unit_range(uint8_t pixel) {
  constexpr float kReciprocal = 1.0F / 255.0F;
  const auto value = static_cast<float>(pixel);
  const float estimate = __fmul_rn(value, kReciprocal);
  return __fmaf_rn(__fmaf_rn(-255.0F, estimate, value), kReciprocal, estimate);
}

template <class Index>
__device__ inline float blend(float a, float b, const Sample<Index>& s) {
  return __fadd_rn(__fmul_rn(a, s.first_weight), __fmul_rn(b, s.second_weight));
}

template <class Index>
__device__ inline float normalize(const Resize<Index>& r, float value, Index channel) {
  float mean = r.mean[0];
  float deviation = r.deviation[0];
  for (int c = 1; c < 4; ++c) {  // selected, not indexed: an index would move the arrays to local memory
    mean = channel == c ? r.mean[c] : mean;
    deviation = channel == c ? r.deviation[c] : deviation;
  }
  return __fdiv_rn(__fsub_rn(value, mean), deviation);
}

template <class Index>
__device__ inline float sampled(const Resize<Index>& r, const uint8_t* images, const Cursor<Index>& at) {
  const uint8_t* pixels = images + int64_t{at.image} * r.source_image + at.channel;
  const auto tap = [&](Index y, Index x) { return to_unit_range(pixels[(y * r.horizontal.source_size + x) * r.channels.value()]); };
  const float left = blend(tap(at.down.first, at.across.first), tap(at.down.second, at.across.first), at.down);
  const float right = blend(tap(at.down.first, at.across.second), tap(at.down.second, at.across.second), at.down);
  return blend(left, right, at.across);
}

/// A thread writes 16 bytes of y.   kSame: the sizes are equal.   kPacked: y, and for equal sizes also images, may be accessed kLanes elements at a
/// time.
template <class T, bool kSame, bool kPacked, class Index>
__global__ void __launch_bounds__(kBlockThreads) resize_kernel(const __grid_constant__ Resize<Index> r, const uint8_t* images, T* y) {
  constexpr int kLanes = kPackElements<T>;
  for (int64_t item = first_item(); item * kLanes < r.count; item += item_stride()) {
    const int64_t begin = item * kLanes;
    const bool whole = begin + kLanes <= r.count;
    Pack<T, kLanes> out{};
    if constexpr (kSame) {
      Pack<uint8_t, kLanes> in{};
      if (kPacked && whole) {
        in = *reinterpret_cast<const Pack<uint8_t, kLanes>*>(images + begin);
      } else {
        for (int e = 0; e < kLanes; ++e) {
          if (begin + e < r.count) in.v[e] = images[begin + e];
        }
      }
      auto rest = static_cast<Index>(begin);
      Index channel = r.channels.split(rest);
      for (int e = 0; e < kLanes; ++e) {
        out.v[e] = from_float<T>(normalize(r, to_unit_range(in.v[e]), channel));
        channel = channel + 1 < r.channels.value() ? channel + 1 : 0;
      }
    } else {
      Cursor<Index> at(r, static_cast<Index>(begin));
      for (int e = 0; e < kLanes; ++e) {
        if (begin + e < r.count) out.v[e] = from_float<T>(normalize(r, sampled(r, images, at), at.channel));
        at.advance();
      }
    }
    if (kPacked && whole) {
      *reinterpret_cast<Pack<T, kLanes>*>(y + begin) = out;
    } else {
      for (int e = 0; e < kLanes; ++e) {
        if (begin + e < r.count) y[begin + e] = out.v[e];
      }
    }
  }
}

template <class T, class Index>
void queue_resize(ExecContext& ctx, const Normalization& normalization, const ConstView& images, const View& y) {
  constexpr int kLanes = kPackElements<T>;
  const Shape& in = images.shape;
  const Shape& out = y.shape;
  Resize<Index> r{{in[1], out[1]}, {in[2], out[2]}, Divisor<Index>(in[3]), in[1] * in[2] * in[3], y.numel(), {}, {}};
  std::copy(normalization.mean.begin(), normalization.mean.end(), r.mean);
  std::copy(normalization.std.begin(), normalization.std.end(), r.deviation);
  const bool same = r.vertical.same && r.horizontal.same;
  const bool packed = is_pack_aligned(y.data) && (!same || reinterpret_cast<uintptr_t>(images.data) % kLanes == 0);
  auto* kernel = packed ? &resize_kernel<T, false, true, Index> : &resize_kernel<T, false, false, Index>;
  if (same) kernel = packed ? &resize_kernel<T, true, true, Index> : &resize_kernel<T, true, false, Index>;
  launch(native_stream(ctx), kernel, grid_of(ceil_div(y.numel(), int64_t{kLanes} * kBlockThreads)), dim3(kBlockThreads), r, images.as<uint8_t>(),
         y.as<T>());
}

}  // namespace

void resize_normalize(ExecContext& ctx, const Normalization& normalization, ConstView images, View y) {
  if (y.numel() == 0) return;
  with_storage(y.dtype, [&]<class T>() {
    if (fits_int32(std::max(y.numel(), images.numel()) + kPackElements<T>)) {
      queue_resize<T, int32_t>(ctx, normalization, images, y);
    } else {
      queue_resize<T, int64_t>(ctx, normalization, images, y);
    }
  });
}

}  // namespace vitrine::cuda
