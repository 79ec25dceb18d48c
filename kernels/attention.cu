// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention.h"
#include "kernels/cuda/device.cuh"
#include "runtime/cuda/dtype.cuh"

namespace vitrine::cuda {
namespace {

constexpr int kThreads = 64;  // of a block: each has one query, or one key with its value
constexpr int kTile = 16;     // rows of the other kind that a block reads at once

struct AttentionShape {
  int64_t length, heads, size;  // T, H, D
  int64_t blocks;               // of a head
  float scale;                  // 1 / sqrt(D)

  __device__ int64_t head() const { return blockIdx.x / blocks; }  // n * H + h
  __device__ int64_t first() const { return blockIdx.x % blocks * kThreads; }
  __device__ int64_t width() const { return heads * size; }
  /// Of an element of a tensor (N, T, parts, H, D).
  __device__ int64_t offset(int parts, int part, int64_t t) const {
    return ((head() / heads * length + t) * parts + part) * width() + head() % heads * size;
  }
};

/// The elements of a row, times `factor`; zeros after them, and for a row that is not there.
template <class T, int D>
__device__ void load_row(const AttentionShape& s, const T* from, bool there, float factor, float (&to)[D]) {
#pragma unroll
  for (int d = 0; d < D; ++d) to[d] = there && d < s.size ? to_float(from[d]) * factor : 0.0F;
}

template <class T, int D>
__device__ void store_row(const AttentionShape& s, const float (&from)[D], float factor, T* to) {
#pragma unroll
  for (int d = 0; d < D; ++d) {
    if (d < s.size) to[d] = from_float<T>(from[d] * factor);
  }
}

/// kTile rows from row `first` on to shared memory, by all threads of the block.
template <class T, int D>
__device__ void load_tile(const AttentionShape& s, const T* from, int parts, int part, int64_t first, float factor,
                          float* to) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * D; i += kThreads) {
    const int64_t t = first + i / D, d = i % D;
    to[i] = t < s.length && d < s.size ? to_float(from[s.offset(parts, part, t) + d]) * factor : 0.0F;
  }
}

template <int D>
__device__ float dot(const float (&a)[D], const float* b) {
  float sum = 0.0F;
#pragma unroll
  for (int d = 0; d < D; ++d) sum += a[d] * b[d];
  return sum;
}

template <int D>
__device__ void add_row(float factor, const float* row, float (&to)[D]) {
#pragma unroll
  for (int d = 0; d < D; ++d) to[d] += factor * row[d];
}

template <class T, int D>
__global__ void __launch_bounds__(kThreads) forward(AttentionShape s, const T* x, T* y, float* log_sums) {
  wait_for_earlier_work();
  __shared__ float keys[kTile * D];
  __shared__ float values[kTile * D];
  const int64_t t = s.first() + threadIdx.x;
  float query[D];
  float sums[D] = {};
  load_row(s, x + s.offset(3, 0, t), t < s.length, s.scale, query);
  float largest = -INFINITY, total = 0.0F;
  for (int64_t first = 0; first < s.first() + kThreads && first < s.length; first += kTile) {
    __syncthreads();
    load_tile<T, D>(s, x, 3, 1, first, 1.0F, keys);
    load_tile<T, D>(s, x, 3, 2, first, 1.0F, values);
    __syncthreads();
    for (int j = 0; j < kTile && first + j <= t; ++j) {
      const float score = dot(query, keys + j * D);
      if (score > largest) {
        const float factor = expf(largest - score);
        total *= factor;
#pragma unroll
        for (int d = 0; d < D; ++d) sums[d] *= factor;
        largest = score;
      }
      const float weight = expf(score - largest);
      total += weight;
      add_row(weight, values + j * D, sums);
    }
  }
  if (t >= s.length) return;
  store_row(s, sums, 1.0F / total, y + s.offset(1, 0, t));
  log_sums[s.head() * s.length + t] = largest + logf(total);
}

/// One thread for each row of (N, H, T).
template <class T>
__global__ void __launch_bounds__(kThreads) dot_rows(AttentionShape s, const T* y, const T* grad_y, float* dots) {
  wait_for_earlier_work();
  const int64_t t = s.first() + threadIdx.x;
  if (t >= s.length) return;
  const T *const a = y + s.offset(1, 0, t), *const b = grad_y + s.offset(1, 0, t);
  float sum = 0.0F;
  for (int64_t d = 0; d < s.size; ++d) sum += to_float(a[d]) * to_float(b[d]);
  dots[s.head() * s.length + t] = sum;
}

