// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cmath>

#include "kernels/cpu/storage.h"
#include "kernels/implementations.h"
#include "runtime/cpu/parallel.h"

namespace vitrine::cpu {
namespace {
constexpr int64_t kGrain = 16384;
}

void find_non_finite(ExecContext&, ConstView x, int32_t tag, View found) {
  if (*found.as<int32_t>() >= 0) return;
  std::atomic<bool> any{false};
  with_storage(x.dtype, [&]<class T>(T) {
    const T* values = x.as<T>();
    parallel_for(x.numel(), kGrain, [&, values](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (!std::isfinite(to_float(values[i]))) return any.store(true, std::memory_order_relaxed);
      }
    });
  });
  if (any.load(std::memory_order_relaxed)) *found.as<int32_t>() = tag;
}

}  // namespace vitrine::cpu
