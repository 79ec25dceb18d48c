// SPDX-License-Identifier: Apache-2.0
#include "tools/program/choose/choose.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "nn/parallel/plan/recompute_search.h"
#include "nn/parallel/plan/remedies.h"
#include "runtime/error.h"
#include "runtime/units.h"
#include "tools/program/text/tables.h"

namespace vitrine::tools {

namespace {

/// "--batch-size max, --split auto".
std::string asked_for(const Choices& choices) {
  std::string text;
  const auto add = [&](bool asked, const char* name) {
    if (asked) text += fmt::format("{}{}", text.empty() ? "" : ", ", name);
  };
  add(choices.batch_size, "--batch-size max");
  add(choices.split, "--split auto");
  add(choices.accumulate, "--accumulate auto");
  add(choices.recompute_segments, "--recompute-segments auto");
  add(choices.recompute, "--recompute auto");
  return text;
}

/// The options that give what was found.
std::string found(const Options& options, const Choices& choices) {
  std::string text;
  const auto add = [&](bool chosen, const std::string& option) {
    if (chosen) text += fmt::format("{}{}", text.empty() ? "" : " ", option);
  };
  add(choices.batch_size, fmt::format("--batch-size {}", options.batch_size));
  add(choices.split, fmt::format("--split {}", options.split.value_or("equal")));
  add(choices.accumulate, fmt::format("--accumulate {}", options.accumulate));
  add(choices.recompute_segments, fmt::format("--recompute-segments {}", options.recompute_segments));
  return text;
}

/// Why a batch with one more sample does not fit; empty if the batch is the whole training set.
std::string next_batch(const PlanSearch& search, const Fit& fit, bool even_split) {
  EngineConfig config = fit.config;
  ++config.batch_size;
  const Fit more = even_split ? search.even_split(config) : search.plan(config);
  const auto tightest = std::min_element(more.headroom.begin(), more.headroom.end());
  if (*tightest >= 0) return {};
  return fmt::format("  a batch of {} with its full workspace would be {} too much for {}", config.batch_size,
                     format_bytes(-*tightest),
                     search.planned().name(static_cast<int>(tightest - more.headroom.begin())));
}

/// What nothing fits means: the arithmetic of the plan, and what would fit.
[[noreturn]] void throw_nothing_fits(const std::string& asked, const PlanSearch& search,
                                     PlanSearch::SearchSpace space) {
  std::string text = fmt::format("{}: nothing fits.", asked);
  const Fit fit = space.split ? search.even_split(search.config()) : search.plan(search.config());
  for (const std::string& line : search.arithmetic(fit)) text += fmt::format("\n  {}", line);
  throw OutOfMemory(text + "\n" + describe_remedies(search, space));
}

/// --recompute auto.
void choose_recomputed_parts(const Job& job, DeviceGroup& devices, const EngineConfig& config, const Workload& workload,
                             Chosen& chosen) {
  const PlanSearch search(job.model, devices, config, workload);
  plan_or_explain(job.model, devices, config, workload);
  const std::optional<RecomputePoint> cheapest = RecomputeSearch(search).cheapest_that_fits();
  if (!cheapest) throw_nothing_fits("--recompute auto", search, {});
  chosen.options.recompute = fmt::format("{}", fmt::join(cheapest->recompute, ","));
  chosen.options.choices = {};
  chosen.notes.push_back(
      cheapest->recompute.empty()
          ? std::string("--recompute auto: nothing is recomputed, because it fits without, by the plan:")
          : fmt::format("--recompute auto: --recompute {}, about {:.1f} % more time in forward and backward, found "
                        "with the plan:",
                        chosen.options.recompute, 100.0 * cheapest->added_time));
  for (const std::string& line : search.arithmetic(cheapest->fit)) chosen.notes.push_back("  " + line);
}

}  // namespace

void require_capacities(const std::string& asked, DeviceGroup& devices) {
  for (int d = 0; d < devices.size(); ++d) {
    if (devices[d].pool().capacity_bytes() != DeviceGroup::kUnlimitedBytes) continue;
    throw ConfigError(fmt::format("{}: the capacity of {} is not known here; give it, as --device-memory 8GiB", asked,
                                  devices[d].name()));
  }
}

Chosen choose_by_plan(const Options& options, const Job& job, DeviceGroup& devices) {
  Chosen chosen{options, {}};
  Choices choices = options.choices;
  if (options.balance == "time") choices.split = false;  // measured afterwards
  if (!choices.any()) return chosen;
  const std::string asked = asked_for(choices);
  // A plan knows the devices of all processes; a run would not know whether the others have room.
  if (devices.process_group() != nullptr || (devices.process_count() > 1 && choices.split)) {
    throw ConfigError(fmt::format(
        "{}: a process knows the memory of its own devices only; {}", asked,
        choices.split
            ? "give --split weights for the devices of all processes"
            : fmt::format("find the number with vitrine plan --processes {}, and give it", devices.process_count())));
  }
  require_capacities(asked, devices);
  Options& o = chosen.options;
  const int64_t most = job.data.train.size();
  // The search begins from a batch that every plan can be made for.
  if (choices.batch_size) o.batch_size = std::clamp<int64_t>(o.accumulate, 1, most);
  const Scheme scheme = resolve_scheme(options, resolve_devices(options, cuda_device_count()), devices.world_size());
  EngineConfig config = engine_config(o, job, scheme, resolve_precision(o));
  const Workload workload = train_workload(o, job, o.steps, o.evaluate);
  if (choices.recompute) {
    choose_recomputed_parts(job, devices, config, workload, chosen);
    return chosen;
  }
  const PlanSearch search(job.model, devices, config, workload);
  const PlanSearch::SearchSpace space{choices.split, choices.recompute_segments};
  std::optional<Fit> fit;
  if (choices.batch_size) {
    fit = search.largest_batch(most, space);
  } else if (choices.accumulate) {
    fit = search.fewest_micro_batches(space);
  } else {
    fit = search.as_it_is(space);
  }
  if (!fit) throw_nothing_fits(asked, search, space);
  o.batch_size = fit->config.batch_size;
  o.accumulate = fit->config.accumulate;
  o.recompute_segments = std::to_string(fit->config.recompute_segments);
  if (choices.split) o.split = fit->config.scheme.split.str();
  if (!choices.split && fit->config.scheme.split.kind == Split::Kind::gpu0) o.split = fit->config.scheme.split.str();
  o.choices = Choices{.split = options.choices.split && !choices.split};
  chosen.notes.push_back(fmt::format("{}: {}, found with the plan:", asked, found(o, choices)));
  for (const std::string& line : search.arithmetic(*fit)) chosen.notes.push_back("  " + line);
  if (choices.batch_size) {
    const std::string reason = fit->config.batch_size == most
                                   ? fmt::format("  it is the whole training set of {}", format_count(most))
                                   : next_batch(search, *fit, choices.split);
    if (!reason.empty()) chosen.notes.push_back(reason);
  }
  return chosen;
}

}  // namespace vitrine::tools
