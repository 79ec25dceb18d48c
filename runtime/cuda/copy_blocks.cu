// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "runtime/cuda/copy.h"
#include "runtime/cuda/launch.cuh"
#include "runtime/cuda/native.h"

namespace vitrine::cuda {
namespace {

constexpr int64_t kThreads = 256;
constexpr int64_t kMostBlocks = 32;

struct Blocks {
  const int32_t* from[kMostCopiedBlocks];
  int32_t* to[kMostCopiedBlocks];
  int64_t words[kMostCopiedBlocks];
  const int32_t* last_from;
  int32_t* last_to;  // null: there is none; else one thread copies all
};

__global__ void copy_words(Blocks b) {
  wait_for_earlier_work();
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (size_t block = 0; block < kMostCopiedBlocks; ++block) {
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < b.words[block]; i += stride)
      b.to[block][i] = b.from[block][i];
  }
  if (b.last_to == nullptr) return;
  __threadfence_system();
  atomicExch_system(b.last_to, *b.last_from);
}

}  // namespace

void copy_blocks_on_gpu(ExecContext& ctx, std::span<const CopiedBlock> blocks, const CopiedBlock& last) {
  Blocks b{};
  int64_t most = 1;
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!blocks[i].source) continue;
    b.from[i] = static_cast<const int32_t*>(blocks[i].source.data);
    b.to[i] = static_cast<int32_t*>(blocks[i].destination.data);
    b.words[i] = blocks[i].source.bytes() / static_cast<int64_t>(sizeof(int32_t));
    most = std::max(most, b.words[i]);
  }
  b.last_from = static_cast<const int32_t*>(last.source.data);
  b.last_to = static_cast<int32_t*>(last.destination.data);
  const bool alone = b.last_to != nullptr;
  const int64_t grid = alone ? 1 : std::min(kMostBlocks, (most + kThreads - 1) / kThreads);
  launch(native_stream(ctx), copy_words, dim3(static_cast<unsigned>(grid)),
         dim3(static_cast<unsigned>(alone ? 1 : kThreads)), b);
}

}  // namespace vitrine::cuda
