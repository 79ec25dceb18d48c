// SPDX-License-Identifier: Apache-2.0
#include "runtime/shape.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/error.h"

namespace vitrine {
namespace {

bool product_fits(std::span<const int64_t> sizes) {
  if (std::ranges::find(sizes, 0) != sizes.end()) return true;
  int64_t product = 1;
  return std::ranges::none_of(sizes, [&](int64_t size) { return __builtin_mul_overflow(product, size, &product); });
}

}  // namespace

Shape::Shape(std::initializer_list<int64_t> sizes) : Shape(std::span<const int64_t>(sizes.begin(), sizes.size())) {}

Shape::Shape(std::span<const int64_t> sizes) : rank_(static_cast<int>(sizes.size())) {
  if (sizes.size() > kMaxRank) {
    throw ShapeError(fmt::format("Shape: ({}) has {} dimensions, at most {} are supported", fmt::join(sizes, ", "),
                                 sizes.size(), kMaxRank));
  }
  if (std::ranges::any_of(sizes, [](int64_t size) { return size < 0; })) {
    throw ShapeError(
        fmt::format("Shape: ({}) has a negative size, every size must be at least 0", fmt::join(sizes, ", ")));
  }
  if (!product_fits(sizes)) {
    throw ShapeError(fmt::format("Shape: ({}) has more elements than 64 bits can count", fmt::join(sizes, ", ")));
  }
  std::ranges::copy(sizes, sizes_.begin());
}

int64_t Shape::operator[](int i) const {
  VITRINE_ASSERT(i >= 0 && i < rank_, "dimension out of range");
  return sizes_[static_cast<size_t>(i)];
}

int64_t Shape::numel() const {
  int64_t product = 1;
  for (int i = 0; i < rank_; ++i) {
    const int64_t size = sizes_[static_cast<size_t>(i)];
    if (size == 0) return 0;
    product *= size;
  }
  return product;
}

Shape Shape::with_dim0(int64_t size) const {
  VITRINE_ASSERT(rank_ > 0, "with_dim0 needs at least one dimension");
  std::array<int64_t, kMaxRank> sizes = sizes_;
  sizes[0] = size;
  return Shape(std::span<const int64_t>(sizes.data(), static_cast<size_t>(rank_)));
}

Shape Shape::with_last(int64_t size) const {
  VITRINE_ASSERT(rank_ > 0, "with_last needs at least one dimension");
  std::array<int64_t, kMaxRank> sizes = sizes_;
  sizes[static_cast<size_t>(rank_) - 1] = size;
  return Shape(std::span<const int64_t>(sizes.data(), static_cast<size_t>(rank_)));
}

std::string Shape::str() const { return fmt::format("({})", fmt::join(sizes_.begin(), sizes_.begin() + rank_, ", ")); }

bool Shape::operator==(const Shape& other) const {
  return rank_ == other.rank_ && std::equal(sizes_.begin(), sizes_.begin() + rank_, other.sizes_.begin());
}

}  // namespace vitrine
