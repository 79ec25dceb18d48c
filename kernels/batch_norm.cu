// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "kernels/batch_norm.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/index.cuh"
#include "runtime/cuda/dtype.cuh"
#include "runtime/error.h"

namespace vitrine::cuda::batch_norm {
namespace {

constexpr int kColumns = 32;  // channels of a block of the sums, one per lane
constexpr int kWarps = 8;     // of such a block
constexpr int kFlight = 8;    // rows that a thread loads before it computes
constexpr int64_t kMostBlocks = 1024;

/// Mean of `count` numbers and the sum of their squared deviations from it.
struct Moments {
  float count, mean, squares;
};

/// Chan's formula.
__device__ inline Moments merged(const Moments& a, const Moments& b) {
  if (b.count == 0.0F) return a;
  const float count = a.count + b.count;
  const float delta = b.mean - a.mean;
  const float share = b.count / count;
  return {count, a.mean + delta * share, a.squares + b.squares + delta * delta * a.count * share};
}

struct Strip {
  int64_t begin, end;
};
__device__ inline Strip strip_of(int64_t strip, int64_t rows_per_strip, int64_t rows) {
  const int64_t begin = strip * rows_per_strip;
  const int64_t end = begin + rows_per_strip;
  return {begin < rows ? begin : rows, end < rows ? end : rows};
}

/// Where a thread of a block for 32 channels works: each warp at every eighth row or strip.
struct Place {
  int lane, warp;
  int64_t channel;
};
__device__ inline Place place() {
  const int lane = static_cast<int>(threadIdx.x) % kColumns, warp = static_cast<int>(threadIdx.x) / kColumns;
  return {lane, warp, static_cast<int64_t>(blockIdx.x) * kColumns + lane};
}

/// Calls flight(first, step, count) for the elements of the strip that a thread takes: `count` of them, `step` apart.
/// All but the last call have kFlight, so that the compiler sees no conditions there.
template <class Flight>
__device__ __forceinline__ void for_each_flight(const Place& at, const Strip& strip, int64_t channels,
                                                const Flight& flight) {
  const int64_t step = kWarps * channels;
  int64_t first = (strip.begin + at.warp) * channels + at.channel;
  int64_t left = (strip.end - strip.begin - at.warp + kWarps - 1) / kWarps;
  for (; left >= kFlight; left -= kFlight, first += kFlight * step) flight(first, step, kFlight);
  if (left > 0) flight(first, step, static_cast<int>(left));
}

/// On warp 0: what combine(a, b) makes of the warps' values, in their order.   shared (kWarps * kColumns)
template <class V, class Combine>
__device__ V combined_warps(const Place& at, V own, V* shared, const Combine& combine) {
  shared[at.warp * kColumns + at.lane] = own;
  __syncthreads();
  if (at.warp == 0) {
    for (int w = 1; w < kWarps; ++w) own = combine(own, shared[w * kColumns + at.lane]);
  }
  return own;
}

/// Block (x, y) finds the moments of strip y of 32 channels. partial (strips, 2, C).
template <class T>
__global__ void __launch_bounds__(kColumns* kWarps)
    moments_of_strips(const T* x, int64_t rows, int64_t channels, int64_t rows_per_strip, float* partial) {
  wait_for_earlier_work();
  __shared__ Moments shared[kWarps * kColumns];
  const Place at = place();
  const Strip strip = strip_of(blockIdx.y, rows_per_strip, rows);
  Moments own{0.0F, 0.0F, 0.0F};
  if (at.channel < channels) {
    for_each_flight(at, strip, channels, [&](int64_t first, int64_t step, int count) {
      float value[kFlight];
      for (int k = 0; k < kFlight && k < count; ++k) value[k] = to_float(x[first + k * step]);
      Moments block{static_cast<float>(count), 0.0F, 0.0F};
      for (int k = 0; k < kFlight && k < count; ++k) block.mean += value[k];
      block.mean /= block.count;
      for (int k = 0; k < kFlight && k < count; ++k) {
        const float deviation = value[k] - block.mean;
        block.squares += deviation * deviation;
      }
      own = own.count == 0.0F ? block : merged(own, block);
    });
  }
  own = combined_warps(at, own, shared, merged);
  if (at.warp != 0 || at.channel >= channels) return;
  float* const result = partial + static_cast<int64_t>(blockIdx.y) * 2 * channels + at.channel;
  result[0] = own.mean;
  result[channels] = own.squares;
}

/// A block for 32 channels.
__global__ void __launch_bounds__(kColumns* kWarps)
    merge_strips(const float* partial, int64_t strips, int64_t rows, int64_t channels, int64_t rows_per_strip,
                 float* moments) {
  wait_for_earlier_work();
  __shared__ Moments shared[kWarps * kColumns];
  const Place at = place();
  Moments all{0.0F, 0.0F, 0.0F};
  for (int64_t s = at.warp; at.channel < channels && s < strips; s += kWarps) {
    const Strip strip = strip_of(s, rows_per_strip, rows);
    const Moments one{static_cast<float>(strip.end - strip.begin), partial[2 * s * channels + at.channel],
                      partial[(2 * s + 1) * channels + at.channel]};
    all = all.count == 0.0F ? one : merged(all, one);
  }
  all = combined_warps(at, all, shared, merged);
  if (at.warp != 0 || at.channel >= channels) return;
  moments[at.channel] = all.mean;
  moments[channels + at.channel] = all.squares;
}

struct Sums {
  float sum, dot;
};
__device__ inline Sums added(const Sums& a, const Sums& b) { return {a.sum + b.sum, a.dot + b.dot}; }

/// As moments_of_strips: sums of grad_y and of grad_y * (x - mean).
template <class T>
__global__ void __launch_bounds__(kColumns* kWarps)
    sum_strips(const T* x, const T* grad_y, const float* mean, int64_t rows, int64_t channels, int64_t rows_per_strip,
               float* partial) {
  wait_for_earlier_work();
  __shared__ Sums shared[kWarps * kColumns];
  const Place at = place();
  const Strip strip = strip_of(blockIdx.y, rows_per_strip, rows);
  Sums own{0.0F, 0.0F};
  if (at.channel < channels) {
    const float center = mean[at.channel];
    for_each_flight(at, strip, channels, [&](int64_t first, int64_t step, int count) {
      float value[kFlight];
      float gradient[kFlight];
      for (int k = 0; k < kFlight && k < count; ++k) {
        value[k] = to_float(x[first + k * step]);
        gradient[k] = to_float(grad_y[first + k * step]);
      }
      // Sums of a few rows first: rounding errors grow with the number of additions.
      Sums few{0.0F, 0.0F};
      for (int k = 0; k < kFlight && k < count; ++k)
        few = {few.sum + gradient[k], few.dot + gradient[k] * (value[k] - center)};
      own = added(own, few);
    });
  }
  own = combined_warps(at, own, shared, added);
  if (at.warp != 0 || at.channel >= channels) return;
  float* const result = partial + static_cast<int64_t>(blockIdx.y) * 2 * channels + at.channel;
  result[0] = own.sum;
  result[channels] = own.dot;
}

/// A block for 32 channels. partial may be sums, with one strip.
__global__ void __launch_bounds__(kColumns* kWarps)
    add_strips(const float* partial, int64_t strips, int64_t channels, const float* invstd, bool accumulate,
               float* sums, float* grad_weight, float* grad_bias) {
  wait_for_earlier_work();
  __shared__ Sums shared[kWarps * kColumns];
  const Place at = place();
  const int64_t c = at.channel;
  Sums all{0.0F, 0.0F};
  for (int64_t s = at.warp; c < channels && s < strips; s += kWarps)
    all = added(all, {partial[2 * s * channels + c], partial[(2 * s + 1) * channels + c]});
  all = combined_warps(at, all, shared, added);
  if (at.warp != 0 || c >= channels) return;
  const float dot = all.dot * invstd[c];
  sums[c] = all.sum;
  sums[channels + c] = dot;
  grad_bias[c] = (accumulate ? grad_bias[c] : 0.0F) + all.sum;
  grad_weight[c] = (accumulate ? grad_weight[c] : 0.0F) + dot;
}

/// The grid of a sum over rows, and its partial results (strips, 2, C): in the workspace, or with one strip in the
/// result.
struct Strips {
  Strips(ExecContext& ctx, int64_t rows, int64_t channels, float* result) {
    const int64_t columns = ceil_div(channels, kColumns);
    const View workspace = ctx.workspace();
    const int64_t room = workspace ? workspace.bytes() / (2 * channels * static_cast<int64_t>(sizeof(float))) : 0;
    const int64_t wanted = std::min(ceil_div(kMostBlocks, columns), ceil_div(rows, kFlight * kWarps));
    count = std::max<int64_t>(1, std::min(wanted, room));
    rows_each = ceil_div(rows, count);
    count = ceil_div(rows, rows_each);
    grid = dim3(static_cast<unsigned>(columns), static_cast<unsigned>(count));
    partial = count == 1 ? result : scratch<float>(ctx, "batch_norm", 2 * count * channels);
  }
  int64_t count, rows_each;
  dim3 grid;
  float* partial;
};

__global__ void sums_kernel(float rows, const float* mean, int64_t channels, float* sums) {
  wait_for_earlier_work();
  for (int64_t c = first_item(); c < channels; c += item_stride()) sums[c] = rows * mean[c];
}

__global__ void recenter_kernel(float rows, float total_rows, const float* sums, int64_t channels, float* moments) {
  wait_for_earlier_work();
  for (int64_t c = first_item(); c < channels; c += item_stride()) {
    const float center = sums[c] / total_rows;
    const float delta = moments[c] - center;
    moments[channels + c] += rows * delta * delta;
    moments[c] = center;
  }
}

__global__ void statistics_kernel(BatchNormConfig config, float rows, float others, const float* moments,
                                  int64_t channels, float* statistics, float* running_mean, float* running_var) {
  wait_for_earlier_work();
  for (int64_t c = first_item(); c < channels; c += item_stride()) {
    const float mean = moments[c], squares = moments[channels + c];
    statistics[c] = mean;
    statistics[channels + c] = 1.0F / sqrtf(squares / rows + config.eps);
    if (running_mean == nullptr || !isfinite(mean) || !isfinite(squares)) continue;
    running_mean[c] = (1.0F - config.momentum) * running_mean[c] + config.momentum * mean;
    running_var[c] = (1.0F - config.momentum) * running_var[c] + config.momentum * (squares / others);
  }
}

__global__ void running_kernel(float eps, const float* running_mean, const float* running_var, int64_t channels,
                               float* statistics) {
  wait_for_earlier_work();
  for (int64_t c = first_item(); c < channels; c += item_stride()) {
    statistics[c] = running_mean[c];
    statistics[channels + c] = 1.0F / sqrtf(running_var[c] + eps);
  }
}

/// y = (x - mean) * invstd * weight + bias for N channels.
template <int N>
struct Normalize {
  static constexpr int kReads = 1;
  const float *mean, *invstd, *weight, *bias;
  bool relu;

