// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>

#include <fmt/ranges.h>

#include "tools/program/render/html/charts.h"
#include "tools/program/text/scale.h"
#include "tools/program/text/tables.h"

namespace vitrine::tools::html {

namespace {

// A block below this share of the peak is drawn with the others of its category, and so are all but the largest ones.
constexpr double kShareDrawn = 0.01;
constexpr size_t kBlocksDrawn = 400, kHoldersShown = 8;
// A capacity beyond this many times the peak has no line: it would flatten the chart.
constexpr int64_t kCapacityDrawn = 3;
// What precedes forward: its name, and the phase whose color it has.
constexpr const char* kStart = "start";
constexpr Phase kStartPaint = Phase::stage;

/// From the bottom up: what stays, then what comes and goes. Fragmentation is drawn behind them.
constexpr Category kStack[] = {Category::parameters,    Category::optimizer,  Category::gradients,
                               Category::dataset,       Category::workspace,  Category::staging,
                               Category::communication, Category::activations};

int64_t largest_sum(const MemoryTimeline& timeline) {
  return allocated_bytes(timeline.moments[timeline.peak].by_category);
}

/// How far the axis of a device's chart must go.
int64_t largest_bytes(const DeviceRecord& d) {
  const int64_t peak = d.memory->peak_bytes;
  return std::max(
      {peak, d.plan.peak_bytes, d.pool.capacity_bytes <= kCapacityDrawn * peak ? d.pool.capacity_bytes : int64_t{0}});
}

bool same_chart(const DeviceRecord& a, const DeviceRecord& b) {
  const auto same = [](const MemoryMoment& x, const MemoryMoment& y) {
    return x.by_category == y.by_category && x.extent_bytes == y.extent_bytes && x.phase == y.phase;
  };
  return a.pool.capacity_bytes == b.pool.capacity_bytes && a.plan.peak_bytes == b.plan.peak_bytes &&
         std::equal(a.memory->moments.begin(), a.memory->moments.end(), b.memory->moments.begin(),
                    b.memory->moments.end(), same);
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

/// [[moment, bytes], ...] at each moment at which bytes_at(moment) changes.
template <class BytesAt>
Json changes_json(const MemoryTimeline& timeline, const BytesAt& bytes_at) {
  Json changes = Json::array();
  for (size_t m = 0; m < timeline.moments.size(); ++m) {
    if (m == 0 || bytes_at(timeline.moments[m]) != bytes_at(timeline.moments[m - 1]))
      changes.push_back({m, bytes_at(timeline.moments[m])});
  }
  return changes;
}

int64_t held_at(const MemoryMoment& moment, Category category) {
  return moment.by_category[static_cast<size_t>(category)];
}

int64_t most_held(const MemoryTimeline& timeline, Category category) {
  int64_t most = 0;
  for (const MemoryMoment& moment : timeline.moments) most = std::max(most, held_at(moment, category));
  return most;
}

/// [{"category", "blocks": [...], "totals": [[moment, bytes], ...], "rest": text}], from the bottom up. Totals are
/// given where they change.
Json layers_json(const MemoryTimeline& timeline) {
  const std::vector<const HeldBlock*> large = large_blocks(timeline);
  Json layers = Json::array();
  for (const Category category : kStack) {
    Json blocks = Json::array();
    for (const HeldBlock* block : large) {
      if (block->category != category) continue;
      const std::string holder =
          block->layer.empty() ? block->tensor : fmt::format("{}, layer {}", block->tensor, block->layer);
      blocks.push_back({{"first", block->first},
                        {"end", block->end},
                        {"bytes", block->bytes},
                        {"title", fmt::format("{} {}: {}. Allocated in {}, held over changes {} to {}",
                                              category_name(category), short_bytes(block->bytes), holder,
                                              phase_name(block->phase), block->first, block->end - 1)}});
    }
    const int64_t most = most_held(timeline, category);
    if (most == 0) continue;
    layers.push_back(
        {{"category", category_name(category)},
         {"blocks", blocks},
         {"totals", changes_json(timeline, [&](const MemoryMoment& moment) { return held_at(moment, category); })},
         {"rest", fmt::format("{}: smaller blocks, at most {}", category_name(category), short_bytes(most))}});
  }
  return layers;
}

/// {"category", "totals": [[moment, bytes], ...], "title"}: the end of the highest block where it lies above the
/// largest sum of blocks, elsewhere 0. It is drawn behind the layers. Other gaps cost nothing. null without gaps that
/// do.
Json extent_json(const MemoryTimeline& timeline) {
  const int64_t sum = largest_sum(timeline);
  if (timeline.peak_bytes <= sum) return {};
  const char* name = category_name(Category::fragmentation);
  return {{"category", name},
          {"totals", changes_json(timeline,
                                  [sum](const MemoryMoment& moment) {
                                    return moment.extent_bytes > sum ? moment.extent_bytes : 0;
                                  })},
          {"title", fmt::format("{}: gaps between blocks, {} beyond the largest sum of blocks", name,
                                short_bytes(timeline.peak_bytes - sum))}};
}

/// [{"paint", "begin", "end", "name", "title"}]
Json bands_json(const std::vector<MemoryMoment>& moments) {
  Json bands = Json::array();
  for (size_t begin = 0; begin < moments.size();) {
    const Phase phase = moments[begin].phase;
    size_t end = begin + 1;
    while (end < moments.size() && moments[end].phase == phase) ++end;
    const bool start = phase == Phase::step;
    const char* name = start ? kStart : phase_name(phase);
    bands.push_back({{"paint", phase_paint(start ? kStartPaint : phase)},
                     {"begin", begin},
                     {"end", end},
                     {"name", name},
                     {"title", fmt::format("{}: changes {} to {}", name, begin, end - 1)}});
    begin = end;
  }
  return bands;
}

/// What the dashed line is where it lies above the peak.
std::string caption_of(const DeviceRecord& d) {
  if (d.plan.peak_bytes <= d.memory->peak_bytes) return {};
  return fmt::format("The plan's peak of {} (dashed) is reached in another step or in evaluation.",
                     short_bytes(d.plan.peak_bytes));
}

/// The largest blocks at the peak.
Table peak_holders(const MemoryTimeline& timeline) {
  std::vector<const HeldBlock*> held;
  for (const HeldBlock& block : timeline.blocks) {
    if (timeline.holds_at_peak(block)) held.push_back(&block);
  }
  std::ranges::stable_sort(held, [](const HeldBlock* a, const HeldBlock* b) { return a->bytes > b->bytes; });
  Table table({{"tensor", Table::Align::left},
               {"bytes"},
               {"category", Table::Align::left},
               {"layer", Table::Align::left},
               {"allocated in", Table::Align::left}});
  int64_t rest = 0;
  for (size_t i = 0; i < held.size(); ++i) {
    const HeldBlock& block = *held[i];
    if (i >= kHoldersShown) {
      rest += block.bytes;
    } else {
      table.add_row({block.tensor, short_bytes(block.bytes), category_name(block.category), block.layer,
                     phase_name(block.phase)});
    }
  }
  if (held.size() > kHoldersShown)
    table.add_row({fmt::format("{} more", held.size() - kHoldersShown), short_bytes(rest)});
  return table;
}

Json chart_json(const std::string& name, const DeviceRecord& d, int64_t scale) {
  const MemoryTimeline& timeline = *d.memory;
  const MemoryMoment& peak = timeline.moments[timeline.peak];
  const std::string place = place_name(peak.phase, peak.layer);
  Json axis = Json::array();
  for (const int64_t tick : byte_ticks(scale)) {
    if (tick <= scale) axis.push_back({tick, short_bytes(tick)});
  }
  Json json = {{"kind", "memory"},
               {"device", name},
               {"label", "Memory of " + name + " over one step, by category"},
               {"moments", timeline.moments.size()},
               {"changes", fmt::format("{} changes", format_count(static_cast<int64_t>(timeline.moments.size()) - 1))},
               {"scale", scale},
               {"ticks", axis},
               {"bands", bands_json(timeline.moments)},
               {"layers", layers_json(timeline)},
               {"extent", extent_json(timeline)},
               {"peak",
                {{"moment", timeline.peak},
                 {"bytes", timeline.peak_bytes},
                 {"text", fmt::format("peak {} in {}", short_bytes(timeline.peak_bytes), place)},
                 {"title", fmt::format("peak: {} ({} bytes) in {}", short_bytes(timeline.peak_bytes),
                                       format_count(timeline.peak_bytes), place)}}},
               {"planned", d.plan.peak_bytes},
               {"caption", caption_of(d)},
               {"holders", peak_holders(timeline).json()}};
  if (d.pool.capacity_bytes > 0 && d.pool.capacity_bytes <= scale) {
    json["capacity"] = {{"bytes", d.pool.capacity_bytes}, {"text", "capacity " + short_bytes(d.pool.capacity_bytes)}};
  }
  return json;
}

/// Where the parts of a step lie on the axis that all schemes share.
constexpr struct {
  const char* name;
  Phase paint;
  double begin, end;
} kParts[] = {{kStart, kStartPaint, 0.0, 0.1},
              {"forward and loss", Phase::forward, 0.1, 0.5},
              {"backward", Phase::backward, 0.5, 0.9},
              {"update", Phase::optimizer, 0.9, 1.0}};

/// The first moment of each part, and the number of moments; empty for a step without forward or backward.
std::vector<size_t> parts_of(const MemoryTimeline& timeline) {
  const auto& moments = timeline.moments;
  const auto in = [](Phase phase) { return [phase](const MemoryMoment& m) { return m.phase == phase; }; };
  const auto forward = std::ranges::find_if(moments, in(Phase::forward));
  const auto backward = std::find_if(forward, moments.end(), in(Phase::backward));
  if (backward == moments.end()) return {};
  const auto after = std::find_if(moments.rbegin(), moments.rend(), in(Phase::backward)).base();
  const auto at = [&](auto moment) { return static_cast<size_t>(moment - moments.begin()); };
  return {0, at(forward), at(backward), at(after), moments.size()};
}

/// Bytes over the shared axis. Within a part, changes lie at equal distances.
std::vector<CurvePoint> overlay_points(const MemoryTimeline& timeline) {
  const std::vector<size_t> parts = parts_of(timeline);
  std::vector<CurvePoint> points;
  for (size_t p = 0; p + 1 < parts.size(); ++p) {
    const double width = (kParts[p].end - kParts[p].begin) / static_cast<double>(parts[p + 1] - parts[p]);
    for (size_t m = parts[p]; m < parts[p + 1]; ++m) {
      points.push_back({kParts[p].begin + width * static_cast<double>(m - parts[p]),
                        static_cast<double>(allocated_bytes(timeline.moments[m].by_category))});
    }
  }
  if (!points.empty()) points.push_back({1.0, points.back().y});
  return points;
}

// Categories that differ by less than this share of the fullest device's peak share a row.
constexpr double kShareShown = 0.005;
constexpr size_t kTensorsNamed = 2;

/// "gathered outputs 2 MiB, 3 more".
std::string tensors_text(const std::vector<std::pair<int64_t, std::string>>& tensors) {
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(tensors.size(), kTensorsNamed); ++i) {
    names.push_back(fmt::format("{} {}", tensors[i].second, short_bytes(tensors[i].first)));
  }
  if (tensors.size() > kTensorsNamed) names.push_back(fmt::format("{} more", tensors.size() - kTensorsNamed));
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

Json memory_overlay(const std::vector<RunRecord>& runs) {
  CurveChart chart{"The device that holds most under each scheme", {}};
  chart.bytes = true;
  for (const auto& part : kParts) chart.bands.push_back({part.name, phase_paint(part.paint), part.begin, part.end});
  LineStyles styles;
  for (const RunRecord& run : runs) {
    std::vector<const DeviceRecord*> devices;
    for (const DeviceRecord& d : run.devices) {
      if (d.memory && d.memory->moments.size() > 1) devices.push_back(&d);
    }
    if (devices.empty()) continue;
    const DeviceRecord& most = **std::ranges::max_element(devices, [](const DeviceRecord* a, const DeviceRecord* b) {
      return largest_sum(*a->memory) < largest_sum(*b->memory);
    });
    // "ddp fp16": a scheme has a color, a precision a kind of line.
    const size_t space = std::min(run.name.find(' '), run.name.size());
    const LineStyles::Style style = styles.of(run.name.substr(0, space), run.name.substr(space));
    chart.curves.push_back({fmt::format("{}, {}", run.name, most.device), style.paint, overlay_points(*most.memory),
                            false, true, style.dashes});
  }
  return curve_chart(chart);
}

std::vector<Json> memory_charts(const std::vector<DeviceRecord>& devices) {
  std::vector<DeviceRecord> shown;
  int64_t scale = 0;
  for (const DeviceRecord& d : devices) {
    if (!d.memory || d.memory->moments.size() < 2) continue;
    scale = std::max(scale, largest_bytes(d));
    shown.push_back(d);
  }
  const std::vector<std::string> names = names_of(shown);
  std::vector<Json> charts;
  for (const DeviceSet& set :
       group_devices(shown.size(), [&](size_t a, size_t b) { return same_chart(shown[a], shown[b]); })) {
    charts.push_back(chart_json(set.name(names), shown[set.first()], scale));
  }
  return charts;
}

Json difference_chart(const std::vector<DeviceRecord>& devices) {
  if (devices.size() < 2) return {};
  const DeviceRecord &emptiest = devices[tools::emptiest(devices)], &fullest = devices[tools::fullest(devices)];
  if (emptiest.pool.peak_bytes == fullest.pool.peak_bytes) return {};

  Json rows = Json::array();
  const auto add_total = [&](const DeviceRecord& d) {
    rows.push_back({{"label", fmt::format("{} at its peak", d.device)},
                    {"begin", 0},
                    {"end", d.pool.peak_bytes},
                    {"text", short_bytes(d.pool.peak_bytes)}});
  };
  add_total(emptiest);
  int64_t level = emptiest.pool.peak_bytes, largest = fullest.pool.peak_bytes, rest = 0;
  const auto add = [&](const std::string& label, const char* paint, int64_t bytes) {
    const std::string text = fmt::format("{}{}", bytes < 0 ? "\u2212" : "+", short_bytes(std::abs(bytes)));
    rows.push_back({{"label", label}, {"begin", level}, {"end", level + bytes}, {"text", text}, {"paint", paint}});
    level += bytes;
    largest = std::max(largest, level);
  };
  for (const auto& [category, bytes, tensors] : memory_differences(fullest, emptiest)) {
    if (static_cast<double>(std::abs(bytes)) < kShareShown * static_cast<double>(fullest.pool.peak_bytes)) {
      rest += bytes;
      continue;
    }
    const char* name = category_name(category);
    add(tensors.empty() ? name : fmt::format("{}: {}", name, tensors_text(tensors)), name, bytes);
  }
  if (rest != 0) add("smaller differences", "", rest);  // of several categories: no color of its own
  add_total(fullest);
  return {{"kind", "waterfall"},
          {"label", fmt::format("Why {} holds more than {}", fullest.device, emptiest.device)},
          {"largest", largest},
          {"rows", rows}};
}

Json frontier_chart(const Record& record) {
  if (!record.frontier || record.frontier->size() < 2) return {};
  const std::vector<RecomputationRecord>& choices = *record.frontier;
  const double most_time = choices.back().added_time;
  Curve peaks{"peak of the fullest device", "series1", {}, /*dots=*/true, /*steps=*/true};
  for (const RecomputationRecord& choice : choices)
    peaks.points.push_back({choice.added_time, static_cast<double>(choice.peak_bytes)});
  CurveChart chart{
      "Peak memory of the fullest device against the time that recomputation adds", {peaks}, false, /*bytes=*/true};
  const std::vector<DeviceRecord>& devices = record.run().devices;
  const auto capacity = static_cast<double>(devices[fullest(devices)].pool.capacity_bytes);
  // A capacity far above all peaks would leave no height to them.
  if (capacity > 0.0 && capacity < 2.0 * peaks.points.front().y) {
    chart.curves.push_back({"capacity", "series2", {{0.0, capacity}, {most_time, capacity}}, false, false, 1});
  }
  Json json = curve_chart(chart);
  if (json.is_null()) return json;
  json["ends"] = {"no time added", fmt::format("+{} of forward and backward", percent(most_time))};
  Json& points = json["curves"][0]["points"];
  for (size_t i = 0; i < choices.size() && i < points.size(); ++i) {
    const RecomputationRecord& choice = choices[i];
    points[i][2] = choice.recompute.empty() ? fmt::format("nothing recomputed: {}", short_bytes(choice.peak_bytes))
                                            : fmt::format("{}, +{}: --recompute {}", short_bytes(choice.peak_bytes),
                                                          percent(choice.added_time), fmt::join(choice.recompute, ","));
  }
  return json;
}

}  // namespace vitrine::tools::html
