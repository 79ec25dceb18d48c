// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/pool2d.cuh"

namespace vitrine::cuda {
namespace {

/// The windows [floor(i * size / count), ceil((i + 1) * size / count)) along one axis.
template <class Index>
struct AdaptiveWindows {
  AdaptiveWindows(int64_t elements, int64_t windows) : size(elements), count(windows) {}
  __device__ Index begin(Index i) const { return count.quotient(i * size.value()); }
  __device__ Index end(Index i) const { return count.quotient((i + 1) * size.value() + count.value() - 1); }
  __device__ Index divisor(Index i) const { return end(i) - begin(i); }
  __device__ Index first_window(Index element) const { return size.quotient(element * count.value()); }
  __device__ Index end_window(Index element) const {
    return size.quotient((element + 1) * count.value() + size.value() - 1);
  }

  Divisor<Index> size, count;
};

template <class T, int V, class Index, class Windows>
__global__ void __launch_bounds__(kBlockThreads)
    mean_forward(Places<Index> places, Windows vertical, Windows horizontal, const T* x, T* y) {
  wait_for_earlier_work();
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
  wait_for_earlier_work();
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

/// For large windows and few places: a block computes `lanes` items of the channels of one place. The threads that
/// share an item each sum every kBlockThreads / lanes-th element of the window, and their sums are added in order.
template <class T, int V, class Index, class Windows>
__global__ void __launch_bounds__(kBlockThreads)
    mean_forward_together(Places<Index> places, Windows vertical, Windows horizontal, int lanes, int64_t blocks,
                          const T* x, T* y) {
  wait_for_earlier_work();
  constexpr int kFlight = 4;
  __shared__ float sums[kBlockThreads * V];
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int worker = static_cast<int>(threadIdx.x) / lanes;
  const int workers = kBlockThreads / lanes;
  const Index chunks = (places.groups.value() + lanes - 1) / lanes;
  for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
    const Index group = static_cast<Index>(block % chunks) * lanes + lane;
    const int64_t item = block / chunks * places.groups.value() + group;
    const bool active = group < places.groups.value();
    const Place<Index> at(places, active ? item : 0, V);
    const T* from = x + int64_t{at.image} * places.read_image + at.channel;
    const Index h_begin = vertical.begin(at.row);
    const Index w_begin = horizontal.begin(at.column);
    const Index width = horizontal.end(at.column) - w_begin;
    const Index elements = active ? (vertical.end(at.row) - h_begin) * width : 0;
    float sum[V] = {};
    for (Index i = worker; i < elements; i += kFlight * workers) {
      Pack<T, V> in[kFlight];
      for (int k = 0; k < kFlight; ++k) {
        const Index element = i + k * workers;
        if (element < elements)
          in[k] = load<T, V>(from + (h_begin + element / width) * places.read_row +
                             (w_begin + element % width) * places.channels);
      }
      for (int k = 0; k < kFlight; ++k) {
        if (i + k * workers >= elements) break;
        for (int e = 0; e < V; ++e) sum[e] += to_float(in[k].v[e]);
      }
    }
    for (int e = 0; e < V; ++e) sums[threadIdx.x * V + e] = sum[e];
    __syncthreads();
    if (worker == 0 && active) {
      const auto divisor = static_cast<float>(vertical.divisor(at.row) * horizontal.divisor(at.column));
      Pack<T, V> out;
      for (int e = 0; e < V; ++e) {
        float total = 0.0F;
        for (int w = 0; w < workers; ++w) total += sums[(w * lanes + lane) * V + e];
        out.v[e] = from_float<T>(total / divisor);
      }
      store<T, V>(out, y + item * V);
    }
    __syncthreads();  // all threads have read the sums
  }
}

template <class T, int V, class Index, class Windows>
void queue_mean_forward(ExecContext& ctx, const Windows& vertical, const Windows& horizontal, int64_t window_elements,
                        const ConstView& x, const View& y) {
  // Fewer threads than this do not fill a GPU.
  constexpr int64_t kFewItems = int64_t{1} << 17;
  constexpr int64_t kLargeWindow = 32;
  const Places<Index> places(y.shape, x.shape, V);
  if (places.count >= kFewItems || window_elements < kLargeWindow) {
    queue(ctx, places.count, &mean_forward<T, V, Index, Windows>, places, vertical, horizontal, x.as<T>(), y.as<T>());
    return;
  }
  if (places.count == 0) return;
  const int64_t groups = y.shape[3] / V;
  const int lanes = groups >= 32 ? 32 : groups >= 16 ? 16 : 8;
  const int64_t blocks = places.count / groups * ceil_div(groups, lanes);
  launch_cooperating(native_stream(ctx), &mean_forward_together<T, V, Index, Windows>, grid_of(blocks),
                     dim3(kBlockThreads), places, vertical, horizontal, lanes, blocks, x.as<T>(), y.as<T>());
}

template <class T, int V, class Index, class Windows>
void queue_mean_backward(ExecContext& ctx, const Windows& vertical, const Windows& horizontal, const ConstView& grad_y,
                         const View& grad_x) {
  const Places<Index> places(grad_x.shape, grad_y.shape, V);
  queue(ctx, places.count, &mean_backward<T, V, Index, Windows>, places, vertical, horizontal, grad_y.as<T>(),
        grad_x.as<T>());
}

/// y = mean pool of x. make_windows(index, elements, windows) returns the windows along one axis in the index type of
/// `index`; `reach` as for with_access().
template <class MakeWindows>
void mean_forward_of(ExecContext& ctx, const ConstView& x, const View& y, int64_t reach, int64_t window_elements,
                     const MakeWindows& make_windows) {
  with_storage(x.dtype, [&]<class T>() {
    with_access<T>(y.shape, x.shape, {x.data, y.data}, true, reach, [&](auto lanes, auto index) {
      queue_mean_forward<T, decltype(lanes)::value, decltype(index)>(ctx, make_windows(index, x.shape[1], y.shape[1]),
                                                                     make_windows(index, x.shape[2], y.shape[2]),
                                                                     window_elements, x, y);
    });
  });
}

/// The gradient of mean_forward_of().
template <class MakeWindows>
void mean_backward_of(ExecContext& ctx, const ConstView& grad_y, const View& grad_x, int64_t reach,
                      const MakeWindows& make_windows) {
  const Shape& small = grad_y.shape;
  const Shape& large = grad_x.shape;
  with_storage(grad_y.dtype, [&]<class T>() {
    with_access<T>(small, large, {grad_y.data, grad_x.data}, true, reach, [&](auto lanes, auto index) {
      queue_mean_backward<T, decltype(lanes)::value, decltype(index)>(
          ctx, make_windows(index, large[1], small[1]), make_windows(index, large[2], small[2]), grad_y, grad_x);
    });
  });
}

auto make_fixed_windows(const Pool2dConfig& config) {
  return [&config](auto index, int64_t elements, int64_t windows) {
    return FixedWindows<decltype(index)>(config, elements, windows);
  };
}
constexpr auto make_adaptive_windows = [](auto index, int64_t elements, int64_t windows) {
  return AdaptiveWindows<decltype(index)>(elements, windows);
};

/// Adaptive windows multiply sizes by counts.
int64_t adaptive_reach(const Shape& small, const Shape& large) {
  return std::max((large[1] + 1) * (small[1] + 1), (large[2] + 1) * (small[2] + 1));
}

}  // namespace

void avg_pool2d_forward(ExecContext& ctx, const Pool2dConfig& config, ConstView x, View y) {
  mean_forward_of(ctx, x, y, reach_of(config, x.shape), config.window * config.window, make_fixed_windows(config));
}

void avg_pool2d_backward(ExecContext& ctx, const Pool2dConfig& config, ConstView grad_y, View grad_x) {
  mean_backward_of(ctx, grad_y, grad_x, reach_of(config, grad_x.shape), make_fixed_windows(config));
}

void adaptive_avg_pool2d_forward(ExecContext& ctx, ConstView x, View y) {
  const int64_t window_elements = x.shape[1] / y.shape[1] * (x.shape[2] / y.shape[2]);
  mean_forward_of(ctx, x, y, adaptive_reach(y.shape, x.shape), window_elements, make_adaptive_windows);
}

void adaptive_avg_pool2d_backward(ExecContext& ctx, ConstView grad_y, View grad_x) {
  mean_backward_of(ctx, grad_y, grad_x, adaptive_reach(grad_y.shape, grad_x.shape), make_adaptive_windows);
}

}  // namespace vitrine::cuda
