// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/engine_setup.h"

#include <utility>

#include <fmt/format.h>

#include "runtime/error.h"

namespace vitrine {
namespace {

std::vector<ParamSpec> parameters_of(const Model& model) {
  if (model.net == nullptr) throw ConfigError("engine: the model has no network");
  return model.net->parameters();
}

}  // namespace

EngineSetup::EngineSetup(const Model& m, DeviceGroup& d, EngineConfig c, Workload w)
    : model(m),
      devices(d),
      config(std::move(c)),
      workload(std::move(w)),
      layout(parameters_of(m), kTailElements),
      trained(layout.trained()),
      buffer_layout(*m.net),
      update_ranges(make_update_ranges(layout, config.parameter_groups, config.optimizer.weight_decay())) {
  if (!config.exact()) return;
  const int ranks = devices.world_size();
  const bool to_owners = config.shards(Sharding::gradients, ranks);
  for (const int64_t samples : workload.train_batches)
    leaf_plans.emplace(samples, LeafPlan(config.scheme.split, samples, config.accumulate, ranks, to_owners));
}

ImageForm input_form(const Model& model, const DeviceGroup& devices, const EngineConfig& config) {
  if (config.image_dtype != DType::u8 || !model.takes_images()) return {};
  return model.net->input_form(model.input_shape(1), {devices.target().backend, config.precision.compute,
                                                      config.input_packing, devices.options().tf32});
}

void EngineSetup::require_training(const char* operation) const {
  if (!config.forward_only) return;
  throw ConfigError(fmt::format(
      "{}: this engine only evaluates (EngineConfig::forward_only), expected one that trains; construct another",
      operation));
}

}  // namespace vitrine
