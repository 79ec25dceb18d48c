// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise.h"

#include <cmath>

#include "kernels/check.h"
#include "kernels/cpu/levels.h"
#include "kernels/cpu/storage.h"
#include "kernels/run.h"
#include "runtime/cpu/parallel.h"

namespace vitrine {
namespace cpu {  // elementwise_cpu.cpp
VITRINE_CPU_LEVELS(add, ExecContext&, ConstView, ConstView, View);
VITRINE_CPU_LEVELS(relu_forward, ExecContext&, ConstView, View);
VITRINE_CPU_LEVELS(relu_backward, ExecContext&, ConstView, ConstView, View, View, GradMode);
VITRINE_CPU_LEVELS(gelu_tanh_forward, ExecContext&, ConstView, View);
VITRINE_CPU_LEVELS(gelu_tanh_backward, ExecContext&, ConstView, ConstView, View);
}  // namespace cpu

namespace cuda {  // elementwise.cu
void add(ExecContext& ctx, ConstView a, ConstView b, View y);
void relu_forward(ExecContext& ctx, ConstView x, View y);
void relu_backward(ExecContext& ctx, ConstView y, ConstView grad_y, View grad_x, View sums, GradMode mode);
void gelu_forward(ExecContext& ctx, ConstView x, View y);
void gelu_backward(ExecContext& ctx, ConstView x, ConstView grad_y, View grad_x);
void gelu_tanh_forward(ExecContext& ctx, ConstView x, View y);
void gelu_tanh_backward(ExecContext& ctx, ConstView x, ConstView grad_y, View grad_x);
}  // namespace cuda

void add(ExecContext& ctx, ConstView a, ConstView b, View y) {
  constexpr const char* kName = "add";
  check::tensor(kName, "a", a, ctx);
  check::tensor(kName, "b", b, a.shape, a.dtype, ctx);
  check::tensor(kName, "y", y, a.shape, a.dtype, ctx);
  check::same_or_apart(kName, {"y", y}, {{"a", a}, {"b", b}});
  run(ctx, {kName, {a, b}, {y}}, cpu::add, VITRINE_IF_CUDA(cuda::add), a, b, y);
}

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
  if (y.numel() == 0) return add_nothing(ctx, mode, {sums});
  run(ctx, {kName, {y, grad_y, content_of(sums, mode)}, {grad_x, sums}}, cpu::relu_backward,
      VITRINE_IF_CUDA(cuda::relu_backward), y, grad_y, grad_x, sums, mode);
}

namespace cpu {
namespace {

constexpr int64_t kGeluGrain = 1024;            // elements; erf takes tens of instructions
constexpr float kInverseRoot2 = 0.70710678F;    // 1 / sqrt(2)
constexpr float kInverseRoot2Pi = 0.39894228F;  // 1 / sqrt(2 pi)

float distribution(float x) { return 0.5F * (1.0F + std::erf(x * kInverseRoot2)); }
float density(float x) { return kInverseRoot2Pi * std::exp(-0.5F * x * x); }

void gelu_forward(ExecContext&, ConstView x, View y) {
  with_storage(x.dtype, [&]<class T>(T) {
    const T* const from = x.as<T>();
    T* const to = y.as<T>();
    parallel_for(x.numel(), kGeluGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float value = to_float(from[i]);
        to[i] = from_float<T>(value * distribution(value));
      }
    });
  });
}

void gelu_backward(ExecContext&, ConstView x, ConstView grad_y, View grad_x) {
  with_storage(x.dtype, [&]<class T>(T) {
    const T* const from = x.as<T>();
    const T* const gradient = grad_y.as<T>();
    T* const to = grad_x.as<T>();
    parallel_for(x.numel(), kGeluGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const float value = to_float(from[i]);
        to[i] = from_float<T>(to_float(gradient[i]) * (distribution(value) + value * density(value)));
      }
    });
  });
}

}  // namespace
}  // namespace cpu

void gelu_forward(ExecContext& ctx, ConstView x, View y, GeluForm form) {
  constexpr const char* kName = "gelu_forward";
  check::tensor(kName, "x", x, ctx);
  check::tensor(kName, "y", y, x.shape, x.dtype, ctx);
  check::same_or_apart(kName, {"y", y}, {{"x", x}});
  const OpInfo info{kName, {x}, {y}};
  if (form == GeluForm::tanh)
    return run(ctx, info, cpu::gelu_tanh_forward, VITRINE_IF_CUDA(cuda::gelu_tanh_forward), x, y);
  run(ctx, info, cpu::gelu_forward, VITRINE_IF_CUDA(cuda::gelu_forward), x, y);
}

void gelu_backward(ExecContext& ctx, ConstView x, ConstView grad_y, View grad_x, GeluForm form) {
  constexpr const char* kName = "gelu_backward";
  check::tensor(kName, "x", x, ctx);
  check::tensor(kName, "grad_y", grad_y, x.shape, x.dtype, ctx);
  check::tensor(kName, "grad_x", grad_x, x.shape, x.dtype, ctx);
  check::no_overlap(kName, {"grad_x", grad_x}, {{"x", x}});
  check::same_or_apart(kName, {"grad_x", grad_x}, {{"grad_y", grad_y}});
  const OpInfo info{kName, {x, grad_y}, {grad_x}};
  if (form == GeluForm::tanh)
    return run(ctx, info, cpu::gelu_tanh_backward, VITRINE_IF_CUDA(cuda::gelu_tanh_backward), x, grad_y, grad_x);
  run(ctx, info, cpu::gelu_backward, VITRINE_IF_CUDA(cuda::gelu_backward), x, grad_y, grad_x);
}

}  // namespace vitrine
