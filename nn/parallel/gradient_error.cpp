// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/gradient_error.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "nn/parallel/state/parameters.h"
#include "runtime/error.h"

namespace vitrine {

double gradient_error(Engine& engine, const HostBatch& batch, const std::string& parameter, float step) {
  const FlatLayout& layout = engine.parameters().layout();
  const auto spec = std::ranges::find(layout.specs(), parameter, &ParamSpec::name);
  if (spec == layout.specs().end())
    throw ConfigError(fmt::format("gradient_error: the model has no parameter {}", parameter));
  const auto first = static_cast<size_t>(layout.offset(static_cast<int>(spec - layout.specs().begin())));
  const std::vector<float> before = engine.parameters().values();
  engine.train_step(batch);
  engine.take_step_results(true);
  const std::vector<float> gradients = engine.parameters().gradients();  // at `before`
  const auto loss_at = [&](size_t element, float value) {
    std::vector<float> moved = before;
    moved[element] = value;
    engine.parameters().set(moved);
    return engine.evaluate(batch).mean_loss();
  };
  double error = 0, largest = 0;
  for (size_t i = first; i < first + static_cast<size_t>(spec->shape.numel()); ++i) {
    const double slope =
        (loss_at(i, before[i] + step) - loss_at(i, before[i] - step)) / (2.0 * static_cast<double>(step));
    error = std::max(error, std::abs(slope - static_cast<double>(gradients[i])));
    largest = std::max(largest, std::abs(slope));
  }
  engine.parameters().set(before);
  return largest > 0 ? error / largest : error;
}

}  // namespace vitrine
