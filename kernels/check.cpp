// SPDX-License-Identifier: Apache-2.0
#include "kernels/check.h"

#include <functional>

#include <fmt/format.h>

#include "runtime/error.h"
#include "runtime/units.h"

namespace vitrine::check {
namespace {

bool overlap(const ConstView& a, const ConstView& b) {
  if (!a || !b || a.bytes() == 0 || b.bytes() == 0) return false;
  // In WebAssembly addresses of meta devices wrap around after 4 GiB, so that they do not tell.
  if constexpr (sizeof(void*) < sizeof(uint64_t)) return false;
  const auto* const a_begin = a.as<char>();
  const auto* const b_begin = b.as<char>();
  const std::less<> before;
  return before(a_begin, b_begin + b.bytes()) && before(b_begin, a_begin + a.bytes());
}

[[noreturn]] void throw_overlap(const char* operation, const Argument& a, const Argument& b) {
  throw ShapeError(fmt::format("{}: {} {} and {} {} share memory, expected separate tensors", operation, a.name,
                               a.view.shape.str(), b.name, b.view.shape.str()));
}

}  // namespace

void rank(const char* operation, const char* argument, const ConstView& v, int rank, const char* layout) {
  if (v.shape.rank() == rank) return;
  throw ShapeError(fmt::format("{}: {} has shape {} of rank {}, expected rank {}: {}", operation, argument,
                               v.shape.str(), v.shape.rank(), rank, layout));
}

void shape(const char* operation, const char* argument, const ConstView& v, const Shape& shape) {
  if (v.shape == shape) return;
  throw ShapeError(fmt::format("{}: {} has shape {}, expected {}", operation, argument, v.shape.str(), shape.str()));
}

void device(const char* operation, const char* argument, const ConstView& v, const ExecContext& ctx) {
  if (!v && v.numel() > 0) {
    throw DeviceError(
        fmt::format("{}: {} has no memory, expected a tensor on {}; allocate it with ExecContext::allocate", operation,
                    argument, ctx.device().str()));
  }
  if (v.device == ctx.device()) return;
  throw DeviceError(fmt::format("{}: {} is on {}, expected {}; copy() moves tensors between devices", operation,
                                argument, v.device.str(), ctx.device().str()));
}

void tensor(const char* operation, const char* argument, const ConstView& v, const ExecContext& ctx) {
  if (v.dtype != DType::f32 && v.dtype != DType::f16 && v.dtype != DType::bf16) {
    throw DtypeError(fmt::format("{}: {} is {}, expected f32, f16 or bf16", operation, argument, dtype_name(v.dtype)));
  }
  device(operation, argument, v, ctx);
}

void tensor(const char* operation, const char* argument, const ConstView& v, DType dtype, const ExecContext& ctx) {
  device(operation, argument, v, ctx);
  if (v.dtype == dtype) return;
  throw DtypeError(
      fmt::format("{}: {} is {}, expected {}", operation, argument, dtype_name(v.dtype), dtype_name(dtype)));
}

void tensor(const char* operation, const char* argument, const ConstView& v, const Shape& shape, DType dtype,
            const ExecContext& ctx) {
  tensor(operation, argument, v, dtype, ctx);
  check::shape(operation, argument, v, shape);
}

void no_overlap(const char* operation, const Argument& a, std::initializer_list<Argument> others) {
  for (const Argument& b : others) {
    if (overlap(a.view, b.view)) throw_overlap(operation, a, b);
  }
}

void column_sums(const char* operation, const View& sums, const ConstView& x, const ExecContext& ctx) {
  if (sums) tensor(operation, "sums", sums, {x.shape[x.shape.rank() - 1]}, DType::f32, ctx);
}

void same_or_apart(const char* operation, const Argument& a, std::initializer_list<Argument> others) {
  for (const Argument& b : others) {
    if (a.view.data != b.view.data && overlap(a.view, b.view)) throw_overlap(operation, a, b);
  }
}

void throw_small_workspace(const ExecContext& ctx, const char* operation, const std::string& what, int64_t needed,
                           int64_t proposed) {
  const View workspace = ctx.workspace();
  const int64_t bytes = workspace ? workspace.bytes() : 0;
  throw OutOfMemory(
      {fmt::format("{}: {}needs a workspace of at least {} bytes, but {} bytes are reserved; reserve more with ",
                   operation, what.empty() ? "" : what + " ", needed, bytes),
       propose(ctx.workspace_setting(), size_argument(proposed))},
      {.memory = MemoryShortage::Memory::workspace,
       .device = workspace ? workspace.device.str() : "",
       .user = operation,
       .needed_bytes = needed,
       .capacity_bytes = bytes});
}

}  // namespace vitrine::check
