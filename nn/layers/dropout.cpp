// SPDX-License-Identifier: Apache-2.0
#include "nn/layers/dropout.h"

#include <fmt/format.h>

#include "kernels/dropout.h"
#include "nn/layers/check.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

DropoutConfig draw(float p, int64_t index, const Pass& pass) {
  return {.p = pass.training ? p : 0.0F, .seed = pass.seed, .step = pass.step, .layer = index + 1, .first_sample = pass.first_sample};
}

}  // namespace

Dropout::Dropout(float p, int64_t index) : p_(p), index_(index) {
  if (!(p >= 0.0F && p < 1.0F)) throw ConfigError(fmt::format("Dropout: p is {} but 0 <= p < 1 is needed", p));
}

std::string Dropout::describe() const { return fmt::format("dropout({})", p_); }

std::vector<Shape> Dropout::output_shapes(std::span<const Shape> inputs) const { return {single_input(*this, inputs)}; }

bool Dropout::is_identity(std::span<const Shape> /*inputs*/, const Pass& pass) const { return !pass.training || p_ == 0.0F; }

Saved Dropout::forward(ExecContext& ctx, ParamViews /*params*/, Tensors inputs, Tensors outputs, const Pass& pass) const {
  dropout(ctx, draw(p_, index_, pass), inputs[0], outputs[0]);
  return {};
}

void Dropout::backward(ExecContext& ctx, ParamViews /*params*/, const Saved& /*saved*/, Tensors grad_outputs, Tensors grad_inputs,
                       ParamViews /*grad_params*/, GradMode /*mode*/, const Pass& pass) const {
  if (grad_inputs[0]) dropout(ctx, draw(p_, index_, pass), grad_outputs[0], grad_inputs[0]);
}

}  // namespace vitrine
