// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/storage.h"
#include "kernels/implementations.h"
#include "runtime/cpu/parallel.h"

namespace vitrine::cpu {
namespace {

constexpr int64_t kGrain = 16384;

template <class T>
void add_all(const T* a, const T* b, T* y, int64_t count) {
  parallel_for(count, kGrain, [=](int64_t begin, int64_t end) {
    for_lanes(begin, end, [=](auto& sum, int64_t i) {
      auto other = sum;
      load(a + i, sum);
      load(b + i, other);
      sum += other;
      store(sum, y + i);
    });
  });
}

template <class From, class To>
void cast_all(const From* x, To* y, int64_t count) {
  parallel_for(count, kGrain, [=](int64_t begin, int64_t end) {
    for_lanes(begin, end, [=](auto& value, int64_t i) {
      load(x + i, value);
      store(value, y + i);
    });
  });
}

}  // namespace

void add(ExecContext&, ConstView a, ConstView b, View y) {
  with_storage(y.dtype, [&]<class T>(T) { add_all(a.as<T>(), b.as<T>(), y.as<T>(), y.numel()); });
}

void cast(ExecContext&, ConstView x, View y) {
  with_storage(x.dtype, [&]<class From>(From) { with_storage(y.dtype, [&]<class To>(To) { cast_all(x.as<From>(), y.as<To>(), y.numel()); }); });
}

}  // namespace vitrine::cpu
