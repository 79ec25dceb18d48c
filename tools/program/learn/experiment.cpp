// SPDX-License-Identifier: Apache-2.0
#include "tools/program/learn/experiment.h"

#include <algorithm>

#include "runtime/error.h"

namespace vitrine::tools::lab {

double Result::most_planted() const { return planted.back(); }

double Result::most_without() const { return *std::ranges::max_element(without); }

bool Result::as_stated() const {
  // A NaN is neither.
  const bool right = std::ranges::all_of(without, [this](double value) { return value <= experiment->noise; });
  return right && most_planted() > experiment->harm;
}

const std::vector<Experiment>& experiments() {
  static const std::vector<Experiment> all = {
      average_of_averages(), micro_batch_means(), divided_twice(),     kept_outputs(),         gathered_at_once(),
      loaded_on_device_0(),  same_epoch_seed(),   padded_evaluation(), batch_norm_per_shard(), clip_before_unscale(),
      skip_on_one_rank(),    repeated_dropout(),  l2_under_adam(),     missing_event()};
  return all;
}

std::vector<std::string> experiment_names() {
  std::vector<std::string> names;
  for (const Experiment& experiment : experiments()) names.emplace_back(experiment.name);
  return names;
}

const Experiment& experiment(const std::string& name) {
  const std::vector<Experiment>& all = experiments();
  const auto found = std::ranges::find_if(all, [&](const Experiment& e) { return name == e.name; });
  VITRINE_ASSERT(found != all.end(), "the name of an experiment was checked before");
  return *found;
}

Result run(const Experiment& experiment) {
  Result result{&experiment, {}, {}};
  for (size_t setting = 0; setting < experiment.settings.size(); ++setting) {
    result.planted.push_back(experiment.wrongness(setting, true));
    result.without.push_back(experiment.wrongness(setting, false));
  }
  return result;
}

}  // namespace vitrine::tools::lab
