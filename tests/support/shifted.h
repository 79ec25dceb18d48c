// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "tests/support/device_fixture.h"

namespace vitrine::test {

/// A guarded tensor that begins `offset` elements after an aligned address, like views into larger tensors.
template <class T = float>
class Shifted {
 public:
  Shifted(TestDevice& device, const Shape& shape, int64_t offset, const std::vector<T>& values, DType dtype)
      : device_(device), offset_(offset) {
    std::vector<T> content(static_cast<size_t>(offset), kInFront);
    content.insert(content.end(), values.begin(), values.end());
    whole_ = device.guarded<T>({offset + shape.numel()}, content, dtype);
    view_ = whole_.view.rows(offset, offset + shape.numel()).reshape(shape);
  }
  Shifted(TestDevice& device, const Shape& shape, int64_t offset, const std::vector<T>& values)
      : Shifted(device, shape, offset, values, dtype_of<T>()) {}
  /// For outputs: elements that the operation does not write stay 77.
  Shifted(TestDevice& device, const Shape& shape, int64_t offset, DType dtype)
      : Shifted(device, shape, offset, std::vector<T>(static_cast<size_t>(shape.numel()), kInFront), dtype) {}
  Shifted(TestDevice& device, const Shape& shape, int64_t offset) : Shifted(device, shape, offset, dtype_of<T>()) {}

  operator View() const { return view_; }       // NOLINT: used as the View it is
  operator ConstView() const { return view_; }  // NOLINT

  std::vector<T> values() const {
    std::vector<T> all = device_.values<T>(whole_);
    for (int64_t i = 0; i < offset_; ++i)
      EXPECT_EQ(all[static_cast<size_t>(i)], kInFront) << "written before the tensor";
    all.erase(all.begin(), all.begin() + offset_);
    return all;
  }

 private:
  static constexpr T kInFront = T{77};
  TestDevice& device_;
  int64_t offset_;
  GuardedTensor whole_;
  View view_;
};

}  // namespace vitrine::test
