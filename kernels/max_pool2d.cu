// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/cuda/column_sums.cuh"
#include "kernels/cuda/epilogues.h"
#include "kernels/cuda/pool2d.cuh"

namespace vitrine::cuda {
namespace {

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

/// kWindow: the size of the window if known at compile time, so that all loads are issued before the first comparison;
/// otherwise 0.
template <class T, int V, int kWindow, class Index>
__global__ void __launch_bounds__(kBlockThreads)
    max_forward(Places<Index> places, FixedWindows<Index> vertical, FixedWindows<Index> horizontal, const T* x, T* y,
                uint8_t* indices, bool relu) {
  wait_for_earlier_work();
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
          maxima.take(load<T, V>(from + h * places.read_row + w * places.channels),
                      static_cast<int>((h - h0) * horizontal.window + w - w0));
        }
      }
    }
    Pack<T, V> out;
    Pack<uint8_t, V> where;
    for (int e = 0; e < V; ++e) {
      const float best = maxima.best[e];
      out.v[e] = from_float<T>(relu && best <= 0.0F ? 0.0F : best);  // NaN compares false and stays NaN
      where.v[e] = relu && !(best > 0.0F) ? kCutOff : static_cast<uint8_t>(maxima.where[e]);
    }
    store<T, V>(out, y + item * V);
    if (indices != nullptr) store<uint8_t, V>(where, indices + item * V);
  }
}

/// The gradient of the input: gathers, for V adjacent channels of one place, what the windows that contain it pass on.
/// kWindows: the most windows per axis that contain an element, if known at compile time; otherwise 0.
template <class T, int V, int kWindows, class Index>
struct MaxBackward {
  Places<Index> places;
  FixedWindows<Index> vertical, horizontal;
  const T* grad_y;
  const uint8_t* indices;
  T* grad_x;

  __device__ Pack<T, V> write(int64_t item) const {
    const Place<Index> at(places, item, V);
    const int64_t base = int64_t{at.image} * places.read_image + at.channel;
    const Index p_begin = vertical.first_window(at.row);
    const Index p_end = vertical.end_window(at.row);
    const Index q_begin = horizontal.first_window(at.column);
    const Index q_end = horizontal.end_window(at.column);
    float sum[V] = {};
    const auto add = [&](const Pack<T, V>& gradient, const Pack<uint8_t, V>& where, Index p, Index q) {
      const auto position =
          static_cast<int>((at.row - vertical.origin(p)) * horizontal.window + at.column - horizontal.origin(q));
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
    return out;
  }

  /// For sum_columns: the items of a row are its packs.
  __device__ void operator()(int64_t row, int64_t pack, float (&sums)[V]) const {
    const Pack<T, V> out = write(row * places.groups.value() + pack);
    for (int e = 0; e < V; ++e) sums[e] += to_float(out.v[e]);
  }
};

template <class T, int V, int kWindows, class Index>
__global__ void __launch_bounds__(kBlockThreads) max_backward(MaxBackward<T, V, kWindows, Index> gradient) {
  wait_for_earlier_work();
  for (int64_t item = first_item(); item < gradient.places.count; item += item_stride()) gradient.write(item);
}

template <class T>
bool is_byte_pack_aligned(const void* indices) {
  return reinterpret_cast<uintptr_t>(indices) % kPackElements<T> == 0;
}

}  // namespace

void max_pool2d_forward(ExecContext& ctx, const Pool2dConfig& config, ConstView x, View y, View indices, bool relu) {
  with_storage(x.dtype, [&]<class T>() {
    with_access<T>(y.shape, x.shape, {x.data, y.data}, is_byte_pack_aligned<T>(indices.data), reach_of(config, x.shape),
                   [&](auto lanes, auto index) {
                     constexpr int kLanes = decltype(lanes)::value;
                     using Index = decltype(index);
                     const Places<Index> places(y.shape, x.shape, kLanes);
                     const FixedWindows<Index> vertical(config, x.shape[1], y.shape[1]);
                     const FixedWindows<Index> horizontal(config, x.shape[2], y.shape[2]);
                     auto* kernel = &max_forward<T, kLanes, 0, Index>;
                     if (config.window == 2) kernel = &max_forward<T, kLanes, 2, Index>;
                     if (config.window == 3) kernel = &max_forward<T, kLanes, 3, Index>;
                     queue(ctx, places.count, kernel, places, vertical, horizontal, x.as<T>(), y.as<T>(),
                           indices.as<uint8_t>(), relu);
                   });
  });
}

void max_pool2d_backward(ExecContext& ctx, const Pool2dConfig& config, ConstView grad_y, ConstView indices, View grad_x,
                         View sums, GradMode mode) {
  const Shape& small = grad_y.shape;
  const Shape& large = grad_x.shape;
  const auto queue_gradient = [&]<class T, int V, class Index, int kWindows>(Constant<kWindows>) {
    const MaxBackward<T, V, kWindows, Index> gradient{
        {large, small, V}, {config, large[1], small[1]}, {config, large[2], small[2]},
        grad_y.as<T>(),    indices.as<uint8_t>(),        grad_x.as<T>()};
    // Sums in the same pass where packs are accessed; elsewhere a second pass is rare enough.
    if constexpr (V > 1 && sizeof(Index) == 4) {
      if (sums) return queue_column_sums<V>(ctx, large.numel() / large[3], gradient, sums, mode);
    }
    queue(ctx, gradient.places.count, &max_backward<T, V, kWindows, Index>, gradient);
    if (sums) column_sum(ctx, grad_x, sums, mode);
  };
  with_storage(grad_y.dtype, [&]<class T>() {
    with_access<T>(small, large, {grad_y.data, grad_x.data}, is_byte_pack_aligned<T>(indices.data),
                   reach_of(config, large), [&](auto lanes, auto index) {
                     const auto queue_for = [&](auto windows) {
                       queue_gradient.template operator()<T, decltype(lanes)::value, decltype(index)>(windows);
                     };
                     const int64_t windows = ceil_div(config.window, config.stride);
                     if (windows == 1) return queue_for(Constant<1>());
                     if (windows == 2) return queue_for(Constant<2>());
                     queue_for(Constant<0>());
                   });
  });
}

}  // namespace vitrine::cuda
