// SPDX-License-Identifier: Apache-2.0
#include "tools/program/learn/experiment.h"

#include <algorithm>

#include <nlohmann/json.hpp>

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
  static const std::vector<Experiment> all = [] {
    // In the order of planted_bugs.json.
    constexpr double (*kMeasurements[])(size_t, bool) = {
        measure_average_of_averages,  measure_micro_batch_means,   measure_divided_twice,    measure_kept_outputs,
        measure_gathered_at_once,     measure_loaded_on_device_0,  measure_same_epoch_seed,  measure_padded_evaluation,
        measure_batch_norm_per_shard, measure_clip_before_unscale, measure_skip_on_one_rank, measure_repeated_dropout,
        measure_l2_under_adam,        measure_missing_event};
    const auto bugs = nlohmann::json::parse(planted_bugs());
    VITRINE_ASSERT(bugs.size() == std::size(kMeasurements), "each bug has a measurement");
    std::vector<Experiment> experiments;
    for (size_t i = 0; i < bugs.size(); ++i) {
      const nlohmann::json& bug = bugs[i];
      experiments.push_back({bug["name"], bug["question"], bug["bug"], bug["measures"], bug["axis"], bug["settings"],
                             bug["harm"], bug["noise"], bug["notice"], bug["link"], kMeasurements[i]});
    }
    return experiments;
  }();
  return all;
}

std::vector<std::string> experiment_names() {
  std::vector<std::string> names;
  for (const Experiment& experiment : experiments()) names.push_back(experiment.name);
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
