// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/difference.h"
#include "runtime/cuda/dtype.cuh"

namespace vitrine::cuda {
namespace {

/// Sums over the elements of one block, or over all.
struct Squares {
  double difference, reference;
};
// The number of blocks depends on the length alone, so that the order of the sums is fixed.
constexpr int64_t kMostBlocks = 2048;
constexpr int64_t kBlockElements = 4096;
static_assert(kMostBlocks * static_cast<int64_t>(sizeof(Squares)) <= kDifferenceWorkspaceBytes);

template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    sum_squares(const T* x, const float* reference, int64_t count, Squares* sums) {
  wait_for_earlier_work();
  double difference = 0.0;
  double wanted = 0.0;
  for (int64_t i = first_item(); i < count; i += item_stride()) {
    const auto exact = static_cast<double>(reference[i]);
    const double d = static_cast<double>(to_float(x[i])) - exact;
    difference += d * d;
    wanted += exact * exact;
  }
  difference = block_sum(difference);
  wanted = block_sum(wanted);
  if (threadIdx.x == 0) sums[blockIdx.x] = {difference, wanted};
}

/// One block.
__global__ void __launch_bounds__(kBlockThreads) add_blocks(const Squares* sums, int blocks, float* norms) {
  wait_for_earlier_work();
  double difference = 0.0;
  double wanted = 0.0;
  for (int i = static_cast<int>(threadIdx.x); i < blocks; i += kBlockThreads) {
    difference += sums[i].difference;
    wanted += sums[i].reference;
  }
  difference = block_sum(difference);
  wanted = block_sum(wanted);
  if (threadIdx.x != 0) return;
  norms[0] = static_cast<float>(sqrt(difference));
  norms[1] = static_cast<float>(sqrt(wanted));
}

}  // namespace

void difference_norms(ExecContext& ctx, ConstView x, ConstView reference, View norms) {
  auto* const sums = scratch<Squares>(ctx, "difference_norms", kMostBlocks);
  const int64_t count = x.numel();
  const int64_t blocks = std::clamp<int64_t>(ceil_div(count, kBlockElements), 1, kMostBlocks);
  with_storage(x.dtype, [&]<class T>() {
    launch_cooperating(native_stream(ctx), sum_squares<T>, dim3(static_cast<unsigned>(blocks)), dim3(kBlockThreads),
                       x.as<T>(), reference.as<float>(), count, sums);
  });
  launch_cooperating(native_stream(ctx), add_blocks, dim3(1), dim3(kBlockThreads), sums, static_cast<int>(blocks),
                     norms.as<float>());
}

}  // namespace vitrine::cuda
