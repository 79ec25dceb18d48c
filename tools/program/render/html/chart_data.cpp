// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include "tools/program/record/record.h"
#include "tools/program/render/html/page.h"

namespace vitrine::tools::html {

namespace {

// A block below this share of the peak is drawn with the others of its category, and so are all but the largest ones.
constexpr double kShareDrawn = 0.01;
constexpr size_t kBlocksDrawn = 400;
// A span shorter than this share of the step would be thinner than a hair on any screen.
constexpr double kThinnest = 0.0003;

/// [[moment, value], ...] at each moment at which the value changes.
Json changes_json(const MemoryTimeline& timeline, const auto& value_at) {
  Json changes = Json::array();
  for (size_t m = 0; m < timeline.moments.size(); ++m) {
    if (m == 0 || value_at(timeline.moments[m]) != value_at(timeline.moments[m - 1]))
      changes.push_back({m, value_at(timeline.moments[m])});
  }
  return changes;
}

/// The blocks that are drawn one by one, in the order in which they were taken.
std::vector<const HeldBlock*> large_blocks(const MemoryTimeline& timeline) {
  std::vector<const HeldBlock*> large;
  for (const HeldBlock& block : timeline.blocks) {
    if (static_cast<double>(block.bytes) >= kShareDrawn * static_cast<double>(timeline.peak_bytes))
      large.push_back(&block);
  }
  if (large.size() > kBlocksDrawn) {
    std::nth_element(large.begin(), large.begin() + kBlocksDrawn, large.end(),
                     [](const auto* a, const auto* b) { return a->bytes > b->bytes; });
    large.resize(kBlocksDrawn);
  }
  std::ranges::sort(large, [](const auto* a, const auto* b) {
    return a->first != b->first ? a->first < b->first : a->offset < b->offset;
  });
  return large;
}

Json memory_json(const std::optional<MemoryTimeline>& memory) {
  if (!memory || memory->moments.size() < 2) return {};
  const MemoryTimeline& timeline = *memory;
  Json categories = Json::object(), blocks = Json::array();
  for (size_t c = 0; c < static_cast<size_t>(Category::fragmentation); ++c) {
    const auto held = [c](const MemoryMoment& moment) { return moment.by_category[c]; };
    if (std::ranges::any_of(timeline.moments, [&](const MemoryMoment& moment) { return held(moment) > 0; }))
      categories[category_name(static_cast<Category>(c))] = changes_json(timeline, held);
  }
  for (const HeldBlock* block : large_blocks(timeline)) {
    blocks.push_back({{"category", category_name(block->category)},
                      {"bytes", block->bytes},
                      {"first", block->first},
                      {"end", block->end},
                      {"tensor", block->tensor},
                      {"layer", block->layer},
                      {"phase", phase_name(block->phase)}});
  }
  const MemoryMoment& peak = timeline.moments[timeline.peak];
  return {{"moments", timeline.moments.size()},
          {"phases", changes_json(timeline, [](const auto& moment) { return std::string(phase_name(moment.phase)); })},
          {"categories", categories},
          {"extent", changes_json(timeline, [](const auto& moment) { return moment.extent_bytes; })},
          {"peak",
           {{"moment", timeline.peak}, {"bytes", timeline.peak_bytes}, {"place", place_name(peak.phase, peak.layer)}}},
          {"blocks", blocks}};
}

std::string span_name(const SpanInfo& info) {
  if (info.phase == Phase::wait) return std::string("wait for ") + info.cause;
  return info.operation[0] != '\0' ? info.operation : place_name(info.phase, info.layer);
}

Json step_json(const std::optional<StepView>& step) {
  if (!step) return {};
  Json json = {{"begin", step->begin_ns}, {"end", step->end_ns}};
  const double thinnest = kThinnest * static_cast<double>(step->end_ns - step->begin_ns);
  for (const auto& [name, spans] : {std::pair{"host", &step->host},
                                    {"compute", &step->compute},
                                    {"communication", &step->communication},
                                    {"copy", &step->copy}}) {
    json[name] = Json::array();
    for (const SpanRecord& span : *spans) {
      if (static_cast<double>(span.end_ns - span.begin_ns) < thinnest) continue;
      json[name].push_back({{"begin", span.begin_ns},
                            {"end", span.end_ns},
                            {"depth", span.depth},
                            {"phase", phase_name(span.info.phase)},
                            {"name", span_name(span.info)},
                            {"bytes", span.bytes},
                            {"step", span.info.step}});
    }
  }
  return json;
}

Json moved_json(const RunRecord& run, size_t device) {
  Json moved = Json::object();
  for (int p = 0; p < kPhaseCount; ++p) {
    const auto phase = static_cast<Phase>(p);
    const int64_t bytes = moved_bytes(run, device, phase);
    if (bytes > 0 || phase_row(run.devices[device].phases, phase).calls > 0) moved[phase_name(phase)] = bytes;
  }
  return moved;
}

Json differences_json(const std::vector<DeviceRecord>& devices) {
  Json json = Json::array();
  if (devices.empty()) return json;
  for (const auto& [category, bytes, tensors] :
       memory_differences(devices[fullest(devices)], devices[emptiest(devices)]))
    json.push_back({{"category", category_name(category)}, {"bytes", bytes}, {"tensors", tensors}});
  return json;
}

}  // namespace

Json chart_data(const RunRecord& run) {
  Json devices = Json::array(), epoch_ends = Json::array();
  for (size_t d = 0; d < run.devices.size(); ++d) {
    const DeviceRecord& device = run.devices[d];
    devices.push_back({{"device", device.device},
                       {"step_seconds", per_step(device.phases.wall_seconds, device.phases)},
                       {"moved", moved_json(run, d)},
                       {"memory", memory_json(device.memory)},
                       {"step", step_json(device.step)}});
  }
  for (const EpochRecord& epoch : run.epochs) epoch_ends.push_back(epoch.last_step);
  const DeviceRecord* const slowest = least_late(run.devices);
  return {{"name", run.name},
          {"steps", measured_steps(run.devices)},
          {"shown_step", run.shown_step},
          {"epoch_ends", epoch_ends},
          {"output_device", run.scheme.output_device},
          {"communication_of", slowest == nullptr ? Json() : Json(slowest->device)},
          {"devices", devices},
          {"differences", differences_json(run.devices)}};
}

}  // namespace vitrine::tools::html
