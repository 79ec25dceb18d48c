// SPDX-License-Identifier: Apache-2.0
#include "kernels/non_finite.h"

#include <atomic>
#include <cmath>

#include "kernels/check.h"
#include "kernels/cpu/storage.h"
#include "kernels/run.h"
#include "runtime/cpu/parallel.h"

namespace vitrine {
namespace cpu {
namespace {

constexpr int64_t kNonFiniteGrain = 16384;

void find_non_finite(ExecContext&, ConstView x, int32_t tag, View found) {
  if (*found.as<int32_t>() >= 0) return;
  std::atomic<bool> any{false};
  with_storage(x.dtype, [&]<class T>(T) {
    const T* values = x.as<T>();
    parallel_for(x.numel(), kNonFiniteGrain, [&, values](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (!std::isfinite(to_float(values[i]))) return any.store(true, std::memory_order_relaxed);
      }
    });
  });
  if (any.load(std::memory_order_relaxed)) *found.as<int32_t>() = tag;
}

}  // namespace
}  // namespace cpu

namespace cuda {  // non_finite.cu
void find_non_finite(ExecContext& ctx, ConstView x, int32_t tag, View found);
}  // namespace cuda

void find_non_finite(ExecContext& ctx, ConstView x, int32_t tag, View found) {
  constexpr const char* kName = "find_non_finite";
  check::tensor(kName, "x", x, ctx);
  check::tensor(kName, "found", found, {1}, DType::i32, ctx);
  check::no_overlap(kName, {"found", found}, {{"x", x}});
  if (x.numel() == 0) return;
  run(ctx, {kName, {x, found}, {found}}, cpu::find_non_finite, VITRINE_IF_CUDA(cuda::find_non_finite), x, tag, found);
}

}  // namespace vitrine
