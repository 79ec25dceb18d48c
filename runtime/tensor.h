// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include <vitrine/runtime/memory/pool.h>
#include <vitrine/runtime/view.h>

namespace vitrine {

/// A View that keeps its memory alive. Copies share the memory; it returns to its pool when the last copy goes, on the thread that issues
/// that pool. An empty Tensor stands for an argument that is left out. rows() and reshape() share the memory too.
class Tensor {
 public:
  Tensor() = default;
  /// Takes a block from the pool. Made by ExecContext::allocate.
  Tensor(std::shared_ptr<Pool> pool, const Pool::Block& block, const Shape& shape, DType dtype, DeviceId device);
  /// Memory from elsewhere, which `storage` keeps alive. Made by ExecContext::adopt.
  Tensor(std::shared_ptr<void> storage, const View& view) : storage_(std::move(storage)), view_(view) {}
  /// Wraps memory that somebody else keeps alive.
  static Tensor borrow(const View& view);

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
