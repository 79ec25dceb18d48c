// SPDX-License-Identifier: Apache-2.0
#include "runtime/view.h"

#include <utility>

#include <fmt/format.h>

#include "runtime/error.h"
#include "runtime/order_checker.h"

namespace vitrine {
namespace {

thread_local const DeclaredMemory* declared_memory = nullptr;

template <class AnyView>
AnyView rows_of(const AnyView& view, int64_t begin, int64_t end) {
  if (view.shape.rank() == 0 || begin < 0 || begin > end || end > view.shape[0]) {
    throw ShapeError(
        fmt::format("View::rows: rows [{}, {}) of a view of shape {}: needs 0 <= begin <= end <= size of dimension 0",
                    begin, end, view.shape.str()));
  }
  using Byte = std::conditional_t<std::is_same_v<AnyView, View>, std::byte, const std::byte>;
  AnyView part = view;
  part.shape = view.shape.with_dim0(end - begin);
  const int64_t row_bytes = view.shape.with_dim0(1).numel() * size_of(view.dtype);
  if (view.data != nullptr) part.data = static_cast<Byte*>(view.data) + begin * row_bytes;
  return part;
}

template <class AnyView>
AnyView reshape_of(const AnyView& view, const Shape& to) {
  if (to.numel() != view.numel()) {
    throw ShapeError(fmt::format("View::reshape: shape {} has {} elements but {} has {}; the counts must be equal",
                                 view.shape.str(), view.numel(), to.str(), to.numel()));
  }
  AnyView other = view;
  other.shape = to;
  return other;
}

}  // namespace

DeclaredScope::DeclaredScope(const DeclaredMemory* declared) : previous_(std::exchange(declared_memory, declared)) {}
DeclaredScope::~DeclaredScope() { declared_memory = previous_; }

void detail::check_declared(const void* data, int64_t bytes) {
  if (declared_memory == nullptr) return;
  const auto* begin = static_cast<const std::byte*>(data);
  const auto* const end = begin + bytes;
  // The bytes may lie in several declared ranges, in any order.
  const auto advance = [&] {
    for (const MemoryAccess& range : declared_memory->accesses) {
      const auto* const first = static_cast<const std::byte*>(range.address);
      if (begin < first || begin >= first + range.bytes) continue;
      begin = first + range.bytes;
      return true;
    }
    return false;
  };
  while (begin < end) {
    if (advance()) continue;
    throw OrderError(
        fmt::format("{}: it accesses {} bytes that it has not declared, so their order is unknown; name "
                    "the tensor in OpInfo::reads or OpInfo::writes",
                    declared_memory->operation, end - begin));
  }
}

void detail::throw_wrong_access(DType dtype, DeviceId device, size_t bytes_each, bool floating) {
  if (device.backend == Backend::meta) {
    throw UnsupportedError(
        fmt::format("View::as: {} has no memory: only functions passed to ExecContext::dispatch may access elements; "
                    "on meta devices they do not run",
                    device.str()));
  }
  throw DtypeError(
      fmt::format("View::as: the elements are {}, but the access is to {} of {} bytes; check dtype() first, and throw "
                  "DtypeError for a dtype "
                  "that the layer does not take",
                  dtype_name(dtype), floating ? "floating-point numbers" : "elements", bytes_each));
}

View View::rows(int64_t begin, int64_t end) const { return rows_of(*this, begin, end); }
View View::reshape(const Shape& to) const { return reshape_of(*this, to); }
ConstView ConstView::rows(int64_t begin, int64_t end) const { return rows_of(*this, begin, end); }
ConstView ConstView::reshape(const Shape& to) const { return reshape_of(*this, to); }

}  // namespace vitrine
