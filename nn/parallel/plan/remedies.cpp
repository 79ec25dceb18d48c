// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/plan/remedies.h"

#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "nn/parallel/plan/plan.h"
#include "nn/parallel/plan/recompute_search.h"
#include "nn/parallel/settings.h"
#include "nn/settings.h"
#include "runtime/error.h"
#include "runtime/memory/available.h"
#include "runtime/settings.h"
#include "runtime/units.h"

namespace vitrine {

namespace {

/// The same run under each preset scheme that differs in more than its split, with several processes those without a
/// central device; none for one device, for evaluation, or with EngineConfig::reducer, which replaces their reductions.
std::vector<PlanSearch> under_other_schemes(const PlanSearch& search) {
  std::vector<PlanSearch> others;
  const EngineConfig& given = search.config();
  const DeviceGroup& devices = search.devices();
  if (!search.trains() || given.reducer || devices.world_size() == 1) return others;
  for (const std::string& name : scheme_names()) {
    EngineConfig config = given;
    config.scheme = scheme_preset(name);
    if (devices.process_count() > 1 && config.scheme.reduce == ReducerKind::gpu0) continue;
    // balanced differs from dp only in its split.
    if (config.scheme.split.kind == Split::Kind::gpu0 || same_axes(config.scheme, given.scheme)) continue;
    if (config.scheme.shard != Sharding::none && sharding_obstacle(config) != nullptr) continue;
    if (config.update_in_backward && update_in_backward_obstacle(config, devices.world_size()) != nullptr) continue;
    if (given.scheme.split.kind != Split::Kind::gpu0) config.scheme.split = given.scheme.split;
    others.push_back(search.with(std::move(config)));
  }
  return others;
}

std::optional<Fit> with_images_on_host(const PlanSearch& search, PlanSearch::SearchSpace space) {
  EngineConfig config = search.config();
  config.resident_images = {};
  return search.with(std::move(config)).as_it_is(space);
}

/// The parts that are recomputed with the least time, or with several segments given, more of them.
std::optional<Fit> with_recomputation(const PlanSearch& search) {
  if (search.config().recompute_segments > 1) return search.as_it_is({.recompute = true});
  if (!search.config().recompute.empty()) return std::nullopt;
  try {
    if (std::optional<RecomputePoint> cheapest = RecomputeSearch(search).cheapest_that_fits()) return cheapest->fit;
  } catch (const OutOfMemory&) {  // more than a plan can represent
  }
  return std::nullopt;
}

void add_scheme(Remedy& remedy, const Scheme& from, const Scheme& to) {
  std::string mode;
  bool from_is_preset = false;
  for (const std::string& name : scheme_names()) {
    const Scheme preset = scheme_preset(name);
    from_is_preset = from_is_preset || same_axes(preset, from);
    if (mode.empty() && same_axes(preset, to) && preset.split.kind != Split::Kind::gpu0) mode = name;
  }
  if (from_is_preset) {
    remedy.push_back(propose(settings::kScheme, mode));
    return;
  }
  remedy.push_back(propose(settings::kStaging, to.staging == Staging::host ? "host" : "device0"));
  remedy.push_back(propose(settings::kLossAt, to.loss_at == LossAt::gathered ? "gathered" : "parallel"));
  remedy.push_back(propose(settings::kReduce, to.reduce == ReducerKind::gpu0 ? "device0" : "allreduce"));
  remedy.push_back(propose(settings::kShard, sharding_name(to.shard)));
}

/// The settings of a fit that differ from those of `config`.
Remedy changed_settings(const EngineConfig& config, const EngineConfig& fit) {
  Remedy remedy;
  if (!same_axes(config.scheme, fit.scheme)) add_scheme(remedy, config.scheme, fit.scheme);
  if (fit.batch_size != config.batch_size) remedy.push_back(propose(settings::kBatchSize, fit.batch_size));
  if (fit.accumulate != config.accumulate) remedy.push_back(propose(settings::kAccumulate, fit.accumulate));
  if (fit.resident_images.count != config.resident_images.count)
    remedy.push_back(propose(settings::kResidentImages, "off"));
  if (fit.recompute_segments != config.recompute_segments)
    remedy.push_back(propose(settings::kRecomputeSegments, fit.recompute_segments));
  if (fit.recompute != config.recompute)
    remedy.push_back(propose(settings::kRecompute, fmt::format("{}", fmt::join(fit.recompute, ","))));
  if (fit.scheme.split.str() != config.scheme.split.str())
    remedy.push_back(propose(settings::kSplit, fit.scheme.split.str()));
  if (fit.workspace_bytes != config.workspace_bytes)
    remedy.push_back(propose(settings::kWorkspaceBytes, fit.workspace_bytes.value()));
  return remedy;
}

/// Exact mode: the workspace that an ordinary plan would shrink to.
std::optional<Fit> with_smaller_workspace(const PlanSearch& search, PlanSearch::SearchSpace space) {
  EngineConfig config = search.config();
  if (!config.exact() || config.workspace_bytes) return std::nullopt;
  std::optional<int64_t> least;
  for (const DeviceGroup* const group : search.planned().groups()) {
    const std::optional<int64_t> fitting = fitting_workspace(search.model(), *group, config, search.workload());
    if (!fitting) return std::nullopt;
    least = std::min(least.value_or(*fitting), *fitting);
  }
  config.workspace_bytes = least;
  return search.with(std::move(config)).as_it_is(space);
}

}  // namespace

std::vector<Remedy> find_remedies(const PlanSearch& search, PlanSearch::SearchSpace space) {
  const EngineConfig& config = search.config();
  std::vector<Remedy> remedies;
  const auto add = [&](const std::optional<Fit>& fit) {
    if (!fit) return;
    Remedy remedy = changed_settings(config, fit->config);
    std::erase_if(remedy, [&](const Reason::Part& part) {
      return (space.split && part.setting == settings::kSplit) ||
             (space.recompute && part.setting == settings::kRecomputeSegments);
    });
    if (!remedy.empty()) remedies.push_back(std::move(remedy));
  };
  if (!search.trains()) {
    add(search.largest_batch(config.batch_size - 1, {}));
    return remedies;
  }
  const std::vector<PlanSearch> others = under_other_schemes(search);
  for (const PlanSearch& other : others) add(other.as_it_is(space));
  if (config.resident_images.count > 0) add(with_images_on_host(search, space));
  add(with_smaller_workspace(search, space));
  add(search.fewest_micro_batches(space));
  if (!space.split) add(search.as_it_is({.split = true}));
  if (!space.recompute) add(with_recomputation(search));
  add(search.largest_batch(config.batch_size - 1, space));
  if (!remedies.empty()) return remedies;
  // With equal shares: where they fit, a searched split fits too.
  for (const PlanSearch& other : others) add(other.fewest_micro_batches({.recompute = true}));
  add(search.fewest_micro_batches({.recompute = true}));
  add(search.largest_batch(config.batch_size - 1, {.recompute = true}));
  if (!remedies.empty() || !config.update_in_backward) return remedies;  // which takes no micro-batches
  for (const PlanSearch& other : others) add(other.largest_batch(config.batch_size - 1, {.recompute = true}));
  return remedies;
}

namespace {

/// When no search finds a fit: the remaining changes.
Reason last_resorts(const PlanSearch& search) {
  Reason text("No batch size makes it fit. ");
  if (search.trains())
    text = Reason("No batch size, split, number of micro-batches, recomputation or scheme makes it fit. ");
  const std::string limit = available_memory().source;
  text += search.capacity_is_given() ? Reason({"Raise ", settings::kMemoryBytes}) : "Use a machine with more memory";
  if (!search.capacity_is_given() && !limit.starts_with("/proc")) text += ", raise " + limit;
  text += ", or choose a smaller ";
  // In exact mode the workspace is not shrunk: that would change bits.
  if (search.config().workspace_bytes || search.config().exact())
    text += Reason(
        {settings::kWorkspaceBytes, search.config().exact() ? " (with other bits), a smaller " : ", a smaller "});
  text += Reason({"model or a smaller ", settings::kImageSize});
  if (search.trains() && search.config().optimizer.kind != OptimizerConfig::Kind::sgd) {
    text += Reason({", or an optimizer with less state (", propose(settings::kOptimizer, "sgd"), ")"});
  }
  return text;
}

}  // namespace

Reason describe_remedies(const PlanSearch& search, PlanSearch::SearchSpace space) {
  const std::vector<Remedy> remedies = find_remedies(search, space);
  if (remedies.empty()) return last_resorts(search);
  const bool had_share = search.config().scheme.split.kind == Split::Kind::gpu0;
  Reason text = kFirstRemedy;
  const char* separator = "";
  for (const Remedy& remedy : remedies) {
    text += separator;
    separator = kNextRemedy;
    for (size_t i = 0; i < remedy.size(); ++i) {
      text += Reason({i == 0 ? "" : " ", remedy[i]});
      if (had_share && remedy[i].setting == settings::kSplit) text += " (instead of the given share of device 0)";
      if (remedy[i].setting == settings::kWorkspaceBytes)
        text += " (other bits: exact mode does not shrink the workspace by itself)";
    }
  }
  return text;
}

std::vector<DevicePlan> plan_or_explain(const Model& model, DeviceGroup& devices, const EngineConfig& config,
                                        const Workload& workload, PlanDetail detail) {
  try {
    return plan_memory(model, devices, config, workload, detail);
  } catch (const OutOfMemory& error) {
    const MemoryShortage& s = error.shortage();
    if (s.memory == MemoryShortage::Memory::workspace) throw;
    throw OutOfMemory(Reason(fmt::format("A device would need more than {}, the most that a plan can represent: {} "
                                         "cannot allocate {} for {}{}{} in phase "
                                         "{}.\n",
                                         format_bytes(DeviceGroup::kUnlimitedBytes), s.device,
                                         format_bytes(s.needed_bytes), s.user.empty() ? "a tensor" : s.user,
                                         s.layer.empty() ? "" : " of layer ", s.layer, s.phase)) +
                          describe_remedies({model, devices, config, workload}),
                      s);
  }
}

}  // namespace vitrine
