// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer.h"

#include <array>

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/implementations.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

struct Argument {
  const char* name;
  ConstView view;
};

/// The buffers are equal in length and disjoint; step and control are in order.
void check_update(const char* name, const ExecContext& ctx, std::initializer_list<Argument> buffers, const ConstView& step,
                  const ConstView& control) {
  check::rank(name, "param", buffers.begin()->view, 1, "(n)");
  const Shape shape = buffers.begin()->view.shape;
  for (const Argument& a : buffers) check::tensor(name, a.name, a.view, shape, DType::f32, ctx);
  check::tensor(name, "step", step, {1}, DType::i32, ctx);
  check::tensor(name, "control", control, {StepControl::kCount}, DType::f32, ctx);
  for (const Argument* a = buffers.begin(); a != buffers.end(); ++a) {
    for (const Argument* b = a + 1; b != buffers.end(); ++b) check::no_overlap(name, a->name, a->view, b->name, b->view);
    check::no_overlap(name, a->name, a->view, "step", step);
    check::no_overlap(name, a->name, a->view, "control", control);
  }
}

}  // namespace

void sgd_update(ExecContext& ctx, const SgdConfig& config, View param, ConstView grad, View momentum_buffer, View step, View control) {
  constexpr const char* kName = "sgd_update";
  if (config.nesterov && config.momentum == 0.0) {
    throw ConfigError(fmt::format("{}: nesterov is on and momentum is 0, expected a momentum above 0", kName));
  }
  if (config.momentum == 0.0) {
    check_update(kName, ctx, {{"param", param}, {"grad", grad}}, step, control);
    run(ctx, {kName, {grad, control}, {param, step, control}}, VITRINE_IMPLEMENTATIONS(sgd_update), config, param, grad, View{}, step, control);
    return;
  }
  check_update(kName, ctx, {{"param", param}, {"grad", grad}, {"momentum_buffer", momentum_buffer}}, step, control);
  run(ctx, {kName, {grad, control}, {param, momentum_buffer, step, control}}, VITRINE_IMPLEMENTATIONS(sgd_update), config, param, grad,
      momentum_buffer, step, control);
}

void adam_update(ExecContext& ctx, const AdamConfig& config, View param, ConstView grad, View exp_avg, View exp_avg_sq, View step, View control) {
  constexpr const char* kName = "adam_update";
  check_update(kName, ctx, {{"param", param}, {"grad", grad}, {"exp_avg", exp_avg}, {"exp_avg_sq", exp_avg_sq}}, step, control);
  run(ctx, {kName, {grad, control}, {param, exp_avg, exp_avg_sq, step, control}}, VITRINE_IMPLEMENTATIONS(adam_update), config, param, grad, exp_avg,
      exp_avg_sq, step, control);
}

}  // namespace vitrine