  float center[N], scale[N], shift[N];
  __device__ void begin(int64_t channel) {
    for (int e = 0; e < N; ++e) {
      center[e] = mean[channel + e];
      scale[e] = invstd[channel + e] * weight[channel + e];
      shift[e] = bias[channel + e];
    }
  }
  __device__ float operator()(int e, float x, float) const {
    const float y = (x - center[e]) * scale[e] + shift[e];
    return relu && y <= 0.0F ? 0.0F : y;  // NaN compares false and stays NaN
  }
};

/// grad_x = weight * invstd * (grad_y - average - (x - mean) * slope) for N channels.
template <int N>
struct DataGradient {
  static constexpr int kReads = 2;
  const float *mean, *invstd, *weight, *sums, *dots;
  float share;  // 1 / total_rows

  float center[N], average[N], slope[N], scale[N];
  __device__ void begin(int64_t channel) {
    for (int e = 0; e < N; ++e) {
      const int64_t c = channel + e;
      center[e] = mean[c];
      average[e] = sums[c] * share;
      slope[e] = dots[c] * share * invstd[c];
      scale[e] = weight[c] * invstd[c];
    }
  }
  __device__ float operator()(int e, float x, float gradient) const {
    return scale[e] * (gradient - average[e] - (x - center[e]) * slope[e]);
  }
};

/// A block of `lanes` x (kBlockThreads / lanes) threads: lanes take packs of N channels, whose constants they keep in
/// registers, the others rows. y may be the second input.
template <class T, int N, class F>
__global__ void __launch_bounds__(kBlockThreads, 2)
    map_rows(const T* x, const T* second, int64_t rows, int64_t channels, int lanes, F f, T* y) {
  wait_for_earlier_work();
  constexpr int kRows = 4 / F::kReads;  // loaded before any is computed
  using P = Pack<T, N>;
  const int64_t channel = (static_cast<int64_t>(blockIdx.y) * lanes + static_cast<int>(threadIdx.x) % lanes) * N;
  if (channel >= channels) return;
  f.begin(channel);
  const int64_t workers = kBlockThreads / lanes;
  const int64_t stride = workers * gridDim.x;
  for (int64_t first = blockIdx.x * workers + threadIdx.x / lanes; first < rows; first += kRows * stride) {
    P a[kRows];
    P b[kRows];
    for (int k = 0; k < kRows; ++k) {
      const int64_t row = first + k * stride;
      if (row >= rows) break;
      a[k] = *reinterpret_cast<const P*>(x + row * channels + channel);
      if constexpr (F::kReads == 2) b[k] = *reinterpret_cast<const P*>(second + row * channels + channel);
    }
    for (int k = 0; k < kRows; ++k) {
      const int64_t row = first + k * stride;
      if (row >= rows) break;
      P out;
      for (int e = 0; e < N; ++e) {
        float other = 0.0F;
        if constexpr (F::kReads == 2) other = to_float(b[k].v[e]);
        out.v[e] = from_float<T>(f(e, to_float(a[k].v[e]), other));
      }
      *reinterpret_cast<P*>(y + row * channels + channel) = out;
    }
  }
}

template <class T, int N, class F>
void queue_rows(ExecContext& ctx, const T* x, const T* second, int64_t rows, int64_t channels, const F& f, T* y) {
  constexpr int64_t kMostY = 65535;
  const int64_t groups = channels / N;
  int lanes = 1;
  while (lanes < kBlockThreads && lanes < groups) lanes *= 2;
  const int64_t columns = ceil_div(groups, lanes);
  if (columns > kMostY)
    throw UnsupportedError(std::string("batch_norm: ") + std::to_string(channels) +
                           " channels, expected at most 16 million on CUDA");
  const int64_t most = std::max<int64_t>(1, int64_t{32} * properties(ctx).multiprocessors / columns);
  const int64_t blocks = std::clamp<int64_t>(ceil_div(rows * lanes, int64_t{4} * kBlockThreads), 1, most);
  launch(native_stream(ctx), map_rows<T, N, F>, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(columns)),
         dim3(kBlockThreads), x, second, rows, channels, lanes, f, y);
}

template <class T>
bool takes_packs(int64_t channels, std::initializer_list<const void*> buffers) {
  return channels % kPackElements<T> == 0 && std::all_of(buffers.begin(), buffers.end(), is_pack_aligned);
}

}  // namespace

