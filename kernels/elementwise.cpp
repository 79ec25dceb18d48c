// SPDX-License-Identifier: Apache-2.0
#include "kernels/elementwise.h"

#include "kernels/check.h"
#include "kernels/cpu/storage.h"
#include "kernels/run.h"
#include "runtime/cpu/parallel.h"

namespace vitrine {
namespace cpu {
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

void add(ExecContext&, ConstView a, ConstView b, View y) {
  with_storage(y.dtype, [&]<class T>(T) { add_all(a.as<T>(), b.as<T>(), y.as<T>(), y.numel()); });
}

}  // namespace
}  // namespace cpu

namespace cuda {  // elementwise.cu
void add(ExecContext& ctx, ConstView a, ConstView b, View y);
}  // namespace cuda

void add(ExecContext& ctx, ConstView a, ConstView b, View y) {
  constexpr const char* kName = "add";
  check::tensor(kName, "a", a, ctx);
  check::tensor(kName, "b", b, a.shape, a.dtype, ctx);
  check::tensor(kName, "y", y, a.shape, a.dtype, ctx);
  check::same_or_apart(kName, {"y", y}, {{"a", a}, {"b", b}});
  run(ctx, {kName, {a, b}, {y}}, cpu::add, VITRINE_IF_CUDA(cuda::add), a, b, y);
}

}  // namespace vitrine
