// SPDX-License-Identifier: Apache-2.0
// An engine among those of other processes.
#include <algorithm>
#include <functional>
#include <map>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "nn/parallel/engine_state.h"
#include "nn/parallel/plan_fields.h"
#include "nn/parallel/replica.h"
#include "runtime/error.h"

namespace vitrine {

void Engine::State::agree_with_processes() {
  const Scheme& scheme = config.scheme;
  const auto refuse = [](const char* axis, const char* why) {
    return ConfigError(fmt::format("{}: with several processes {}; use EngineConfig::scheme ddp, or one process with all devices", axis, why));
  };
  if (scheme.staging == Staging::device0) throw refuse("staging device0", "no device has the whole batch, each process loads its own part");
  if (scheme.loss_at == LossAt::gathered) throw refuse("loss gathered", "outputs are not gathered on one device");
  if (scheme.reduce == Reduce::gpu0) throw refuse("reduce gpu0", "every replica updates itself");
  const FlatLayout layout(model.net->parameters(), DataParallel::kTail);
  require_agreement(*devices.process_group(), "what they train", plan_fields(model, layout, config, workload));
}

int64_t Engine::State::global_samples(const HostBatch& batch, const std::vector<int64_t>& planned, const char* operation) const {
  const int64_t samples = batch.global_samples > 0 ? batch.global_samples : batch.labels.shape[0];
  if (std::find(planned.begin(), planned.end(), samples) == planned.end()) {
    throw ConfigError(fmt::format("{}: a batch of {} samples was not planned for; name it in the engine's workload", operation, samples));
  }
  return samples;
}

void Engine::State::check_batch(const HostBatch& batch, int64_t samples, int64_t rows, const char* operation) const {
  const Shape& labels = batch.labels.shape;
  if (labels[0] != rows) {
    throw ConfigError(fmt::format("{}: this process's part of a batch of {} has {} samples, but {} came", operation, samples, rows, labels[0]));
  }
  if (labels != model.label_shape(rows)) {
    throw ShapeError(fmt::format("{}: labels have shape {}, but {} of {} samples are needed: {} for each", operation, labels.str(),
                                 model.label_shape(rows).str(), rows, model.targets_per_sample));
  }
  if (batch.images.shape == staged_shape(model, config, rows) && batch.images.dtype == config.image_dtype) return;
  throw ShapeError(fmt::format("{}: inputs have shape {} and dtype {}, expected {} and {}", operation, batch.images.shape.str(),
                               dtype_name(batch.images.dtype), staged_shape(model, config, rows).str(), dtype_name(config.image_dtype)));
}

namespace {

constexpr size_t kDigits = 16;  // of a parameter's hash

/// Which replica holds another parameter than most do; empty when all hold the same.
///   of_processes  the hashes of each process's devices, separated by spaces
///   name          of a device when there is one process
std::string describe_difference(const FlatLayout& parameters, const std::vector<std::string>& of_processes,
                                const std::function<std::string(int)>& name) {
  std::vector<std::pair<std::string, std::string>> replicas;  // name, hashes
  for (size_t p = 0; p < of_processes.size(); ++p) {
    std::istringstream devices(of_processes[p]);
    int d = 0;
    for (std::string hashes; devices >> hashes; ++d) {
      replicas.emplace_back(of_processes.size() > 1 ? fmt::format("rank {}, device {}", p, d) : name(d), hashes);
    }
  }
  for (int i = 0; i < parameters.size(); ++i) {
    std::map<std::string, std::vector<std::string>> holders;
    for (const auto& [who, hashes] : replicas) holders[hashes.substr(static_cast<size_t>(i) * kDigits, kDigits)].push_back(who);
    if (holders.size() == 1) continue;
    // What most devices hold is taken for right; of two that as many hold, what the first one does.
    const auto has_first = [&](const auto& group) { return group.second.front() == replicas.front().first; };
    const auto fewest = std::min_element(holders.begin(), holders.end(), [&](const auto& a, const auto& b) {
      return a.second.size() != b.second.size() ? a.second.size() < b.second.size() : !has_first(a) && has_first(b);
    });
    return fmt::format("the {} of {} is not that of the others", parameters.specs()[static_cast<size_t>(i)].name, fmt::join(fewest->second, " and "));
  }
  return {};
}

}  // namespace

void Engine::verify_replicas() {
  State& s = *state_;
  while (!s.in_flight.empty()) s.finish_oldest();
  std::vector<std::string> of_devices;
  for (int d = 0; d < s.devices.size(); ++d) {
    std::string& hashes = of_devices.emplace_back();
    for (const uint64_t hash : s.parts->parameter_hashes(d)) hashes += fmt::format("{:016x}", hash);
  }
  const std::string mine = fmt::format("{}", fmt::join(of_devices, " "));
  const bool equal_here = std::all_of(of_devices.begin(), of_devices.end(), [&](const std::string& h) { return h == of_devices[0]; });
  const auto name = [&](int device) { return s.devices[device].name(); };
  std::string difference;
  if (s.devices.process_count() == 1) {
    if (!equal_here) difference = describe_difference(layout(), {mine}, name);
  } else {
    ProcessGroup& process_group = *s.devices.process_group();
    // A process whose own devices differ agrees with none.
    if (process_group.all_equal("the replicas' parameters", equal_here ? of_devices[0] : fmt::format("rank {}", s.devices.process()))) return;
    difference = process_group.exchange("the replicas that differ", mine, [&](const std::vector<std::string>& parts) {
      return std::vector<std::string>{describe_difference(layout(), parts, name)};
    });
  }
  if (difference.empty()) return;
  throw CommError(
      fmt::format("the replicas differ after {} steps: {}; parameters that were set on one replica only, a collective that was skipped, or memory "
                  "that fails can be the cause",
                  s.steps, difference));
}

}  // namespace vitrine
