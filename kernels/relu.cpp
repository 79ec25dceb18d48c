// SPDX-License-Identifier: Apache-2.0
#include "kernels/relu.h"

#include "kernels/check.h"
#include "kernels/cpu/portable.h"
#include "kernels/cpu/storage.h"
#include "kernels/run.h"
#include "runtime/copy.h"
#include "runtime/cpu/parallel.h"

namespace vitrine {
namespace cpu {
namespace {

constexpr int64_t kGrain = 16384;

template <class T>
void forward(const T* x, T* y, int64_t count) {
  parallel_for(count, kGrain, [=](int64_t begin, int64_t end) {
    for_lanes(begin, end, [=](auto& value, int64_t i) {
      const auto zero = value;
      load(x + i, value);
      value = value <= 0.0F ? zero : value;  // NaN compares false and stays NaN
      store(value, y + i);
    });
  });
}

template <class T>
void backward(const T* y, const T* grad_y, T* grad_x, int64_t count) {
  parallel_for(count, kGrain, [=](int64_t begin, int64_t end) {
    for_lanes(begin, end, [=](auto& gradient, int64_t i) {
      const auto zero = gradient;
      auto output = zero;
      load(y + i, output);
      load(grad_y + i, gradient);
      gradient = output > 0.0F ? gradient : zero;
      store(gradient, grad_x + i);
    });
  });
}

void relu_forward(ExecContext&, ConstView x, View y) {
  with_storage(x.dtype, [&]<class T>(T) { forward(x.as<T>(), y.as<T>(), x.numel()); });
}

void relu_backward(ExecContext&, ConstView y, ConstView grad_y, View grad_x, View sums, GradMode mode) {
  with_storage(y.dtype, [&]<class T>(T) { backward(y.as<T>(), grad_y.as<T>(), grad_x.as<T>(), y.numel()); });
  if (sums) portable::column_sums(grad_x, sums.as<float>(), mode);
}

}  // namespace
}  // namespace cpu

namespace cuda {  // relu.cu
void relu_forward(ExecContext& ctx, ConstView x, View y);
void relu_backward(ExecContext& ctx, ConstView y, ConstView grad_y, View grad_x, View sums, GradMode mode);
}  // namespace cuda

void relu_forward(ExecContext& ctx, ConstView x, View y) {
  constexpr const char* kName = "relu_forward";
  check::tensor(kName, "x", x, ctx);
  check::tensor(kName, "y", y, x.shape, x.dtype, ctx);
  check::same_or_apart(kName, {"y", y}, {{"x", x}});
  run(ctx, {kName, {x}, {y}}, cpu::relu_forward, VITRINE_IF_CUDA(cuda::relu_forward), x, y);
}

void relu_backward(ExecContext& ctx, ConstView y, ConstView grad_y, View grad_x, View sums, GradMode mode) {
  constexpr const char* kName = "relu_backward";
  check::tensor(kName, "y", y, ctx);
  check::tensor(kName, "grad_y", grad_y, y.shape, y.dtype, ctx);
  check::tensor(kName, "grad_x", grad_x, y.shape, y.dtype, ctx);
  check::no_overlap(kName, {"grad_x", grad_x}, {{"y", y}});
  check::same_or_apart(kName, {"grad_x", grad_x}, {{"grad_y", grad_y}});
  check::column_sums(kName, sums, grad_x, ctx);
  check::no_overlap(kName, {"sums", sums}, {{"y", y}, {"grad_y", grad_y}, {"grad_x", grad_x}});
  const bool accumulate = mode == GradMode::accumulate;
  if (y.numel() == 0) {
    if (sums && !accumulate) zero(ctx, sums);
    return;
  }
  run(ctx, {kName, {y, grad_y, accumulate ? ConstView(sums) : ConstView()}, {grad_x, sums}}, cpu::relu_backward, VITRINE_IF_CUDA(cuda::relu_backward),
      y, grad_y, grad_x, sums, mode);
}

}  // namespace vitrine
