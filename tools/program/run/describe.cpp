// SPDX-License-Identifier: Apache-2.0
#include "tools/program/run/describe.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "tools/program/record/device_sets.h"
#include "tools/program/run/measure.h"
#include "tools/program/text/tables.h"

namespace vitrine::tools {
namespace {

// If there are more micro-batches, only the first ones are described.
constexpr size_t kMicroBatchesShown = 4;
// Slices of more devices than this are described as runs of equal ones.
constexpr size_t kSlicesShown = 8;

}  // namespace

std::string describe_job(const Job& job, const FlatLayout& layout) {
  const Dataset& train = job.data.train;
  if (train.sequence_length > 0) {
    return fmt::format("{}, {} parameters, sequences of {} tokens; {}: {} sequences, vocabulary {}, test set: {}",
                       job.model.name, format_count(layout.parameter_count()), train.sequence_length, train.name,
                       format_count(train.size()), format_count(train.classes), format_count(job.data.test.size()));
  }
  if (job.model.targets_per_sample > 1) {
    return fmt::format("{}, {} parameters, sequences of {} positions with {} features, {} classes at each",
                       job.model.name, format_count(layout.parameter_count()), job.model.height, job.model.channels,
                       format_count(job.model.classes));
  }
  const int64_t all = layout.parameter_count(), trained = layout.trained().parameter_count();
  const std::string frozen = trained < all ? fmt::format(" ({} trained)", format_count(trained)) : "";
  return fmt::format("{}, {} parameters{}, images {}x{}x{}; {}: {} image{} {}x{}x{}, test set: {}", job.model.name,
                     format_count(all), frozen, job.model.height, job.model.width, job.model.channels, train.name,
                     format_count(train.size()), train.size() == 1 ? "" : "s", train.height, train.width,
                     train.channels, format_count(job.data.test.size()));
}

std::string describe_training(const Options& options) {
  const OptimizerConfig optimizer = resolve_optimizer(options);
  return fmt::format("{}, lr {}{}{}, seed {}{}", optimizer.name(), optimizer.learning_rate(),
                     describe_schedule(options.schedule), describe_recipe(options.recipe), options.seed,
                     options.val_split ? fmt::format(", {} of the images held out", *options.val_split) : "");
}

std::string describe_memory(const EngineConfig& config) {
  std::string text;
  if (config.recompute_segments > 1) text += fmt::format(", {} recompute segments", config.recompute_segments);
  if (!config.recompute.empty()) text += fmt::format(", recomputed {}", fmt::join(config.recompute, ","));
  if (!config.loss_gradient_in_place) text += ", gradient of outputs apart";
  if (config.update_in_backward) text += ", update in backward";
  if (config.resident_images.count > 0) text += ", training images on the devices";
  if (config.batch_statistics == BatchStatistics::local) text += ", batch norm local";
  return text;
}

std::string describe_precision(const EngineConfig& config) {
  const Precision& p = config.precision;
  std::string text;
  if (p.mixed()) text += fmt::format(", {}", precision_name(p.compute));
  if (p.mixed() || p.loss_scaling.active()) text += fmt::format(", loss scale {}", loss_scale_name(p.loss_scaling));
  if (p.clip_norm > 0.0) text += fmt::format(", clipped at norm {}", p.clip_norm);
  if (p.reduce_dtype != DType::f32) text += fmt::format(", gradients reduced in {}", dtype_name(p.reduce_dtype));
  return text;
}

namespace {

/// "cpu:0, cpu:1 (2 threads), cpu:2 to cpu:15 (1 thread)".
std::string describe_devices(DeviceGroup& devices) {
  std::vector<std::string> names;
  for (int d = 0; d < devices.size(); ++d) names.push_back(devices[d].name());
  const auto threads = [&](size_t d) {
    Device& device = devices[static_cast<int>(d)];
    return device.id().backend == Backend::cpu ? device.thread_count() : 0;
  };
  std::string text;
  for (const DeviceSet& set :
       group_devices(names.size(), [&](size_t a, size_t b) { return threads(a) == threads(b); })) {
    const int count = threads(set.first());
    text += fmt::format("{}{}", text.empty() ? "" : ", ", set.name(names));
    if (count > 0)
      text += fmt::format(" ({} {}{})", count, count == 1 ? "thread" : "threads", set.single() ? "" : " each");
  }
  return text;
}

/// "33+32+32", and of many devices "33 + 15 x 32".
std::string describe_slices(const std::vector<int64_t>& slices) {
  if (slices.size() <= kSlicesShown) return fmt::format("{}", fmt::join(slices, "+"));
  std::vector<std::string> runs;
  for (size_t begin = 0; begin < slices.size();) {
    size_t end = begin;
    while (end < slices.size() && slices[end] == slices[begin]) ++end;
    runs.push_back(end - begin == 1 ? std::to_string(slices[begin])
                                    : fmt::format("{} x {}", end - begin, slices[begin]));
    begin = end;
  }
  if (runs.size() > kSlicesShown) {
    const auto [least, most] = std::minmax_element(slices.begin(), slices.end());
    return fmt::format("{} to {} on {} devices", *least, *most, slices.size());
  }
  return fmt::format("{}", fmt::join(runs, " + "));
}

}  // namespace

std::string describe_run(const Options& options, const Job& job, Run& run) {
  std::string devices = describe_devices(*run.devices);
  if (run.devices->process_count() > 1) {
    devices += fmt::format(" and the devices of {} other {} ({} in all)", run.devices->process_count() - 1,
                           run.devices->process_count() == 2 ? "process" : "processes", run.devices->world_size());
  }
  if (run.devices->options().tf32) devices += ", TF32 allowed";
  if (run.devices->options().winograd) devices += ", Winograd allowed";
  const Scheme& scheme = run.engine->config().scheme;
  std::string communicator = run.engine->facts().communicator;
  if (communicator.starts_with("NCCL") && !options.nccl_defaults)
    communicator += ", which repeat the bits of sums; --nccl-defaults lets NCCL choose what is faster";
  const std::string graphs = describe_graphs(options, run);
  return fmt::format("{}\n{} on {}: {} per step as {} (split {}, {}{}{})\n{}{}{}\n{}",
                     describe_job(job, run.engine->parameters().layout()), options.mode_name(), devices,
                     counted(options.batch_size, "sample"), describe_batch(run.engine->facts().batch),
                     scheme.split.str(), describe_axes(scheme), communicator.empty() ? "" : " by ", communicator,
                     describe_training(options), describe_precision(run.engine->config()),
                     describe_memory(run.engine->config()),
                     graphs.empty() ? "" : fmt::format("CUDA graphs: {}\n", graphs));
}

std::string describe_graphs(const Options& options, const Run& run) {
  std::string text = run.engine->facts().cuda_graphs;
  if (text.empty() || text.starts_with("off")) return text;
  if (RecordedSteps::all(options)) return "off: the memory of every step is recorded (--record-steps limits it)";
  if (options.records()) text += ", but steps whose memory is recorded are issued";
  const std::string counts = run.engine->graph_counts().str();
  return counts.empty() ? text : fmt::format("{}; {}", text, counts);
}

std::string describe_batch(const BatchPlan& plan) {
  std::string text;
  for (size_t k = 0; k < plan.sizes.size() && k < kMicroBatchesShown; ++k) {
    text += fmt::format("{}{}", k == 0 ? "" : " | ", describe_slices(plan.sizes[k]));
  }
  if (plan.sizes.size() > kMicroBatchesShown) text += fmt::format(" | ... ({} micro-batches)", plan.sizes.size());
  return text;
}

std::string describe_autotune(const Engine& engine) {
  const std::shared_ptr<const TunedPlans>& plans = engine.facts().tuned_plans;
  if (!plans) return {};
  const AutotuneReport& report = engine.facts().autotune;
  const auto faster = std::count_if(plans->plans.begin(), plans->plans.end(),
                                    [](const TunedPlan& plan) { return plan.microseconds < plan.first_microseconds; });
  std::string text = fmt::format("{} kinds of operations timed in {:.2f} s", report.timed, report.seconds);
  if (report.reused > 0) text += fmt::format(", {} with stored plans", report.reused);
  return text + fmt::format("; {} of {} run by a faster plan than the library's choice", faster, plans->plans.size());
}

int64_t dataset_bytes(const DatasetPair& data) { return data.train.held_bytes() + data.test.held_bytes(); }

}  // namespace vitrine::tools
