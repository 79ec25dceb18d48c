// SPDX-License-Identifier: Apache-2.0
// Compiled for several instruction sets, see kernels/cpu/levels.h.
#include "kernels/cpu/column_sums.h"
#include "kernels/embedding.h"
#include "runtime/exec_context.h"

namespace vitrine::cpu::VITRINE_CPU_LEVEL {

void embedding_backward(ExecContext&, ConstView rows, ConstView grad_y, View grad_table) {
  constexpr int64_t kColumnGrain = 64;
  const int64_t columns = grad_table.shape[1], count = rows.numel(), table_rows = grad_table.shape[0];
  const auto* const places = rows.as<int32_t>();
  auto* const table = grad_table.as<float>();
  with_storage(grad_y.dtype, [&]<class T>(T) {
    const T* const gradients = grad_y.as<T>();
    // A thread has columns of its own, so that all rows are added in order.
    parallel_for(columns, kColumnGrain, [=](int64_t begin, int64_t end) {
      for (int64_t n = 0; n < count; ++n) {
        if (places[n] < 0 || places[n] >= table_rows) continue;
        float* const to = table + places[n] * columns;
        for_lanes(begin, end, [&](auto& sum, int64_t c) {
          auto gradient = sum;
          load(to + c, sum);
          load(gradients + n * columns + c, gradient);
          sum += gradient;
          store(sum, to + c);
        });
      }
    });
  });
}

void add_positions(ExecContext&, ConstView x, ConstView table, View y) {
  const int64_t samples = x.shape[0], elements = x.shape[1] * x.shape[2];
  with_storage(x.dtype, [&]<class T>(T) {
    const T *const from = x.as<T>(), *const positions = table.as<T>();
    T* const to = y.as<T>();
    parallel_for(samples * x.shape[1], 16, [=, width = x.shape[2]](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* const position = positions + row * width % elements;
        for_lanes(0, width, [=](auto& sum, int64_t c) {
          auto other = sum;
          load(from + row * width + c, sum);
          load(position + c, other);
          sum += other;
          store(sum, to + row * width + c);
        });
      }
    });
  });
}

void add_positions_backward(ExecContext&, ConstView grad_y, View grad_table, GradMode mode) {
  const int64_t elements = grad_table.numel();
  with_storage(grad_y.dtype, [&]<class T>(T) {
    const T* const from = grad_y.as<T>();
    sum_columns(grad_y.shape[0], elements, grad_table.as<float>(), mode,
                [=](int64_t n, int64_t i, auto& value) { load(from + n * elements + i, value); });
  });
}

}  // namespace vitrine::cpu::VITRINE_CPU_LEVEL
