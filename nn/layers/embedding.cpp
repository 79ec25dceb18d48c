// SPDX-License-Identifier: Apache-2.0
#include "nn/layers/embedding.h"

#include <fmt/format.h>

#include "kernels/embedding.h"
#include "kernels/gather_rows.h"
#include "runtime/copy.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

void check_sizes(const char* layer, const char* rows_name, int64_t rows, int64_t features) {
  if (rows >= 1 && features >= 1) return;
  throw ConfigError(
      fmt::format("{}: {} is {} and features is {}, expected at least 1", layer, rows_name, rows, features));
}

}  // namespace

Embedding::Embedding(int64_t rows, int64_t features, Init init) : rows_(rows), features_(features), init_(init) {
  check_sizes("Embedding", "rows", rows, features);
}

std::string Embedding::describe() const { return fmt::format("embedding({} x {})", rows_, features_); }

std::vector<ParamSpec> Embedding::parameters() const { return {{"weight", {rows_, features_}, init_, {}}}; }

Shape Embedding::output_shape(const Shape& x) const {
  std::vector<int64_t> sizes;
  for (int i = 0; i < x.rank(); ++i) sizes.push_back(x[i]);
  sizes.push_back(features_);
  return Shape(std::span<const int64_t>(sizes));
}

Work Embedding::forward_work(const Shape& x) const { return {0, 2 * x.numel() * features_}; }

Saved Embedding::forward(const ForwardCall& call) const {
  const int64_t count = call.x.shape().numel();
  gather_rows(call.ctx, call.params[0], call.x.reshape({count}), call.y.reshape({count, features_}));
  Saved saved;
  if (call.pass.training) saved.tensors.push_back(call.x);
  return saved;
}

void Embedding::backward(const BackwardCall& call) const {
  if (!call.grad_params[0]) return;
  const Tensor& x = call.saved.tensors[0];
  const int64_t count = x.shape().numel();
  embedding_backward(call.ctx, x.reshape({count}), call.grad_y.reshape({count, features_}), call.grad_params[0],
                     call.mode);
}

Positions::Positions(int64_t positions, int64_t features, Init init)
    : positions_(positions), features_(features), init_(init) {
  check_sizes("Positions", "positions", positions, features);
}

std::string Positions::describe() const { return fmt::format("positions({} x {})", positions_, features_); }

std::vector<ParamSpec> Positions::parameters() const { return {{"weight", {positions_, features_}, init_, {}}}; }

Shape Positions::output_shape(const Shape& x) const {
  if (x.rank() == 3 && x[1] <= positions_ && x[2] == features_) return x;
  throw ShapeError(fmt::format("{}: input has shape {}, expected (N, T, {}) with T up to {}", describe(), x.str(),
                               features_, positions_));
}

Work Positions::forward_work(const Shape& x) const { return {0, 2 * x.numel() + x[1] * x[2]}; }

Saved Positions::forward(const ForwardCall& call) const {
  add_positions(call.ctx, call.x, call.params[0], call.y);
  return {};
}

void Positions::backward(const BackwardCall& call) const {
  if (call.grad_params[0]) add_positions_backward(call.ctx, call.grad_y, call.grad_params[0], call.mode);
  if (call.grad_x && call.grad_x.view().data != call.grad_y.view().data) copy(call.ctx, call.grad_y, call.grad_x);
}

}  // namespace vitrine