void moments(ExecContext& ctx, ConstView x, View moments) {
  const int64_t channels = moments.shape[1], rows = x.numel() / channels;
  const Strips strips(ctx, rows, channels, moments.as<float>());
  with_storage(x.dtype, [&]<class T>() {
    launch_cooperating(native_stream(ctx), moments_of_strips<T>, strips.grid, dim3(kColumns * kWarps), x.as<T>(), rows,
                       channels, strips.rows_each, strips.partial);
  });
  if (strips.count == 1) return;
  launch_cooperating(native_stream(ctx), merge_strips, dim3(strips.grid.x), dim3(kColumns * kWarps),
                     static_cast<const float*>(strips.partial), strips.count, rows, channels, strips.rows_each,
                     moments.as<float>());
}

void sums(ExecContext& ctx, int64_t rows, ConstView moments, View sums) {
  launch(native_stream(ctx), sums_kernel, grid_for(ctx, sums.numel()), dim3(kBlockThreads), static_cast<float>(rows),
         moments.as<float>(), sums.numel(), sums.as<float>());
}

void recenter(ExecContext& ctx, int64_t rows, int64_t total_rows, ConstView sums, View moments) {
  launch(native_stream(ctx), recenter_kernel, grid_for(ctx, sums.numel()), dim3(kBlockThreads),
         static_cast<float>(rows), static_cast<float>(total_rows), sums.as<float>(), sums.numel(), moments.as<float>());
}

