// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/device_id.h>
#include <vitrine/runtime/dtype.h>
#include <vitrine/runtime/shape.h>

namespace vitrine {

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
  template <class T>
  T* as() const {
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
    return static_cast<const T*>(data);
  }
  ConstView rows(int64_t begin, int64_t end) const;
  ConstView reshape(const Shape& to) const;
};

}  // namespace vitrine
