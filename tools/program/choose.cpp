// SPDX-License-Identifier: Apache-2.0
#include "tools/program/choose.h"

#include <algorithm>

#include <fmt/format.h>

#include "nn/parallel/plan_search.h"
#include "runtime/error.h"
#include "runtime/units.h"
#include "tools/program/tables.h"

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
  return text;
}

/// The options that stand for what was found.
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

/// What keeps a batch of one sample more from fitting; empty where the batch is the whole training set.
std::string next_batch(const PlanSearch& search, const Fit& fit, DeviceGroup& devices, bool even_split) {
  EngineConfig config = fit.config;
  ++config.batch_size;
  const Fit more = even_split ? search.even_split(config) : search.plan(config);
  const auto tightest = std::min_element(more.headroom.begin(), more.headroom.end());
  if (*tightest >= 0) return {};
  Device& device = devices[static_cast<int>(tightest - more.headroom.begin())];
  return fmt::format("  a batch of {} would be {} too much for {}", config.batch_size, format_bytes(-*tightest), device.name());
}

}  // namespace

Chosen choose_by_plan(const Options& options, const Job& job, DeviceGroup& devices) {
  Chosen chosen{options, {}};
  Choices choices = options.choices;
  if (options.balance == "time") choices.split = false;  // it is measured afterwards
  if (!choices.any()) return chosen;
  const std::string asked = asked_for(choices);
  // A plan for the first of several processes may look at that one; a run of several would not know whether the others have room.
  if (devices.process_group() != nullptr || (devices.process_count() > 1 && choices.split)) {
    throw ConfigError(fmt::format("{}: a process knows the memory of its own devices only; {}", asked,
                                  choices.split
                                      ? "give --split weights for the devices of all processes"
                                      : fmt::format("find the number with vitrine plan --processes {}, and give it", devices.process_count())));
  }
  Options& o = chosen.options;
  const int64_t most = job.data.train.size();
  // The search begins from a batch that every plan can be made for.
  if (choices.batch_size) o.batch_size = std::clamp<int64_t>(o.accumulate, 1, most);
  const Scheme scheme = resolve_scheme(options, resolve_devices(options, cuda_device_count()), devices.world_size());
  EngineConfig config = engine_config(o, job, scheme, resolve_precision(o));
  const PlanSearch search(job.model, devices, config, train_workload(o, job, o.steps, o.evaluate));
  const PlanSearch::SearchSpace space{choices.split, choices.recompute_segments};
  std::optional<Fit> fit;
  if (choices.batch_size) {
    fit = search.largest_batch(most, space);
  } else if (choices.accumulate) {
    fit = search.fewest_micro_batches(space);
  } else {
    fit = search.as_it_is(space);
  }
  if (!fit) {
    std::string text = fmt::format("{}: nothing fits.", asked);
    for (const std::string& line : search.arithmetic(search.plan(config))) text += fmt::format("\n  {}", line);
    throw OutOfMemory(text + "\n" + describe_remedies(search));
  }
  o.batch_size = fit->config.batch_size;
  o.accumulate = fit->config.accumulate;
  o.recompute_segments = std::to_string(fit->config.recompute_segments);
  if (choices.split) o.split = fit->config.scheme.split.str();
  if (!choices.split && fit->config.scheme.split.kind == Split::Kind::gpu0) o.split = fit->config.scheme.split.str();
  o.choices = Choices{.split = options.choices.split && !choices.split};
  chosen.notes.push_back(fmt::format("{}: {}, found with the plan:", asked, found(o, choices)));
  for (const std::string& line : search.arithmetic(*fit)) chosen.notes.push_back("  " + line);
  if (choices.batch_size) {
    const std::string reason = fit->config.batch_size == most ? fmt::format("  it is the whole training set of {}", format_count(most))
                                                              : next_batch(search, *fit, devices, choices.split);
    if (!reason.empty()) chosen.notes.push_back(reason);
  }
  return chosen;
}

}  // namespace vitrine::tools
