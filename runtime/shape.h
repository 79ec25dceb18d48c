// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace vitrine {

/// Sizes of a contiguous row-major tensor, outermost first. At most kMaxRank dimensions; a size may be 0.
class Shape {
 public:
  static constexpr int kMaxRank = 5;

  Shape() = default;
  /// throws ShapeError for a negative size or more than kMaxRank dimensions.
  Shape(std::initializer_list<int64_t> sizes);
  explicit Shape(std::span<const int64_t> sizes);

  int rank() const { return rank_; }
  /// Size of dimension `i`. requires 0 <= i < rank (asserted)
  int64_t operator[](int i) const;
  /// Product of the sizes; 1 for rank 0.
  int64_t numel() const;
  /// The same shape with dimension 0 replaced: a slice of the batch.
  Shape with_dim0(int64_t size) const;
  /// The same shape with the last dimension replaced. requires rank >= 1 (asserted)
  Shape with_last(int64_t size) const;
  /// "(64, 784)".
  std::string str() const;

  bool operator==(const Shape& other) const;

 private:
  std::array<int64_t, kMaxRank> sizes_{};
  int rank_ = 0;
};

}  // namespace vitrine
