// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/column_sums.cuh"
#include "kernels/layer_norm.h"
#include "runtime/cuda/dtype.cuh"

namespace vitrine::cuda {
namespace {

constexpr int kRowsOfBlock = kBlockThreads / 32;  // a warp computes a row

__device__ inline int64_t first_row() { return int64_t{blockIdx.x} * kRowsOfBlock + threadIdx.x / 32; }
__device__ inline int64_t row_stride() { return int64_t{gridDim.x} * kRowsOfBlock; }

template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    forward_rows(const T* x, const float* weight, const float* bias, int64_t rows, int64_t columns, float eps, T* y,
                 float* statistics) {
  wait_for_earlier_work();
  const auto lane = static_cast<int>(threadIdx.x % 32);
  for (int64_t row = first_row(); row < rows; row += row_stride()) {
    const T* const from = x + row * columns;
    float sum = 0.0F, squares = 0.0F;
    for (int64_t c = lane; c < columns; c += 32) sum += to_float(from[c]);
    const float mean = warp_sum(sum) / static_cast<float>(columns);
    for (int64_t c = lane; c < columns; c += 32) {
      const float distance = to_float(from[c]) - mean;
      squares += distance * distance;
    }
    const float inverse = 1.0F / sqrtf(warp_sum(squares) / static_cast<float>(columns) + eps);
    for (int64_t c = lane; c < columns; c += 32)
      y[row * columns + c] = from_float<T>((to_float(from[c]) - mean) * inverse * weight[c] + bias[c]);
    if (lane != 0 || statistics == nullptr) continue;
    statistics[2 * row] = mean;
    statistics[2 * row + 1] = inverse;
  }
}

template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    backward_rows(const T* x, const T* grad_y, const float* statistics, const float* weight, int64_t rows,
                  int64_t columns, T* grad_x) {
  wait_for_earlier_work();
  const auto lane = static_cast<int>(threadIdx.x % 32);
  for (int64_t row = first_row(); row < rows; row += row_stride()) {
    const float mean = statistics[2 * row], inverse = statistics[2 * row + 1];
    float sum = 0.0F, dot = 0.0F;
    for (int64_t c = lane; c < columns; c += 32) {
      const float grad = to_float(grad_y[row * columns + c]) * weight[c];
      sum += grad;
      dot += grad * ((to_float(x[row * columns + c]) - mean) * inverse);
    }
    sum = warp_sum(sum) / static_cast<float>(columns);
    dot = warp_sum(dot) / static_cast<float>(columns);
    for (int64_t c = lane; c < columns; c += 32) {
      const float grad = to_float(grad_y[row * columns + c]) * weight[c];
      const float normal = (to_float(x[row * columns + c]) - mean) * inverse;
      grad_x[row * columns + c] = from_float<T>((grad - sum - normal * dot) * inverse);
    }
  }
}

/// Of a pack of one element: grad_y, or grad_y * (x - mean) * inverse.
template <class T>
struct AddGradient {
  const T* x;  // null: of the bias
  const T* grad_y;
  const float* statistics;
  int64_t columns;
  __device__ void operator()(int64_t row, int64_t column, float (&sums)[1]) const {
    const int64_t i = row * columns + column;
    const float grad = to_float(grad_y[i]);
    sums[0] += x == nullptr ? grad : grad * ((to_float(x[i]) - statistics[2 * row]) * statistics[2 * row + 1]);
  }
};

dim3 grid_of_rows(ExecContext& ctx, int64_t rows) { return grid_for(ctx, rows * 32); }

}  // namespace

void layer_norm_forward(ExecContext& ctx, float eps, ConstView x, ConstView weight, ConstView bias, View y,
                        View statistics) {
  const int64_t columns = weight.numel(), rows = x.numel() / columns;
  with_storage(x.dtype, [&]<class T>() {
    launch_cooperating(native_stream(ctx), forward_rows<T>, grid_of_rows(ctx, rows), dim3(kBlockThreads), x.as<T>(),
                       weight.as<float>(), bias.as<float>(), rows, columns, eps, y.as<T>(),
                       statistics ? statistics.as<float>() : nullptr);
  });
}

void layer_norm_backward_data(ExecContext& ctx, ConstView x, ConstView grad_y, ConstView statistics, ConstView weight,
                              View grad_x) {
  const int64_t columns = weight.numel(), rows = x.numel() / columns;
  with_storage(x.dtype, [&]<class T>() {
    launch_cooperating(native_stream(ctx), backward_rows<T>, grid_of_rows(ctx, rows), dim3(kBlockThreads), x.as<T>(),
                       grad_y.as<T>(), statistics.as<float>(), weight.as<float>(), rows, columns, grad_x.as<T>());
  });
}

void layer_norm_backward_weight(ExecContext& ctx, ConstView x, ConstView grad_y, ConstView statistics, View grad_weight,
                                View grad_bias, GradMode mode) {
  const int64_t columns = grad_weight.numel(), rows = x.numel() / columns;
  with_storage(x.dtype, [&]<class T>() {
    const auto* const of_rows = statistics.as<float>();
    queue_column_sums<1>(ctx, rows, AddGradient<T>{nullptr, grad_y.as<T>(), of_rows, columns}, grad_bias, mode);
    queue_column_sums<1>(ctx, rows, AddGradient<T>{x.as<T>(), grad_y.as<T>(), of_rows, columns}, grad_weight, mode);
  });
}

}  // namespace vitrine::cuda
