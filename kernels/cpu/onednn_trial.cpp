// SPDX-License-Identifier: Apache-2.0
// A trial of oneDNN's convolutions on shapes for which its implementations have been wrong.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/cpu/onednn_plans.h"
#include "kernels/cpu/storage.h"

namespace vitrine::cpu::onednn {
namespace {

/// Memory of NaN, and a tensor at its start: what lies beyond must not be read.
class Buffer {
 public:
  Buffer(const Shape& shape, DType dtype)
      : view{nullptr, shape, dtype, DeviceId::host()}, bytes_(static_cast<size_t>(view.bytes() + kBeyond), kNaN) {
    view.data = bytes_.data();
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  View view;

 private:
  static constexpr int64_t kBeyond = 256;
  static constexpr std::byte kNaN{0xFF};
  std::vector<std::byte> bytes_;
};

/// View::as() would ask for the operation that declares them.
template <class T>
T* elements(const View& v) {
  return static_cast<T*>(v.data);
}

void fill_with_ones(const View& v) {
  with_storage(v.dtype, [&]<class T>(T) { std::fill_n(elements<T>(v), v.numel(), from_float<T>(1.0F)); });
}

/// How many products a row or column of y, x and w is in.
struct Counts {
  std::vector<int64_t> y, x, w;

  Counts(int64_t outputs, int64_t image, int64_t window, const Conv2dConfig& config)
      : y(static_cast<size_t>(outputs)), x(static_cast<size_t>(image)), w(static_cast<size_t>(window)) {
    for (size_t q = 0; q < y.size(); ++q) {
      for (size_t s = 0; s < w.size(); ++s) {
        const int64_t position = static_cast<int64_t>(q) * config.stride + static_cast<int64_t>(s) - config.pad;
        if (position < 0 || position >= image) continue;
        ++y[q];
        ++x[static_cast<size_t>(position)];
        ++w[s];
      }
    }
  }
};

/// True if the numbers are the sum, or in bf16 the sum rounded.
template <class T>
bool are_near(const T* values, int64_t count, int64_t sum) {
  const auto expected = static_cast<float>(sum);
  const float tolerance = expected / 256;  // twice bf16's rounding
  bool right = true;
  for (int64_t i = 0; i < count; ++i) right &= std::abs(to_float(values[i]) - expected) <= tolerance;
  return right;
}

/// True if each element of v (A, rows, columns, B) is about products * rows * columns + bias.
bool holds_sums(const View& v, int64_t products, const std::vector<int64_t>& rows, const std::vector<int64_t>& columns,
                int64_t bias) {
  bool right = true;
  with_storage(v.dtype, [&]<class T>(T) {
    const T* values = elements<T>(v);
    for (int64_t a = 0; a < v.shape[0]; ++a) {
      for (const int64_t row : rows) {
        for (const int64_t column : columns) {
          right &= are_near(values, v.shape[3], products * row * column + bias);
          values += v.shape[3];
        }
      }
    }
  });
  return right;
}

}  // namespace

// Known to be wrong are gradients of bf16 weights where strides exceed the image, which are not written (2.6.3 and
// 3.7.2), and outputs, f32 too, where windows exceed the image on both sides (2.6.3).
bool needs_trial(const RecordedConv2d& c) {
  const Shape y = conv2d_output_shape(c.config, c.x, c.w);
  const auto is_unusual = [&](int i) {
    const bool starts_in_padding = (y[i] - 1) * c.config.stride < c.config.pad;  // even the last window
    return c.config.stride > c.x[i] || c.w[i] > c.x[i] + 1 || starts_in_padding;
  };
  return is_unusual(1) || is_unusual(2);
}

bool passes_trial(OneDnnPlans& plans, ConvolutionPlan& plan, const RecordedConv2d& c) {
  const Shape y_shape = conv2d_output_shape(c.config, c.x, c.w);
  const DType w_dtype = c.pass == Conv2dPass::backward_weight ? DType::f32 : c.dtype;
  const Buffer x(c.x, c.dtype), y(y_shape, c.dtype), w(c.w, w_dtype), bias({c.bias ? c.w[0] : 0}, w_dtype),
      workspace({plan.bytes}, DType::u8);
  const Conv2dCall call{c.pass, c.config, x.view, w.view, c.bias ? bias.view : View{}, y.view};
  if (c.pass != Conv2dPass::backward_data) fill_with_ones(x.view);
  if (c.pass != Conv2dPass::forward) fill_with_ones(y.view);
  if (c.pass != Conv2dPass::backward_weight) {
    fill_with_ones(w.view);
    fill_with_ones(bias.view);
  }
  run(plans, plan, workspace.view, call);
  const Counts rows(y_shape[1], c.x[1], c.w[1], c.config), columns(y_shape[2], c.x[2], c.w[2], c.config);
  if (c.pass == Conv2dPass::forward) return holds_sums(y.view, c.w[3], rows.y, columns.y, c.bias ? 1 : 0);
  if (c.pass == Conv2dPass::backward_data) return holds_sums(x.view, c.w[0], rows.x, columns.x, 0);
  return holds_sums(w.view, c.x[0], rows.w, columns.w, 0) &&
         are_near(elements<float>(bias.view), bias.view.numel(), y_shape.numel() / y_shape[3]);
}

}  // namespace vitrine::cpu::onednn
