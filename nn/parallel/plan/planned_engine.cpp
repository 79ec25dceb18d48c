// SPDX-License-Identifier: Apache-2.0
// Construction of an engine: its plan takes its memory from the devices, or explains why it does not fit.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "nn/parallel/engine_state.h"
#include "nn/parallel/plan/plan.h"
#include "nn/parallel/plan/remedies.h"
#include "nn/parallel/settings.h"
#include "runtime/host_buffer.h"
#include "runtime/memory/available.h"
#include "runtime/memory/pool_placement.h"
#include "runtime/units.h"

namespace vitrine {

int64_t missing_bytes(const DevicePlan& plan, const Device& device) {
  return plan.peak_bytes - device.pool().capacity_bytes();
}

namespace {

constexpr const char* kCopies = "copies in host memory (weights, gradients, checkpoints)";

/// Runs the plan again within the capacity of the device that lacks most: the error of the first tensor that fits
/// nowhere explains the rest.
[[noreturn]] void throw_out_of_memory(const EngineSetup& setup, const std::vector<DevicePlan>& plans,
                                      const std::vector<int>& lacking, bool workspace_planned) {
  DeviceGroup& devices = setup.devices;
  const auto missing = [&](int d) { return missing_bytes(plans[static_cast<size_t>(d)], devices[d]); };
  const int device = *std::ranges::max_element(lacking, [&](int a, int b) { return missing(a) < missing(b); });
  Reason story;
  MemoryShortage shortage;
  const DevicePlan& plan = plans[static_cast<size_t>(device)];
  const std::unique_ptr<DeviceGroup> twin = devices.meta_twin(device);
  (*twin)[device].pool().limit_sum();
  try {
    run_on_meta(setup.model, *twin, setup.config, setup.workload, {});
  } catch (const OutOfMemory& error) {
    story = error.reason();
    shortage = error.shortage();
  }
  if (story.empty()) {
    // The blocks would fit, but the gaps that the placement leaves between them do not.
    const int64_t capacity = devices[device].pool().capacity_bytes();
    story = fmt::format(
        "{}: out of memory. The plan needs {} ({} bytes), {} of them in gaps between blocks, and the capacity is {} "
        "({} bytes). It holds {}.",
        devices[device].name(), format_bytes(plan.peak_bytes), plan.peak_bytes,
        format_bytes(plan.peak_by_category[static_cast<size_t>(Category::fragmentation)]), format_bytes(capacity),
        capacity, describe_by_size(plan.peak_by_category));
    shortage = {.device = devices[device].name(),
                .user = "the plan",
                .needed_bytes = plan.peak_bytes,
                .capacity_bytes = capacity};
  }
  story += fmt::format("\nFound before the first step: {} needs {} ({} bytes) at its peak in {}, {} more than it has",
                       devices[device].name(), format_bytes(plan.peak_bytes), plan.peak_bytes, describe_peak(plan),
                       format_bytes(missing(device)));
  for (const int other : lacking) {
    if (other != device) story += fmt::format("; {} lacks {}", devices[other].name(), format_bytes(missing(other)));
  }
  if (setup.config.exact() && workspace_planned)
    story += fmt::format("; its workspace of {} does not shrink in exact mode, because it decides algorithms",
                         format_bytes(plan.workspace.bytes));
  if (const DeviceGroupOptions& options = devices.options(); options.memory_bytes.empty() && options.host_bytes > 0) {
    story += fmt::format(". {} of the available memory are kept free for {}; a run without these copies may use it",
                         format_bytes(options.host_bytes), kCopies);
  }
  const std::vector<OutsideBytes> outside = devices[device].outside_bytes();
  if (!outside.empty() && outside.front().bytes > kGpuReserve && devices.options().memory_bytes.empty()) {
    story += fmt::format(". {} of the GPU were in use before, by other processes or devices: nvidia-smi lists them",
                         format_bytes(outside.front().bytes));
  }
  EngineConfig searched = setup.config;
  if (workspace_planned) searched.workspace_bytes = std::nullopt;
  throw OutOfMemory(story + "\n" + describe_remedies(PlanSearch(setup.model, devices, searched, setup.workload)),
                    shortage);
}

/// The pools are taken. Linux would kill a process that takes more than is left, when it saves what it has trained.
void check_host_copies(const DeviceGroup& devices) {
  const int64_t copies = devices.options().host_bytes;
  if (copies == 0) return;
  const AvailableMemory left = available_memory();
  if (copies <= left.bytes) return;
  throw OutOfMemory(
      fmt::format("{} are needed for {}, but {} are available beside the pools ({}); use a smaller model, a smaller "
                  "batch or a machine with more memory",
                  format_bytes(copies), kCopies, format_bytes(left.bytes), left.source),
      {.memory = MemoryShortage::Memory::host, .needed_bytes = copies, .free_bytes = left.bytes});
}

/// Takes each device's slab, in which its pool follows the plan's placement. throws OutOfMemory before any device has
/// given memory.
///   workspace_planned  the plan has chosen EngineConfig::workspace_bytes
void reserve(const EngineSetup& setup, const std::vector<DevicePlan>& plans, bool workspace_planned) {
  DeviceGroup& devices = setup.devices;
  std::vector<int> lacking;
  for (int i = 0; i < devices.size(); ++i) {
    if (missing_bytes(plans[static_cast<size_t>(i)], devices[i]) > 0) lacking.push_back(i);
  }
  if (!lacking.empty()) throw_out_of_memory(setup, plans, lacking, workspace_planned);
  for (int i = 0; i < devices.size(); ++i) {
    const DevicePlan& plan = plans[static_cast<size_t>(i)];
    devices[i].pool().reserve(plan.peak_bytes);
    devices[i].pool().follow(plan.placement);
  }
  check_host_copies(devices);
}

}  // namespace

Engine::Engine(const Model& model, DeviceGroup& devices, EngineConfig config, Workload workload) {
  auto setup = std::make_unique<EngineSetup>(model, devices, std::move(config), std::move(workload));
  if (setup->peers() != nullptr) agree_with_processes(*setup);
  EngineFacts facts;
  facts.plans = plan_or_explain(model, devices, setup->config, setup->workload);
  const bool workspace_planned = !setup->config.workspace_bytes;
  setup->config.workspace_bytes = facts.plans.front().workspace.bytes;
  reserve(*setup, facts.plans, workspace_planned);
  tune_plans(*setup, facts);
  state_ = std::make_unique<State>(std::move(setup), std::move(facts));
  State& s = *state_;
  s.stager.load_resident_images();
  const FlatLayout& layout = s.setup->layout;
  s.parameters.set_in_parts([&](const Parameters::TakePart& take) {
    constexpr int64_t kElements = int64_t{1} << 18;  // 1 MiB of host memory
    const HostBuffer part(kElements * static_cast<int64_t>(sizeof(float)), s.setup->devices.host_memory());
    float* const values = part.view({kElements}, DType::f32).as<float>();
    initialize_in_parts(layout, s.setup->config.seed, {values, static_cast<size_t>(kElements)}, take);
  });
  s.parameters.set_buffers(s.setup->buffer_layout.initial());
  if (s.setup->peers() != nullptr) s.parameters.verify();
}

}  // namespace vitrine