template <class T, int D>
__global__ void __launch_bounds__(kThreads)
    backward_keys(AttentionShape s, const T* x, const float* log_sums, const T* grad_y, const float* dots, T* grad_x) {
  wait_for_earlier_work();
  __shared__ float queries[kTile * D];
  __shared__ float gradients[kTile * D];
  const int64_t t = s.first() + threadIdx.x;
  const float *const of_log_sums = log_sums + s.head() * s.length, *const of_dots = dots + s.head() * s.length;
  float key[D];
  float value[D];
  float grad_key[D] = {};
  float grad_value[D] = {};
  load_row(s, x + s.offset(3, 1, t), t < s.length, 1.0F, key);
  load_row(s, x + s.offset(3, 2, t), t < s.length, 1.0F, value);
  for (int64_t first = s.first(); first < s.length; first += kTile) {
    __syncthreads();
    load_tile<T, D>(s, x, 3, 0, first, s.scale, queries);
    load_tile<T, D>(s, grad_y, 1, 0, first, 1.0F, gradients);
    __syncthreads();
    for (int i = 0; i < kTile && first + i < s.length; ++i) {
      if (first + i < t) continue;
      const float weight = expf(dot(key, queries + i * D) - of_log_sums[first + i]);
      const float gradient = weight * (dot(value, gradients + i * D) - of_dots[first + i]);
      add_row(weight, gradients + i * D, grad_value);
      add_row(gradient, queries + i * D, grad_key);
    }
  }
  if (t >= s.length) return;
  store_row(s, grad_key, 1.0F, grad_x + s.offset(3, 1, t));
  store_row(s, grad_value, 1.0F, grad_x + s.offset(3, 2, t));
}

template <class T, int D>
__global__ void __launch_bounds__(kThreads) backward_queries(AttentionShape s, const T* x, const float* log_sums,
                                                             const T* grad_y, const float* dots, T* grad_x) {
  wait_for_earlier_work();
  __shared__ float keys[kTile * D];
  __shared__ float values[kTile * D];
  const int64_t t = s.first() + threadIdx.x;
  float query[D];
  float gradient[D];
  float grad_query[D] = {};
  load_row(s, x + s.offset(3, 0, t), t < s.length, s.scale, query);
  load_row(s, grad_y + s.offset(1, 0, t), t < s.length, 1.0F, gradient);
  const float log_sum = t < s.length ? log_sums[s.head() * s.length + t] : 0.0F,
              dot_product = t < s.length ? dots[s.head() * s.length + t] : 0.0F;
  for (int64_t first = 0; first < s.first() + kThreads && first < s.length; first += kTile) {
    __syncthreads();
    load_tile<T, D>(s, x, 3, 1, first, 1.0F, keys);
    load_tile<T, D>(s, x, 3, 2, first, 1.0F, values);
    __syncthreads();
    for (int j = 0; j < kTile && first + j <= t; ++j) {
      const float weight = expf(dot(query, keys + j * D) - log_sum);
      add_row(weight * (dot(gradient, values + j * D) - dot_product), keys + j * D, grad_query);
    }
  }
  if (t < s.length) store_row(s, grad_query, s.scale, grad_x + s.offset(3, 0, t));
}

/// Calls body<T, D>(shape, grid) with the storage type and room for the elements of a head.
template <class Body>
void with_shape(int64_t heads, const ConstView& x, const Body& body) {
  const int64_t length = x.shape[1], size = x.shape[2] / (3 * heads), blocks = ceil_div(length, kThreads);
  const AttentionShape shape{length, heads, size, blocks, 1.0F / sqrtf(static_cast<float>(size))};
  const dim3 grid(static_cast<unsigned>(x.shape[0] * heads * blocks));
  with_storage(x.dtype, [&]<class T>() {
    if (size <= 64) return body.template operator()<T, 64>(shape, grid);
    body.template operator()<T, 128>(shape, grid);
  });
}

}  // namespace

void attention_forward(ExecContext& ctx, int64_t heads, ConstView x, View y, View log_sums) {
  with_shape(heads, x, [&]<class T, int D>(const AttentionShape& shape, dim3 grid) {
    launch_cooperating(native_stream(ctx), forward<T, D>, grid, dim3(kThreads), shape, x.as<T>(), y.as<T>(),
                       log_sums.as<float>());
  });
}

void attention_backward(ExecContext& ctx, int64_t heads, ConstView x, ConstView y, ConstView log_sums, ConstView grad_y,
                        View dots, View grad_x) {
  with_shape(heads, x, [&]<class T, int D>(const AttentionShape& shape, dim3 grid) {
    const auto queue = [&](auto kernel) {
      launch_cooperating(native_stream(ctx), kernel, grid, dim3(kThreads), shape, x.as<T>(), log_sums.as<float>(),
                         grad_y.as<T>(), dots.as<float>(), grad_x.as<T>());
    };
    launch(native_stream(ctx), dot_rows<T>, grid, dim3(kThreads), shape, y.as<T>(), grad_y.as<T>(), dots.as<float>());
    queue(backward_keys<T, D>);
    queue(backward_queries<T, D>);
  });
}

}  // namespace vitrine::cuda
