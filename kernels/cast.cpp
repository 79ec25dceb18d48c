// SPDX-License-Identifier: Apache-2.0
#include "kernels/cast.h"

#include "kernels/check.h"
#include "kernels/cpu/storage.h"
#include "kernels/run.h"
#include "runtime/cpu/parallel.h"

namespace vitrine {
namespace cpu {
namespace {

constexpr int64_t kGrain = 16384;

template <class From, class To>
void cast_all(const From* x, To* y, int64_t count) {
  parallel_for(count, kGrain, [=](int64_t begin, int64_t end) {
    for_lanes(begin, end, [=](auto& value, int64_t i) {
      load(x + i, value);
      store(value, y + i);
    });
  });
}

void cast(ExecContext&, ConstView x, View y) {
  with_storage(x.dtype, [&]<class From>(From) { with_storage(y.dtype, [&]<class To>(To) { cast_all(x.as<From>(), y.as<To>(), y.numel()); }); });
}

}  // namespace
}  // namespace cpu

namespace cuda {  // cast.cu
void cast(ExecContext& ctx, ConstView x, View y);
}  // namespace cuda

void cast(ExecContext& ctx, ConstView x, View y) {
  constexpr const char* kName = "cast";
  check::tensor(kName, "x", x, ctx);
  check::tensor(kName, "y", y, ctx);
  check::shape(kName, "y", y, x.shape);
  check::no_overlap(kName, {"y", y}, {{"x", x}});
  if (x.numel() == 0) return;
  run(ctx, {kName, {x}, {y}}, cpu::cast, VITRINE_IF_CUDA(cuda::cast), x, y);
}

}  // namespace vitrine
