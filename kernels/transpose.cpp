// SPDX-License-Identifier: Apache-2.0
#include "kernels/transpose.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/storage.h"
#include "kernels/run.h"
#include "runtime/cpu/parallel.h"

namespace vitrine {
namespace cpu {
namespace {

constexpr int64_t kTransposeGrain = 16384;  // elements

void transpose(ExecContext&, ConstView x, View y) {
  const int64_t rows = x.shape[1], columns = x.shape[2];
  with_storage(x.dtype, [&]<class T>(T) {
    const T* const from = x.as<T>();
    T* const to = y.as<T>();
    parallel_for(x.shape[0] * columns, std::max<int64_t>(1, kTransposeGrain / rows), [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* const column = from + i / columns * rows * columns + i % columns;
        for (int64_t r = 0; r < rows; ++r) to[i * rows + r] = column[r * columns];
      }
    });
  });
}

}  // namespace
}  // namespace cpu

namespace cuda {  // transpose.cu
void transpose(ExecContext& ctx, ConstView x, View y);
}  // namespace cuda

void transpose(ExecContext& ctx, ConstView x, View y) {
  constexpr const char* kName = "transpose";
  check::rank(kName, "x", x, 3, "(N, R, C)");
  check::tensor(kName, "x", x, ctx);
  check::tensor(kName, "y", y, {x.shape[0], x.shape[2], x.shape[1]}, x.dtype, ctx);
  check::no_overlap(kName, {"y", y}, {{"x", x}});
  if (x.numel() == 0) return;
  run(ctx, {kName, {x}, {y}}, cpu::transpose, VITRINE_IF_CUDA(cuda::transpose), x, y);
}

}  // namespace vitrine
