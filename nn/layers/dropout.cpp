// SPDX-License-Identifier: Apache-2.0
#include "nn/layers/dropout.h"

#include <fmt/format.h>

#include "kernels/dropout.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

DropoutConfig draw(float p, int64_t index, const Pass& pass) {
  return {.p = pass.training ? p : 0.0F,
          .seed = pass.seed,
          .step = pass.step,
          .layer = index + 1,
          .first_sample = pass.first_sample};
}

}  // namespace

Dropout::Dropout(float p, int64_t index) : p_(p), index_(index) {
  if (!(p >= 0.0F && p < 1.0F)) throw ConfigError(fmt::format("Dropout: p is {}, expected a probability in [0, 1)", p));
}

std::string Dropout::describe() const { return fmt::format("dropout({})", p_); }

bool Dropout::is_identity(const Shape& /*x*/, const Pass& pass) const { return !pass.training || p_ == 0.0F; }

Saved Dropout::forward(const ForwardCall& call) const {
  dropout(call.ctx, draw(p_, index_, call.pass), call.x, call.y, call.pass.step_values);
  return {};
}

void Dropout::backward(const BackwardCall& call) const {
  if (call.grad_x) dropout(call.ctx, draw(p_, index_, call.pass), call.grad_y, call.grad_x, call.pass.step_values);
}

}  // namespace vitrine
