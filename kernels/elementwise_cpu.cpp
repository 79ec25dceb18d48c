// SPDX-License-Identifier: Apache-2.0
// Compiled for several instruction sets, see kernels/cpu/levels.h.
#include "kernels/cpu/storage.h"
#include "kernels/elementwise.h"
#include "runtime/cpu/parallel.h"
#include "runtime/exec_context.h"

namespace vitrine::cpu::VITRINE_CPU_LEVEL {
namespace {

constexpr int64_t kElementwiseGrain = 16384;

template <class T>
void add_all(const T* a, const T* b, T* y, int64_t count) {
  parallel_for(count, kElementwiseGrain, [=](int64_t begin, int64_t end) {
    for_lanes(begin, end, [=](auto& sum, int64_t i) {
      auto other = sum;
      load(a + i, sum);
      load(b + i, other);
      sum += other;
      store(sum, y + i);
    });
  });
}

}  // namespace

void add(ExecContext&, ConstView a, ConstView b, View y) {
  with_storage(y.dtype, [&]<class T>(T) { add_all(a.as<T>(), b.as<T>(), y.as<T>(), y.numel()); });
}

}  // namespace vitrine::cpu::VITRINE_CPU_LEVEL
