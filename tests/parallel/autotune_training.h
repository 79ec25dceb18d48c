// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/conv2d.h"
#include "tests/parallel/random_model.h"

/// Training on GPUs with a timed choice among the plans of convolutions and products.
namespace vitrine::test {

struct Outcome {
  TunedPlans plans;
  AutotuneReport report;
  std::vector<float> parameters;
  std::vector<std::string> untuned;
  std::vector<Conv2dChoice> convolutions;  // of the first device
  int64_t graph_launches = 0;
  bool peaks_as_planned = true, replicas_equal = true;
};

inline DeviceGroupOptions group_of(const std::vector<int>& gpus) {
  DeviceGroupOptions options;
  for (const int gpu : gpus) options.devices.push_back({Backend::cuda, gpu});
  options.memory_bytes = {int64_t{256} << 20};
  options.trace = TraceLevel::off;  // how many events spans share depends on when the host reads them
  return options;
}

inline EngineConfig tuned_config(const Model& model, const TunedPlans* known = nullptr, int64_t batch = 6) {
  EngineConfig config = small_config(model, batch);
  config.autotune.enabled = true;
  if (known != nullptr) config.autotune.known = std::make_shared<TunedPlans>(*known);
  return config;
}

inline EngineConfig untuned_config(const Model& model) {
  EngineConfig config = tuned_config(model);
  config.autotune.enabled = false;
  return config;
}

inline Workload tuned_workload(const EngineConfig& config) { return {{config.batch_size, config.batch_size - 1}, {2}}; }

/// Trains with the batch size, one sample less in one step, and evaluates in between.
inline Outcome train_on(DeviceGroup& group, const Model& model, const EngineConfig& config) {
  Outcome run;
  Engine engine(model, group, config, tuned_workload(config));
  const OwnedBatch held_out = random_batch(model, 2, 77, 0.0, config.image_dtype);
  for (int step = 0; step < 7; ++step) {
    const int64_t samples = step == 1 ? config.batch_size - 1 : config.batch_size;
    engine.train_step(random_batch(model, samples, static_cast<uint32_t>(step), 0.1, config.image_dtype).view());
    if (step == 2) engine.evaluate(held_out.view());
  }
  engine.finish();
  for (int d = 0; d < group.size(); ++d) {
    run.peaks_as_planned = run.peaks_as_planned && group[d].pool().statistics().peak_bytes ==
                                                       engine.facts().plans[static_cast<size_t>(d)].peak_bytes;
    run.replicas_equal = run.replicas_equal && engine.parameters().values(d) == engine.parameters().values(0);
    for (std::string& operation : untuned_operations(group[d].compute())) run.untuned.push_back(std::move(operation));
  }
  run.convolutions = conv2d_choices(group[0].compute());
  run.parameters = engine.parameters().values();
  run.graph_launches = engine.graph_counts().launched;
  if (engine.facts().tuned_plans) run.plans = *engine.facts().tuned_plans;
  run.report = engine.facts().autotune;
  return run;
}

inline Outcome train_tuned(const Model& model, const EngineConfig& config, const std::vector<int>& gpus = {0}) {
  DeviceGroup group(group_of(gpus));
  return train_on(group, model, config);
}

}  // namespace vitrine::test
