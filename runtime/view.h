// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <vitrine/runtime/device_id.h>
#include <vitrine/runtime/dtype.h>
#include <vitrine/runtime/shape.h>

namespace vitrine {
namespace detail {

/// Whether elements of that dtype are stored as T: float, int32_t, uint8_t, or any type of 2 bytes for f16 and bf16.
template <class T>
constexpr bool is_stored_as(DType dtype) {
  if (std::is_same_v<T, float>) return dtype == DType::f32;
  if (std::is_same_v<T, int32_t>) return dtype == DType::i32;
  if (std::is_same_v<T, uint8_t>) return dtype == DType::u8;
  return sizeof(T) == 2 && (dtype == DType::f16 || dtype == DType::bf16);
}
/// The error of an as() that is_stored_as or the device forbids.
[[noreturn]] void throw_wrong_access(DType dtype, DeviceId device, size_t bytes_each, bool floating);

template <class T>
void check_access(DType dtype, DeviceId device) {
  if constexpr (std::is_same_v<T, char> || std::is_same_v<T, std::byte>) return;
  if (device.backend == Backend::meta || !is_stored_as<T>(dtype)) throw_wrong_access(dtype, device, sizeof(T), std::is_floating_point_v<T>);
}

}  // namespace detail

/// A contiguous row-major tensor that somebody else owns: what kernels and collectives work on. Cheap to copy.
/// An empty View (data == nullptr) stands for an argument that is left out. On meta devices `data` is an address that is never read.
struct View {
  void* data = nullptr;
  Shape shape;
  DType dtype = DType::f32;
  DeviceId device;

  explicit operator bool() const { return data != nullptr; }
  int64_t numel() const { return shape.numel(); }
  int64_t bytes() const { return numel() * size_of(dtype); }
  /// The elements, for the function that an operation runs on the device (ExecContext::dispatch): float, int32_t or uint8_t, in 16 bits any type of 2
  /// bytes; or char or std::byte: the address alone, unchecked. nullptr of an empty View.
  /// throws DtypeError when they are stored otherwise, UnsupportedError on meta devices, which have no memory.
  template <class T>
  T* as() const {
    if (data != nullptr) detail::check_access<T>(dtype, device);
    return static_cast<T*>(data);
  }
  /// Rows [begin, end) along dimension 0. throws ShapeError when out of range.
  View rows(int64_t begin, int64_t end) const;
  /// The same elements under another shape. throws ShapeError when the element counts differ.
  View reshape(const Shape& to) const;
};

/// A View through which nothing is written.
struct ConstView {
  const void* data = nullptr;
  Shape shape;
  DType dtype = DType::f32;
  DeviceId device;

  ConstView() = default;
  ConstView(const void* p, const Shape& s, DType t, DeviceId d) : data(p), shape(s), dtype(t), device(d) {}
  ConstView(const View& v) : data(v.data), shape(v.shape), dtype(v.dtype), device(v.device) {}  // NOLINT: a View is a ConstView

  explicit operator bool() const { return data != nullptr; }
  int64_t numel() const { return shape.numel(); }
  int64_t bytes() const { return numel() * size_of(dtype); }
  template <class T>
  const T* as() const {
    if (data != nullptr) detail::check_access<T>(dtype, device);
    return static_cast<const T*>(data);
  }
  ConstView rows(int64_t begin, int64_t end) const;
  ConstView reshape(const Shape& to) const;
};

}  // namespace vitrine
