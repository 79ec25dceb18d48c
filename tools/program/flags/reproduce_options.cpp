// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <numeric>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "runtime/error.h"
#include "tools/program/flags/options.h"

namespace vitrine::tools {

namespace {

constexpr const char* kSingle = "single";
constexpr int64_t kPublishedClasses = 1000;

/// What --as-published sets.
void set_published_conditions(Options& o) {
  o.classes = kPublishedClasses;
  o.normalize = "none";
  o.shuffle = false;
  o.schedule.metric = "last-batch";
}

template <class Value>
Value sum_of(const std::vector<Value>& values, size_t count) {
  return values.size() == 1 ? values[0] * static_cast<Value>(count)
                            : std::accumulate(values.begin(), values.end(), Value{0});
}

}  // namespace

Options reproduction_defaults() {
  Options o;
  o.model = "alexnet";
  o.epochs = 20;
  o.lr = 1e-4;
  o.schedule.schedule = "plateau";
  o.schedule.patience = 3;
  o.checkpoints.keep_last = 2;
  o.precisions = "fp32,fp16:none,fp16:dynamic";
  return o;
}

void resolve_as_published(const CLI::App& app, Options& o) {
  if (!o.reproduce.as_published) return;
  for (const auto& [option, sets] : {std::pair{"--classes", "--classes 1000"},
                                     {"--normalize", "--normalize none"},
                                     {"--shuffle", "--no-shuffle"},
                                     {"--lr-metric", "--lr-metric last-batch"},
                                     {"--lr-schedule", "--lr-schedule plateau"}}) {
    if (app.get_option(option)->count() == 0) continue;
    throw ConfigError(fmt::format("--as-published sets {}; leave out {}, or leave out --as-published", sets, option));
  }
  set_published_conditions(o);
}

Options published_options(const Options& options) {
  Options o = reproduction_defaults();
  o.command = options.command;
  set_published_conditions(o);
  o.reproduce = options.reproduce;
  o.precisions = options.precisions;
  o.devices = options.devices;
  o.device_memory = options.device_memory;
  o.workspace = options.workspace;
  o.threads_per_device = options.threads_per_device;
  o.cuda_graph = options.cuda_graph;
  return o;
}

std::vector<Configuration> configurations(const Options& o) {
  std::vector<std::string> precisions;
  resolve_compare_precisions(o);  // throws for names that are not precisions
  for (const std::string& name : names_in("--precisions", o.precisions))
    precisions.push_back(name == "fp16" ? "fp16:dynamic" : name);
  std::vector<Configuration> all;
  for (const std::string& mode : names_in("--modes", o.reproduce.modes)) {
    for (const std::string& precision : precisions) all.push_back({mode, precision});
  }
  for (const Configuration& one : all) {
    const auto same = [&](const Configuration& other) { return other.name() == one.name(); };
    if (std::count_if(all.begin(), all.end(), same) > 1) {
      throw ConfigError(fmt::format("--precisions {}: fp16 is fp16:dynamic; name it once", o.precisions));
    }
  }
  return all;
}

Options train_options(const Options& asked, const Configuration& configuration, const std::vector<std::string>& devices,
                      uint64_t seed) {
  Options o = asked;
  o.command = Options::Command::train;
  const bool single = configuration.mode == kSingle;
  o.mode = single ? "ddp" : configuration.mode;
  o.devices = devices.front();
  for (size_t d = 1; d < devices.size() && !single; ++d) o.devices += "," + devices[d];
  if (single && devices.size() > 1) {
    if (!asked.threads_per_device.empty()) o.threads_per_device = {sum_of(asked.threads_per_device, devices.size())};
    if (!asked.device_memory.empty()) {
      const bool gpu = devices.front().starts_with("cuda");
      o.device_memory = {gpu ? asked.device_memory.front() : sum_of(asked.device_memory, devices.size())};
    }
  }
  const size_t colon = std::min(configuration.precision.find(':'), configuration.precision.size());
  o.precision = configuration.precision.substr(0, colon);
  o.loss_scale.reset();
  if (colon < configuration.precision.size()) o.loss_scale = configuration.precision.substr(colon + 1);
  o.precisions.clear();
  if (o.loss_scale != "dynamic") o.loss_scale_growth_interval.reset();
  o.seed = seed;
  const std::string folder = asked.reproduce.out + "/" + folder_name(asked, configuration, seed);
  o.checkpoints.directory = folder + "/checkpoints";
  o.checkpoints.resume = "auto";
  o.tensorboard = folder + "/tensorboard";
  o.log = folder + "/log.jsonl";
  o.report.clear();
  return o;
}

std::string reproduction_figures_path(const Options& options) { return options.reproduce.out + "/runs.json"; }

std::string folder_name(const Options& options, const Configuration& configuration, uint64_t seed) {
  std::string name = configuration.mode + "-" + configuration.precision;
  std::replace(name.begin(), name.end(), ':', '-');
  return seed == options.seed ? name : fmt::format("{}-seed{}", name, seed);
}

}  // namespace vitrine::tools
