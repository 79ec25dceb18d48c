// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <initializer_list>
#include <type_traits>

#include "kernels/cuda/index.cuh"
#include "kernels/pool2d.h"
#include "runtime/cuda/dtype.cuh"

/// What pools share: windows, places and the widest access that buffers allow. One thread writes V adjacent channels of
/// one place: it gathers, in backward too, and adds in the order of rows and columns.
namespace vitrine::cuda {

/// Windows of fixed size and stride along one axis: `count` windows over `size` elements.
template <class Index>
struct FixedWindows {
  FixedWindows(const Pool2dConfig& config, int64_t elements, int64_t windows)
      : window(static_cast<Index>(config.window)),
        pad(static_cast<Index>(config.pad)),
        size(static_cast<Index>(elements)),
        count(static_cast<Index>(windows)),
        stride(config.stride) {}
  /// Start of the window, padding included.
  __device__ Index origin(Index i) const { return i * stride.value() - pad; }
  __device__ Index begin(Index i) const { return origin(i) < 0 ? 0 : origin(i); }
  __device__ Index end(Index i) const { return origin(i) + window < size ? origin(i) + window : size; }
  /// Number of elements that the mean is taken over.
  __device__ Index divisor(Index) const { return window; }
  /// The windows that contain an element.
  __device__ Index first_window(Index element) const {
    return element + pad < window ? 0 : stride.quotient(element + pad - window) + 1;
  }
  __device__ Index end_window(Index element) const {
    const Index end = stride.quotient(element + pad) + 1;
    return end < count ? end : count;
  }

  Index window, pad, size, count;
  Divisor<Index> stride;
};

/// The output of a grid, (images, rows, columns, channels) with V channels per item, and the row length of its input.
template <class Index>
struct Places {
  Places(const Shape& written, const Shape& read, int lanes)
      : groups(std::max<int64_t>(1, written[3] / lanes)),
        columns(std::max<int64_t>(1, written[2])),
        rows(std::max<int64_t>(1, written[1])),
        channels(static_cast<Index>(written[3])),
        read_row(static_cast<Index>(read[2] * read[3])),
        read_image(read[1] * read[2] * read[3]),
        count(written.numel() / lanes) {}

  Divisor<Index> groups, columns, rows;
  Index channels;
  Index read_row;
  int64_t read_image;
  int64_t count;
};

template <class Index>
struct Place {
  __device__ Place(const Places<Index>& places, int64_t item, int lanes) {
    auto rest = static_cast<Index>(item);
    channel = places.groups.split(rest) * lanes;
    column = places.columns.split(rest);
    row = places.rows.split(rest);
    image = rest;
  }
  Index image, row, column, channel;
};

template <class T, int V>
__device__ inline Pack<T, V> load(const T* from) {
  return *reinterpret_cast<const Pack<T, V>*>(from);
}
template <class T, int V>
__device__ inline void store(const Pack<T, V>& pack, T* to) {
  *reinterpret_cast<Pack<T, V>*>(to) = pack;
}

template <int kValue>
using Constant = std::integral_constant<int, kValue>;

/// Calls body(Constant<V>, Index) with the number of channels per item and the index type that these buffers allow.
///   reach  the largest value in index arithmetic other than element offsets
template <class T, class Body>
void with_access(const Shape& a, const Shape& b, std::initializer_list<const void*> packs, bool bytes_aligned,
                 int64_t reach, const Body& body) {
  constexpr int kElements = kPackElements<T>;
  const bool packed =
      a[3] % kElements == 0 && bytes_aligned && std::all_of(packs.begin(), packs.end(), is_pack_aligned);
  const bool narrow = fits_int32(std::max({a.numel(), b.numel(), reach}));
  if (packed && narrow) {
    body(Constant<kElements>{}, int32_t{});
  } else if (packed) {
    body(Constant<kElements>{}, int64_t{});
  } else if (narrow) {
    body(Constant<1>{}, int32_t{});
  } else {
    body(Constant<1>{}, int64_t{});
  }
}

template <class... Params, class... Args>
void queue(ExecContext& ctx, int64_t items, void (*kernel)(Params...), const Args&... args) {
  if (items > 0)
    launch(native_stream(ctx), kernel, grid_of(ceil_div(items, kBlockThreads)), dim3(kBlockThreads), args...);
}

/// Bound on padded coordinates and on positions in a window of a fixed pool.
inline int64_t reach_of(const Pool2dConfig& config, const Shape& x) {
  return std::max(config.window * config.window, std::max(x[1], x[2]) + 2 * config.pad + config.window + config.stride);
}

}  // namespace vitrine::cuda