void statistics(ExecContext& ctx, BatchNormConfig config, int64_t total_rows, ConstView moments, View statistics,
                View running_mean, View running_var) {
  const int64_t channels = moments.shape[1];
  launch(native_stream(ctx), statistics_kernel, grid_for(ctx, channels), dim3(kBlockThreads), config,
         static_cast<float>(total_rows), static_cast<float>(total_rows - 1), moments.as<float>(), channels,
         statistics.as<float>(), running_mean.as<float>(), running_var.as<float>());
}

void running(ExecContext& ctx, BatchNormConfig config, ConstView running_mean, ConstView running_var, View statistics) {
  const int64_t channels = running_mean.numel();
  launch(native_stream(ctx), running_kernel, grid_for(ctx, channels), dim3(kBlockThreads), config.eps,
         running_mean.as<float>(), running_var.as<float>(), channels, statistics.as<float>());
}

void forward(ExecContext& ctx, BatchNormConfig config, ConstView x, ConstView statistics, ConstView weight,
             ConstView bias, View y) {
  const int64_t channels = weight.numel(), rows = x.numel() / channels;
  const auto* const mean = statistics.as<float>();
  with_storage(x.dtype, [&]<class T>() {
    const auto queue = [&]<int N>() {
      queue_rows<T, N>(
          ctx, x.as<T>(), static_cast<const T*>(nullptr), rows, channels,
          Normalize<N>{mean, mean + channels, weight.as<float>(), bias.as<float>(), config.relu, {}, {}, {}},
          y.as<T>());
    };
    if (takes_packs<T>(channels, {x.data, y.data})) return queue.template operator()<kPackElements<T>>();
    queue.template operator()<1>();
  });
}

