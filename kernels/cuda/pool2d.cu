// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kernels/cuda/dtype.cuh"
#include "kernels/cuda/index.cuh"
#include "kernels/implementations.h"

// One thread writes V neighbouring channels of one place: it gathers, backward too, and adds in the order of rows and columns.
namespace vitrine::cuda {
namespace {

/// Windows of fixed size and stride along one axis: `count` windows over `size` elements.
template <class Index>
struct FixedWindows {
  FixedWindows(const Pool2dConfig& config, int64_t elements, int64_t windows)
      : window(static_cast<Index>(config.window)),
        pad(static_cast<Index>(config.pad)),
        size(static_cast<Index>(elements)),
        count(static_cast<Index>(windows)),
        stride(config.stride) {}
  /// Where the window begins, padding included.
  __device__ Index origin(Index i) const { return i * stride.value() - pad; }
  __device__ Index begin(Index i) const { return origin(i) < 0 ? 0 : origin(i); }
  __device__ Index end(Index i) const { return origin(i) + window < size ? origin(i) + window : size; }
  /// Elements that the window's mean is taken over.
  __device__ Index divisor(Index) const { return window; }
  /// The windows that an element lies in.
  __device__ Index first_window(Index element) const { return element + pad < window ? 0 : stride.quotient(element + pad - window) + 1; }
  __device__ Index end_window(Index element) const {
    const Index end = stride.quotient(element + pad) + 1;
    return end < count ? end : count;
  }

  Index window, pad, size, count;
  Divisor<Index> stride;
};

/// The windows [floor(i * size / count), ceil((i + 1) * size / count)) along one axis.
template <class Index>
struct AdaptiveWindows {
  AdaptiveWindows(int64_t elements, int64_t windows) : size(elements), count(windows) {}
  __device__ Index begin(Index i) const { return count.quotient(i * size.value()); }
  __device__ Index end(Index i) const { return count.quotient((i + 1) * size.value() + count.value() - 1); }
  __device__ Index divisor(Index i) const { return end(i) - begin(i); }
  __device__ Index first_window(Index element) const { return size.quotient(element * count.value()); }
  __device__ Index end_window(Index element) const { return size.quotient((element + 1) * count.value() + size.value() - 1); }

  Divisor<Index> size, count;
};

/// What a grid writes: (images, rows, columns, channels), V channels an item; and the row length of what it reads.
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

/// The largest value seen so far in each of V channels, and its position.
template <class T, int V>
struct Maxima {
  float best[V];
  int where[V];

