// SPDX-License-Identifier: Apache-2.0
#include "runtime/copy.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include <fmt/format.h>

#include "runtime/cpu/parallel.h"
#include "runtime/cuda/copy.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

constexpr int64_t kCopyGrain = int64_t{256} << 10;

void check_copy(const ConstView& source, const View& destination) {
  if (!(source.shape == destination.shape)) {
    throw ShapeError(fmt::format("copy: source has shape {} but destination has {}; they must be equal",
                                 source.shape.str(), destination.shape.str()));
  }
  if (source.dtype != destination.dtype) {
    throw DtypeError(fmt::format("copy: source is {} but destination is {}; they must be equal",
                                 dtype_name(source.dtype), dtype_name(destination.dtype)));
  }
}

}  // namespace

void copy(ExecContext& ctx, ConstView source, View destination) {
  check_copy(source, destination);
  const int64_t bytes = source.bytes();
  if (bytes == 0) return;
  const void* from = source.data;
  void* to = destination.data;
  const auto on_cpu = [=] {
    cpu::parallel_for(bytes, kCopyGrain, [&](int64_t begin, int64_t end) {
      std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin,
                  static_cast<size_t>(end - begin));
    });
  };
  ctx.dispatch({"copy", {source}, {destination}, bytes}, on_cpu, [&] { cuda::copy_on_gpu(ctx, source, destination); });
}

void zero(ExecContext& ctx, View destination) {
  const int64_t bytes = destination.bytes();
  if (bytes == 0) return;
  void* to = destination.data;
  const auto on_cpu = [=] {
    cpu::parallel_for(bytes, kCopyGrain, [&](int64_t begin, int64_t end) {
      std::memset(static_cast<char*>(to) + begin, 0, static_cast<size_t>(end - begin));
    });
  };
  ctx.dispatch({"zero", {}, {destination}}, on_cpu, [&] { cuda::zero_on_gpu(ctx, destination); });
}

void copy_blocks(ExecContext& ctx, std::span<const CopiedBlock> blocks, const CopiedBlock& last) {
  VITRINE_ASSERT(blocks.size() <= kMostCopiedBlocks, "few blocks are copied at once");
  std::array<CopiedBlock, kMostCopiedBlocks> all{};
  std::copy(blocks.begin(), blocks.end(), all.begin());
  int64_t bytes = 0;
  for (const CopiedBlock& block : all) {
    check_copy(block.source, block.destination);
    if (block.source && size_of(block.source.dtype) != size_of(DType::i32))
      throw DtypeError(fmt::format("copy_blocks: a block is {}, expected i32 or f32", dtype_name(block.source.dtype)));
    if (block.source) bytes += block.source.bytes();
  }
  check_copy(last.source, last.destination);
  if (last.source && !(last.source.shape == Shape{1} && last.source.dtype == DType::i32))
    throw ShapeError(fmt::format("copy_blocks: the last block has shape {} of {}, expected (1) of i32",
                                 last.source.shape.str(), dtype_name(last.source.dtype)));
  if (bytes == 0 && !last.source) return;
  const auto on_cpu = [=] {
    for (const CopiedBlock& block : all) {
      if (block.source)
        std::memcpy(block.destination.data, block.source.data, static_cast<size_t>(block.source.bytes()));
    }
    if (last.source) std::atomic_ref(*last.destination.as<int32_t>()).store(*last.source.as<int32_t>());
  };
  ctx.dispatch({"copy_blocks",
                {all[0].source, all[1].source, all[2].source, all[3].source, last.source},
                {all[0].destination, all[1].destination, all[2].destination, all[3].destination, last.destination},
                bytes},
               on_cpu, [&] { cuda::copy_blocks_on_gpu(ctx, all, last); });
}

}  // namespace vitrine
