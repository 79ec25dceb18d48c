// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include <vitrine/runtime/memory/pool.h>
#include <vitrine/runtime/view.h>

namespace vitrine {

/// A View that keeps its memory alive. Copies share the memory, which returns to its pool when the last copy is
/// destroyed, on the thread that issues to that pool. An empty Tensor stands for an omitted argument; one that was
/// moved from is empty. rows() and reshape() share the memory too.
class Tensor {
 public:
  Tensor() = default;
  Tensor(const Tensor&) = default;
  Tensor(Tensor&& other) noexcept : storage_(std::move(other.storage_)), view_(std::exchange(other.view_, View{})) {}
  Tensor& operator=(const Tensor&) = default;
  Tensor& operator=(Tensor&& other) noexcept {
    view_ = std::exchange(other.view_, View{});
    storage_ = std::move(other.storage_);
    return *this;
  }
  ~Tensor() = default;
  /// Owns a block of the pool. Called by ExecContext::allocate.
  Tensor(std::shared_ptr<Pool> pool, const Pool::Block& block, const Shape& shape, DType dtype, DeviceId device);
  /// Refers to other memory, which `storage` keeps alive; if null, the caller keeps it alive. Called by
  /// ExecContext::adopt.
  Tensor(std::shared_ptr<void> storage, const View& view) : storage_(std::move(storage)), view_(view) {}

  explicit operator bool() const { return static_cast<bool>(view_); }
  const View& view() const { return view_; }
  operator View() const { return view_; }       // NOLINT: a Tensor is a View
  operator ConstView() const { return view_; }  // NOLINT
  const Shape& shape() const { return view_.shape; }
  DType dtype() const { return view_.dtype; }
  int64_t numel() const { return view_.numel(); }
  int64_t bytes() const { return view_.bytes(); }

  Tensor rows(int64_t begin, int64_t end) const;
  Tensor reshape(const Shape& to) const;

 private:
  std::shared_ptr<void> storage_;
  View view_;
};

}  // namespace vitrine
