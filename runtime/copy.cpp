// SPDX-License-Identifier: Apache-2.0
#include "runtime/copy.h"

#include <cstring>

#include <fmt/format.h>

#include "runtime/cpu/parallel.h"
#include "runtime/cuda/copy.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

constexpr int64_t kCopyGrain = int64_t{256} << 10;

}  // namespace

void copy(ExecContext& ctx, ConstView source, View destination) {
  if (!(source.shape == destination.shape)) {
    throw ShapeError(fmt::format("copy: source has shape {} but destination has {}; they must be equal",
                                 source.shape.str(), destination.shape.str()));
  }
  if (source.dtype != destination.dtype) {
    throw DtypeError(fmt::format("copy: source is {} but destination is {}; they must be equal",
                                 dtype_name(source.dtype), dtype_name(destination.dtype)));
  }
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

}  // namespace vitrine
