// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/outside_memory.h"

#include <algorithm>
#include <string_view>

#include <cuda_runtime_api.h>

#include "runtime/cuda/check.h"

namespace vitrine::cuda {
namespace {

/// Bytes in use on the GPU; below 0 if CUDA does not report it, which the object's own creation does as well.
int64_t bytes_in_use(int gpu) noexcept {
  int previous = 0;
  size_t free_bytes = 0, total_bytes = 0;
  const bool known = cudaGetDevice(&previous) == cudaSuccess && cudaSetDevice(gpu) == cudaSuccess &&
                     cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess;
  if (!known) cudaGetLastError();
  set_device_back(previous);
  return known ? static_cast<int64_t>(total_bytes - free_bytes) : -1;
}

}  // namespace

OutsideMeter::OutsideMeter(ExecContext& ctx, const char* owner)
    : ctx_(ctx), owner_(owner), before_(bytes_in_use(ctx.device().index)) {}

OutsideMeter::~OutsideMeter() {
  const int64_t after = bytes_in_use(ctx_.device().index);
  if (before_ < 0 || after < 0) return;
  std::vector<OutsideBytes>& owners = ctx_.plans().get<OutsideMemory>().owners;
  const auto known = std::find_if(owners.begin(), owners.end(),
                                  [&](const OutsideBytes& o) { return std::string_view(o.owner) == owner_; });
  OutsideBytes& entry = known == owners.end() ? owners.emplace_back() : *known;
  entry = {owner_, std::max<int64_t>(0, after - before_)};
}

}  // namespace vitrine::cuda
