// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "kernels/conv2d.h"

/// What meta contexts remember of the operations that use a workspace.
namespace vitrine {

enum class Conv2dPass { forward, backward_data, backward_weight };
/// "conv2d_forward", "conv2d_backward_data", "conv2d_backward_weight".
const char* pass_name(Conv2dPass pass);

struct RecordedConv2d {
  Conv2dPass pass = Conv2dPass::forward;
  Conv2dConfig config;
  DType dtype = DType::f32;
  Shape x, w, y;
  bool bias = false;
  bool accumulate = false;  // of the weight pass: adds to the content

  /// "conv2d_forward x (64, 227, 227, 3) w (64, 11, 11, 3) stride 4 pad 2, bf16"; f32 is not named.
  std::string str() const;
  /// What distinguishes one convolution from another.
  using Key = std::array<int64_t, 14>;
  Key key() const;
};

/// c (m, n) = a (m, k) b (k, n), with rows of c n elements apart.
struct RecordedProduct {
  int64_t m = 0, n = 0, k = 0;
  DType dtype = DType::f32, c_dtype = DType::f32;
  bool transpose_a = false, transpose_b = false, bias = false, relu = false, accumulate = false;
  bool row_sums = false;  // of op(a), which GPUs compute with the product: the gradient of a bias

  /// "a product of 64 by 784 by 256, f16"; f32 is not named.
  std::string str() const;
  // NOLINTNEXTLINE(modernize-use-nullptr): a false positive of clang-tidy 14
  auto operator<=>(const RecordedProduct&) const = default;
};

/// The distinct operations of a context, in PlanCache.
struct RecordedOperations {
  std::map<RecordedConv2d::Key, RecordedConv2d> convolutions;
  std::map<RecordedProduct, bool> products;

  void add(const RecordedConv2d& convolution) { convolutions.try_emplace(convolution.key(), convolution); }
  void add(const RecordedProduct& product) { products.try_emplace(product, true); }
  /// Each operation as text.
  std::vector<std::string> lines() const;
  /// Adds the operation of a line. throws DataError
  void add_line(const std::string& line);
};

/// Remember the operation if the context is a meta device's.
void record(ExecContext& ctx, const RecordedConv2d& convolution);
void record(ExecContext& ctx, const RecordedProduct& product);

}  // namespace vitrine
