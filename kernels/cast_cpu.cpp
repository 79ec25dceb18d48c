// SPDX-License-Identifier: Apache-2.0
// Compiled for several instruction sets, see kernels/cpu/levels.h.
#include "kernels/cast.h"
#include "kernels/cpu/storage.h"
#include "runtime/cpu/parallel.h"
#include "runtime/exec_context.h"

namespace vitrine::cpu::VITRINE_CPU_LEVEL {
namespace {

constexpr int64_t kCastGrain = 16384;

template <class From, class To>
void cast_all(const From* x, To* y, int64_t count) {
  parallel_for(count, kCastGrain, [=](int64_t begin, int64_t end) {
    for_lanes(begin, end, [=](auto& value, int64_t i) {
      load(x + i, value);
      store(value, y + i);
    });
  });
}

}  // namespace

void cast(ExecContext&, ConstView x, View y) {
  with_storage(x.dtype, [&]<class From>(From) {
    with_storage(y.dtype, [&]<class To>(To) { cast_all(x.as<From>(), y.as<To>(), y.numel()); });
  });
}

}  // namespace vitrine::cpu::VITRINE_CPU_LEVEL
