// SPDX-License-Identifier: Apache-2.0
#include "kernels/check.h"

#include <functional>

#include <fmt/format.h>

#include "runtime/error.h"

namespace vitrine::check {

void shape(const char* operation, const char* argument, const ConstView& v, const Shape& expected) {
  if (v.shape == expected) return;
  throw ShapeError(fmt::format("{}: {} has shape {}, expected {}", operation, argument, v.shape.str(), expected.str()));
}

void rank(const char* operation, const char* argument, const ConstView& v, int rank, const char* layout) {
  if (v.shape.rank() == rank) return;
  throw ShapeError(
      fmt::format("{}: {} has shape {} of rank {}, expected rank {}: {}", operation, argument, v.shape.str(), v.shape.rank(), rank, layout));
}

void dtype(const char* operation, const char* argument, const ConstView& v, DType expected) {
  if (v.dtype == expected) return;
  throw DtypeError(fmt::format("{}: {} is {}, expected {}", operation, argument, dtype_name(v.dtype), dtype_name(expected)));
}

void storage(const char* operation, const char* argument, const ConstView& v) {
  if (v.dtype == DType::f32 || v.dtype == DType::f16 || v.dtype == DType::bf16) return;
  throw DtypeError(fmt::format("{}: {} is {}, expected f32, f16 or bf16", operation, argument, dtype_name(v.dtype)));
}

void device(const char* operation, const char* argument, const ConstView& v, const ExecContext& ctx) {
  const std::string here = ctx.device().str();
  if (!v && v.numel() > 0) {
    throw DeviceError(
        fmt::format("{}: {} has no memory, expected a tensor on {}; allocate it with ExecContext::allocate", operation, argument, here));
  }
  if (v.device == ctx.device()) return;
  throw DeviceError(fmt::format("{}: {} is on {}, expected {}; copy() moves tensors between devices", operation, argument, v.device.str(), here));
}

void no_overlap(const char* operation, const char* a_name, const ConstView& a, const char* b_name, const ConstView& b) {
  if (!a || !b || a.bytes() == 0 || b.bytes() == 0) return;
  const auto* a_begin = a.as<char>();
  const auto* b_begin = b.as<char>();
  const std::less<> before;
  if (!before(a_begin, b_begin + b.bytes()) || !before(b_begin, a_begin + a.bytes())) return;
  throw ShapeError(
      fmt::format("{}: {} {} and {} {} share memory, expected separate tensors", operation, a_name, a.shape.str(), b_name, b.shape.str()));
}

void tensor(const char* operation, const char* argument, const ConstView& v, const Shape& expected, DType type, const ExecContext& ctx) {
  check::device(operation, argument, v, ctx);
  check::dtype(operation, argument, v, type);
  check::shape(operation, argument, v, expected);
}

std::string target_out_of_range(int64_t target, int64_t row, int64_t classes, int64_t ignore_index) {
  return fmt::format("softmax_cross_entropy: target {} in row {} is out of range, expected 0 <= target < {} or ignore_index {}", target, row, classes,
                     ignore_index);
}

}  // namespace vitrine::check