void backward_sums(ExecContext& ctx, ConstView x, ConstView grad_y, ConstView statistics, View sums, View grad_weight,
                   View grad_bias, GradMode mode) {
  const int64_t channels = grad_bias.numel(), rows = x.numel() / channels;
  const auto* const mean = statistics.as<float>();
  const Strips strips(ctx, rows, channels, sums.as<float>());
  with_storage(x.dtype, [&]<class T>() {
    launch_cooperating(native_stream(ctx), sum_strips<T>, strips.grid, dim3(kColumns * kWarps), x.as<T>(),
                       grad_y.as<T>(), mean, rows, channels, strips.rows_each, strips.partial);
  });
  launch_cooperating(native_stream(ctx), add_strips, dim3(strips.grid.x), dim3(kColumns * kWarps),
                     static_cast<const float*>(strips.partial), strips.count, channels, mean + channels,
                     mode == GradMode::accumulate, sums.as<float>(), grad_weight.as<float>(), grad_bias.as<float>());
}

void backward_data(ExecContext& ctx, ConstView x, ConstView grad_y, ConstView statistics, ConstView weight,
                   ConstView sums, int64_t total_rows, View grad_x) {
  const int64_t channels = weight.numel(), rows = x.numel() / channels;
  const auto* const mean = statistics.as<float>();
  const auto* const sum = sums.as<float>();
  with_storage(x.dtype, [&]<class T>() {
    const auto queue = [&]<int N>() {
      queue_rows<T, N>(ctx, x.as<T>(), grad_y.as<T>(), rows, channels,
                       DataGradient<N>{mean,
                                       mean + channels,
                                       weight.as<float>(),
                                       sum,
                                       sum + channels,
                                       1.0F / static_cast<float>(total_rows),
                                       {},
                                       {},
                                       {},
                                       {}},
                       grad_x.as<T>());
    };
    if (takes_packs<T>(channels, {x.data, grad_y.data, grad_x.data}))
      return queue.template operator()<kPackElements<T>>();
    queue.template operator()<1>();
  });
}

}  // namespace vitrine::cuda::batch_norm
