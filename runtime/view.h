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

/// Whether elements of a dtype are stored as T: float, int32_t, uint8_t, or any type of 2 bytes for f16 and bf16.
template <class T>
constexpr bool is_stored_as(DType dtype) {
  if (std::is_same_v<T, float>) return dtype == DType::f32;
  if (std::is_same_v<T, int32_t>) return dtype == DType::i32;
  if (std::is_same_v<T, uint8_t>) return dtype == DType::u8;
  return sizeof(T) == 2 && (dtype == DType::f16 || dtype == DType::bf16);
}
/// throws OrderError if the operation that this thread runs has declared its memory (DeclaredMemory) without these
/// bytes
void check_declared(const void* data, int64_t bytes);
/// Throws the error of as() for a type that is_stored_as or the device rules out.
[[noreturn]] void throw_wrong_access(DType dtype, DeviceId device, size_t bytes_each, bool floating);

template <class T>
void check_access(const void* data, int64_t bytes, DType dtype, DeviceId device) {
  if constexpr (std::is_same_v<T, char> || std::is_same_v<T, std::byte>) return;
  if (device.backend == Backend::meta || !is_stored_as<T>(dtype))
    throw_wrong_access(dtype, device, sizeof(T), std::is_floating_point_v<T>);
  check_declared(data, bytes);
}

}  // namespace detail

/// A contiguous row-major tensor that the view does not own; the argument type of kernels and collectives. Cheap to
/// copy. An empty View (data == nullptr) stands for an omitted argument. On meta devices `data` is an address that is
/// never accessed.
struct View {
  void* data = nullptr;
  Shape shape;
  DType dtype = DType::f32;
  DeviceId device;

  explicit operator bool() const { return data != nullptr; }
  int64_t numel() const { return shape.numel(); }
  int64_t bytes() const { return numel() * size_of(dtype); }
  /// Address of the elements, for functions that ExecContext::dispatch runs on the device. T is float, int32_t or
  /// uint8_t, any type of 2 bytes for f16 and bf16, or char or std::byte for the address without a check. nullptr for
  /// an empty View. throws DtypeError if the elements are stored as another type, UnsupportedError on meta devices,
  /// which have no memory, OrderError if the order is checked and the operation has not declared them.
  template <class T>
  T* as() const {
    if (data != nullptr) detail::check_access<T>(data, bytes(), dtype, device);
    return static_cast<T*>(data);
  }
  /// Rows [begin, end) along dimension 0. throws ShapeError if out of range.
  View rows(int64_t begin, int64_t end) const;
  /// The same elements with another shape. throws ShapeError if the element counts differ.
  View reshape(const Shape& to) const;
};

/// A View for reading.
struct ConstView {
  const void* data = nullptr;
  Shape shape;
  DType dtype = DType::f32;
  DeviceId device;

  ConstView() = default;
  ConstView(const void* p, const Shape& s, DType t, DeviceId d) : data(p), shape(s), dtype(t), device(d) {}
  // NOLINTNEXTLINE(google-explicit-constructor): a View is a ConstView
  ConstView(const View& v) : data(v.data), shape(v.shape), dtype(v.dtype), device(v.device) {}

  explicit operator bool() const { return data != nullptr; }
  int64_t numel() const { return shape.numel(); }
  int64_t bytes() const { return numel() * size_of(dtype); }
  template <class T>
  const T* as() const {
    if (data != nullptr) detail::check_access<T>(data, bytes(), dtype, device);
    return static_cast<const T*>(data);
  }
  ConstView rows(int64_t begin, int64_t end) const;
  ConstView reshape(const Shape& to) const;
};

}  // namespace vitrine