  __device__ explicit Maxima(int first_position) {
    for (int e = 0; e < V; ++e) {
      best[e] = -INFINITY;
      where[e] = first_position;
    }
  }
  __device__ void take(const Pack<T, V>& pack, int position) {
    for (int e = 0; e < V; ++e) {
      const float value = to_float(pack.v[e]);
      const bool wins = value > best[e] || value != value;
      best[e] = wins ? value : best[e];
      where[e] = wins ? position : where[e];
    }
  }
};

/// kWindow: the window's size where it is known, so that all loads are under way before the first comparison; else 0.
template <class T, int V, int kWindow, class Index>
__global__ void __launch_bounds__(kBlockThreads)
    max_forward(Places<Index> places, FixedWindows<Index> vertical, FixedWindows<Index> horizontal, const T* x, T* y, uint8_t* indices) {
  for (int64_t item = first_item(); item < places.count; item += item_stride()) {
    const Place<Index> at(places, item, V);
    const T* from = x + int64_t{at.image} * places.read_image + at.channel;
    const Index h0 = vertical.origin(at.row);
    const Index w0 = horizontal.origin(at.column);
    const Index h_begin = vertical.begin(at.row);
    const Index w_begin = horizontal.begin(at.column);
    Maxima<T, V> maxima(static_cast<int>((h_begin - h0) * horizontal.window + w_begin - w0));
    if constexpr (kWindow > 0) {
      Pack<T, V> taps[kWindow * kWindow];
      bool inside[kWindow * kWindow];
      for (int t = 0; t < kWindow * kWindow; ++t) {
        const Index h = h0 + t / kWindow;
        const Index w = w0 + t % kWindow;
        inside[t] = h >= 0 && h < vertical.size && w >= 0 && w < horizontal.size;
        if (inside[t]) taps[t] = load<T, V>(from + h * places.read_row + w * places.channels);
      }
      for (int t = 0; t < kWindow * kWindow; ++t) {
        if (inside[t]) maxima.take(taps[t], t);
      }
    } else {
      for (Index h = h_begin; h < vertical.end(at.row); ++h) {
        for (Index w = w_begin; w < horizontal.end(at.column); ++w) {
          maxima.take(load<T, V>(from + h * places.read_row + w * places.channels), static_cast<int>((h - h0) * horizontal.window + w - w0));
        }
      }
    }
    Pack<T, V> out;
    Pack<uint8_t, V> where;
    for (int e = 0; e < V; ++e) {
      out.v[e] = from_float<T>(maxima.best[e]);
      where.v[e] = static_cast<uint8_t>(maxima.where[e]);
    }
    store<T, V>(out, y + item * V);
    if (indices != nullptr) store<uint8_t, V>(where, indices + item * V);
  }
}

/// kWindows: how many windows an element lies in along each axis at most, where that is known; else 0.
template <class T, int V, int kWindows, class Index>
__global__ void __launch_bounds__(kBlockThreads) max_backward(Places<Index> places, FixedWindows<Index> vertical, FixedWindows<Index> horizontal,
                                                              const T* grad_y, const uint8_t* indices, T* grad_x) {
  for (int64_t item = first_item(); item < places.count; item += item_stride()) {
    const Place<Index> at(places, item, V);
    const int64_t base = int64_t{at.image} * places.read_image + at.channel;
    const Index p_begin = vertical.first_window(at.row);
    const Index p_end = vertical.end_window(at.row);
    const Index q_begin = horizontal.first_window(at.column);
    const Index q_end = horizontal.end_window(at.column);
    float sum[V] = {};
    const auto add = [&](const Pack<T, V>& gradient, const Pack<uint8_t, V>& where, Index p, Index q) {
      const auto position = static_cast<int>((at.row - vertical.origin(p)) * horizontal.window + at.column - horizontal.origin(q));
      for (int e = 0; e < V; ++e) sum[e] += where.v[e] == position ? to_float(gradient.v[e]) : 0.0F;
    };
    if constexpr (kWindows > 0) {
      Pack<T, V> gradients[kWindows * kWindows];
      Pack<uint8_t, V> where[kWindows * kWindows];
      bool there[kWindows * kWindows];
      for (int t = 0; t < kWindows * kWindows; ++t) {
        const Index p = p_begin + t / kWindows;
        const Index q = q_begin + t % kWindows;
        there[t] = p < p_end && q < q_end;
        if (!there[t]) continue;
        const int64_t from = base + p * places.read_row + q * places.channels;
        gradients[t] = load<T, V>(grad_y + from);
        where[t] = load<uint8_t, V>(indices + from);
      }
      for (int t = 0; t < kWindows * kWindows; ++t) {
        if (there[t]) add(gradients[t], where[t], p_begin + t / kWindows, q_begin + t % kWindows);
      }
    } else {
      for (Index p = p_begin; p < p_end; ++p) {
        for (Index q = q_begin; q < q_end; ++q) {
          const int64_t from = base + p * places.read_row + q * places.channels;
          add(load<T, V>(grad_y + from), load<uint8_t, V>(indices + from), p, q);
        }
      }
    }
    Pack<T, V> out;
    for (int e = 0; e < V; ++e) out.v[e] = from_float<T>(sum[e]);
    store<T, V>(out, grad_x + item * V);
  }
}

template <class T, int V, class Index, class Windows>
__global__ void __launch_bounds__(kBlockThreads) mean_forward(Places<Index> places, Windows vertical, Windows horizontal, const T* x, T* y) {
  for (int64_t item = first_item(); item < places.count; item += item_stride()) {
    const Place<Index> at(places, item, V);
    const T* from = x + int64_t{at.image} * places.read_image + at.channel;
    const Index h_end = vertical.end(at.row);
    const Index w_begin = horizontal.begin(at.column);
    const Index w_end = horizontal.end(at.column);
    float sum[V] = {};
    for (Index h = vertical.begin(at.row); h < h_end; ++h) {
      for (Index w = w_begin; w < w_end; ++w) {
        const Pack<T, V> in = load<T, V>(from + h * places.read_row + w * places.channels);
        for (int e = 0; e < V; ++e) sum[e] += to_float(in.v[e]);
      }
    }
    const auto divisor = static_cast<float>(vertical.divisor(at.row) * horizontal.divisor(at.column));
    Pack<T, V> out;
    for (int e = 0; e < V; ++e) out.v[e] = from_float<T>(sum[e] / divisor);
    store<T, V>(out, y + item * V);
  }
}

template <class T, int V, class Index, class Windows>
__global__ void __launch_bounds__(kBlockThreads)
    mean_backward(Places<Index> places, Windows vertical, Windows horizontal, const T* grad_y, T* grad_x) {
  for (int64_t item = first_item(); item < places.count; item += item_stride()) {
    const Place<Index> at(places, item, V);
    const T* from = grad_y + int64_t{at.image} * places.read_image + at.channel;
    const Index p_end = vertical.end_window(at.row);
    const Index q_begin = horizontal.first_window(at.column);
    const Index q_end = horizontal.end_window(at.column);
    float sum[V] = {};
    for (Index p = vertical.first_window(at.row); p < p_end; ++p) {
      for (Index q = q_begin; q < q_end; ++q) {
        const Pack<T, V> in = load<T, V>(from + p * places.read_row + q * places.channels);
        const float share = 1.0F / static_cast<float>(vertical.divisor(p) * horizontal.divisor(q));
        for (int e = 0; e < V; ++e) sum[e] += to_float(in.v[e]) * share;
      }
    }
    Pack<T, V> out;
    for (int e = 0; e < V; ++e) out.v[e] = from_float<T>(sum[e]);
    store<T, V>(out, grad_x + item * V);
  }
}

template <int kValue>
using Constant = std::integral_constant<int, kValue>;

/// Calls body(Constant<V>, Index) with the channels of an item and the type of indices that serve these buffers.
///   reach  the largest number that index arithmetic meets, besides element offsets
template <class T, class Body>
void with_access(const Shape& a, const Shape& b, std::initializer_list<const void*> packs, bool bytes_aligned, int64_t reach, const Body& body) {
  constexpr int kElements = kPackElements<T>;
  const bool packed = a[3] % kElements == 0 && bytes_aligned && std::all_of(packs.begin(), packs.end(), is_pack_aligned);
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
  if (items > 0) launch(native_stream(ctx), kernel, grid_of(ceil_div(items, kBlockThreads)), dim3(kBlockThreads), args...);
}

template <class T>
bool is_byte_pack_aligned(const void* indices) {
  return reinterpret_cast<uintptr_t>(indices) % kPackElements<T> == 0;
}

/// Padded coordinates and positions in a window of a fixed pool stay below this.
int64_t reach_of(const Pool2dConfig& config, const Shape& x) {
  return std::max(config.window * config.window, std::max(x[1], x[2]) + 2 * config.pad + config.window + config.stride);
}

/// Adaptive windows multiply sizes by counts.
int64_t adaptive_reach(const Shape& small, const Shape& large) { return std::max((large[1] + 1) * (small[1] + 1), (large[2] + 1) * (small[2] + 1)); }

}  // namespace

void max_pool2d_forward(ExecContext& ctx, const Pool2dConfig& config, ConstView x, View y, View indices) {
  using T = float;
  with_access<T>(y.shape, x.shape, {x.data, y.data}, is_byte_pack_aligned<T>(indices.data), reach_of(config, x.shape), [&](auto lanes, auto index) {
    constexpr int kLanes = decltype(lanes)::value;
    using Index = decltype(index);
    const Places<Index> places(y.shape, x.shape, kLanes);
    const FixedWindows<Index> vertical(config, x.shape[1], y.shape[1]);
    const FixedWindows<Index> horizontal(config, x.shape[2], y.shape[2]);
    auto* kernel = &max_forward<T, kLanes, 0, Index>;
    if (config.window == 2) kernel = &max_forward<T, kLanes, 2, Index>;
    if (config.window == 3) kernel = &max_forward<T, kLanes, 3, Index>;
    queue(ctx, places.count, kernel, places, vertical, horizontal, x.as<T>(), y.as<T>(), indices.as<uint8_t>());
  });
}

void max_pool2d_backward(ExecContext& ctx, const Pool2dConfig& config, ConstView grad_y, ConstView indices, View grad_x) {
  using T = float;
  const Shape& small = grad_y.shape;
  const Shape& large = grad_x.shape;
  with_access<T>(small, large, {grad_y.data, grad_x.data}, is_byte_pack_aligned<T>(indices.data), reach_of(config, large),
                 [&](auto lanes, auto index) {
                   constexpr int kLanes = decltype(lanes)::value;
                   using Index = decltype(index);
                   const Places<Index> places(large, small, kLanes);
                   const FixedWindows<Index> vertical(config, large[1], small[1]);
                   const FixedWindows<Index> horizontal(config, large[2], small[2]);
                   const int64_t windows = ceil_div(config.window, config.stride);
                   auto* kernel = &max_backward<T, kLanes, 0, Index>;
                   if (windows == 1) kernel = &max_backward<T, kLanes, 1, Index>;
                   if (windows == 2) kernel = &max_backward<T, kLanes, 2, Index>;
                   queue(ctx, places.count, kernel, places, vertical, horizontal, grad_y.as<T>(), indices.as<uint8_t>(), grad_x.as<T>());
                 });
}

void avg_pool2d_forward(ExecContext& ctx, const Pool2dConfig& config, ConstView x, View y) {
  using T = float;
  with_access<T>(y.shape, x.shape, {x.data, y.data}, true, reach_of(config, x.shape), [&](auto lanes, auto index) {
    constexpr int kLanes = decltype(lanes)::value;
    using Index = decltype(index);
    using Windows = FixedWindows<Index>;
    const Places<Index> places(y.shape, x.shape, kLanes);
    queue(ctx, places.count, &mean_forward<T, kLanes, Index, Windows>, places, Windows(config, x.shape[1], y.shape[1]),
          Windows(config, x.shape[2], y.shape[2]), x.as<T>(), y.as<T>());
  });
}

void avg_pool2d_backward(ExecContext& ctx, const Pool2dConfig& config, ConstView grad_y, View grad_x) {
  using T = float;
  const Shape& small = grad_y.shape;
  const Shape& large = grad_x.shape;
  with_access<T>(small, large, {grad_y.data, grad_x.data}, true, reach_of(config, large), [&](auto lanes, auto index) {
    constexpr int kLanes = decltype(lanes)::value;
    using Index = decltype(index);
    using Windows = FixedWindows<Index>;
    const Places<Index> places(large, small, kLanes);
    queue(ctx, places.count, &mean_backward<T, kLanes, Index, Windows>, places, Windows(config, large[1], small[1]),
          Windows(config, large[2], small[2]), grad_y.as<T>(), grad_x.as<T>());
  });
}

void adaptive_avg_pool2d_forward(ExecContext& ctx, ConstView x, View y) {
  using T = float;
  with_access<T>(y.shape, x.shape, {x.data, y.data}, true, adaptive_reach(y.shape, x.shape), [&](auto lanes, auto index) {
    constexpr int kLanes = decltype(lanes)::value;
    using Index = decltype(index);
    using Windows = AdaptiveWindows<Index>;
    const Places<Index> places(y.shape, x.shape, kLanes);
    queue(ctx, places.count, &mean_forward<T, kLanes, Index, Windows>, places, Windows(x.shape[1], y.shape[1]), Windows(x.shape[2], y.shape[2]),
          x.as<T>(), y.as<T>());
  });
}

void adaptive_avg_pool2d_backward(ExecContext& ctx, ConstView grad_y, View grad_x) {
  using T = float;
  const Shape& small = grad_y.shape;
  const Shape& large = grad_x.shape;
  with_access<T>(small, large, {grad_y.data, grad_x.data}, true, adaptive_reach(small, large), [&](auto lanes, auto index) {
    constexpr int kLanes = decltype(lanes)::value;
    using Index = decltype(index);
    using Windows = AdaptiveWindows<Index>;
    const Places<Index> places(large, small, kLanes);
    queue(ctx, places.count, &mean_backward<T, kLanes, Index, Windows>, places, Windows(large[1], small[1]), Windows(large[2], small[2]),
          grad_y.as<T>(), grad_x.as<T>());
  });
}

}  // namespace vitrine::cuda
