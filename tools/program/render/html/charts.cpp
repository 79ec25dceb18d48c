// SPDX-License-Identifier: Apache-2.0
#include "tools/program/render/html/charts.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "tools/program/text/scale.h"
#include "tools/program/text/tables.h"

namespace vitrine::tools::html {

namespace {

constexpr size_t kMostPoints = 600;
// A span shorter than this share of the step would be thinner than a hair on any screen.
constexpr double kThinnest = 0.0003;

/// The smallest and the largest value of each stretch of a long curve, and its ends.
std::vector<CurvePoint> thinned(const std::vector<CurvePoint>& points) {
  if (points.size() <= kMostPoints) return points;
  std::vector<CurvePoint> few = {points.front()};
  const size_t stretches = kMostPoints / 2;
  for (size_t s = 0; s < stretches; ++s) {
    const auto at = [&](size_t stretch) {
      return points.begin() + static_cast<std::ptrdiff_t>(stretch * points.size() / stretches);
    };
    auto [low, high] =
        std::minmax_element(at(s), at(s + 1), [](const CurvePoint& a, const CurvePoint& b) { return a.y < b.y; });
    if (high < low) std::swap(low, high);
    if (low != points.begin()) few.push_back(*low);
    if (high != low && high != points.begin()) few.push_back(*high);
  }
  if (few.back().x != points.back().x) few.push_back(points.back());
  return few;
}

/// The position of a name in the order in which names are first asked for.
size_t position_of(const std::string& name, std::vector<std::string>& names) {
  const auto position = static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
  if (position == names.size()) names.push_back(name);
  return position;
}

/// [[place, text], ...] on the vertical axis of curves. On a logarithmic one, places are logarithms.
Json curve_ticks(const CurveChart& chart, double low, double high) {
  Json all = Json::array();
  if (chart.bytes) {
    for (const int64_t tick : byte_ticks(static_cast<int64_t>(high))) {
      if (static_cast<double>(tick) <= high) all.push_back({tick, short_bytes(tick)});
    }
    return all;
  }
  const double span = high - low;
  for (const double tick : ticks(span, chart.logarithmic ? std::clamp(static_cast<int>(span), 1, 4) : 4)) {
    if (tick > span * 1.001) continue;
    const double at = low + tick;
    all.push_back({at, chart.logarithmic ? short_number(std::exp2(at)) : fmt::format("{:.3g}", at)});
  }
  return all;
}

std::string span_name(const SpanInfo& info) {
  if (info.phase == Phase::wait) return std::string("wait for ") + info.cause;
  return info.operation[0] != '\0' ? info.operation : place_name(info.phase, info.layer);
}

Json lane_json(const char* name, const std::vector<SpanRecord>& spans, int64_t begin_ns, int64_t length_ns) {
  Json json = {{"name", name}, {"spans", Json::array()}};
  for (const SpanRecord& span : spans) {
    const int64_t duration_ns = span.end_ns - span.begin_ns;
    if (static_cast<double>(duration_ns) < kThinnest * static_cast<double>(length_ns)) continue;
    const std::string label = span_name(span.info);
    std::string title = fmt::format("{}: {}", label, short_seconds(static_cast<double>(duration_ns) * 1e-9));
    if (span.bytes > 0) title += ", moved " + short_bytes(span.bytes);
    title += fmt::format(", in step {}", span.info.step + 1);
    json["spans"].push_back({{"begin", span.begin_ns - begin_ns},
                             {"length", duration_ns},
                             {"depth", span.depth},
                             {"paint", phase_paint(span.info.phase)},
                             {"name", label},
                             {"title", title}});
  }
  return json;
}

}  // namespace

Json bar_chart(const std::string& label, const std::vector<BarGroup>& groups) {
  double largest = 0, most_capacity = 0;
  Json json = {{"kind", "bars"}, {"label", label}, {"groups", Json::array()}};
  for (const BarGroup& group : groups) {
    Json bars = Json::array();
    for (const Bar& bar : group.bars) {
      double sum = 0;
      Json parts = Json::array();
      for (const BarPart& part : bar.parts) {
        if (!(part.value > 0)) continue;
        sum += part.value;
        parts.push_back({{"name", part.name}, {"paint", part.paint}, {"value", part.value}, {"text", part.text}});
      }
      largest = std::max(largest, sum);
      most_capacity = std::max(most_capacity, bar.capacity);
      bars.push_back({{"label", bar.label}, {"total", bar.total}, {"parts", parts}, {"capacity", bar.capacity}});
    }
    json["groups"].push_back({{"title", group.title}, {"bars", bars}});
  }
  json["largest"] = most_capacity <= 4 * largest ? std::max(largest, most_capacity) : largest;
  return largest > 0 ? json : Json();
}

const char* phase_paint(Phase phase) { return phase == Phase::optimizer ? "update" : phase_name(phase); }

Bar memory_bar(const std::string& label, int64_t peak_bytes, const BytesByCategory& bytes) {
  Bar bar{label, {}, short_bytes(peak_bytes)};
  for (size_t c = 0; c < bytes.size(); ++c) {
    const char* name = category_name(static_cast<Category>(c));
    bar.parts.push_back({name, name, static_cast<double>(bytes[c]), short_bytes(bytes[c])});
  }
  return bar;
}

Bar time_bar(const DeviceRecord& device) {
  const PhaseTable& table = device.phases;
  Bar bar{device.device, {}, {}};
  const auto add = [&](const std::string& name, Phase phase, double seconds) {
    const double value = per_step(seconds, table);
    bar.parts.push_back({name, phase_paint(phase), value, short_seconds(value)});
  };
  for (const PhaseRow& row : table.rows) {
    if (row.phase != Phase::wait) add(phase_name(row.phase), row.phase, row.seconds);
  }
  for (const WaitRow& wait : table.waits) add("wait for " + wait.cause, Phase::wait, wait.seconds);
  bar.total = short_seconds(per_step(table.wall_seconds, table));
  return bar;
}

Json step_chart(const std::vector<DeviceRecord>& devices) {
  std::vector<const DeviceRecord*> shown;
  for (const DeviceRecord& d : devices) {
    if (d.step) shown.push_back(&d);
  }
  if (shown.empty()) return {};
  int64_t begin = shown.front()->step->begin_ns, end = shown.front()->step->end_ns;
  for (const DeviceRecord* d : shown) {
    begin = std::min(begin, d->step->begin_ns);
    end = std::max(end, d->step->end_ns);
  }
  const int64_t length = std::max<int64_t>(1, end - begin);
  Json groups = Json::array();
  const auto add_group = [&](const std::string& name,
                             const std::vector<std::pair<const char*, const std::vector<SpanRecord>*>>& lanes) {
    Json drawn = Json::array();
    for (const auto& [lane_name, spans] : lanes) {
      Json lane = lane_json(lane_name, *spans, begin, length);
      if (!lane["spans"].empty()) drawn.push_back(std::move(lane));
    }
    if (!drawn.empty()) groups.push_back({{"name", name}, {"lanes", drawn}});
  };
  add_group("host", {{"data", &shown.front()->step->host}});
  for (const DeviceRecord* d : shown) {
    add_group(d->device,
              {{"compute", &d->step->compute}, {"communication", &d->step->communication}, {"copy", &d->step->copy}});
  }
  const double seconds = static_cast<double>(length) * 1e-9;
  Json axis = Json::array();
  for (const double tick : ticks(seconds)) {
    if (tick <= seconds * 0.97) axis.push_back({tick * 1e9, short_seconds(tick)});
  }
  return {{"kind", "lanes"},
          {"label", "One step by device and stream"},
          {"length", length},
          {"ticks", axis},
          {"groups", groups}};
}

LineStyles::Style LineStyles::of(const std::string& colored, const std::string& dashed) {
  constexpr size_t kPaints = 4, kLines = 4;  // in template.html, solid lines included
  return {fmt::format("series{}", position_of(colored, colored_) % kPaints + 1),
          static_cast<int>(position_of(dashed, dashed_) % kLines)};
}

Json curve_chart(const CurveChart& chart) {
  double left = INFINITY, right = -INFINITY, low = chart.logarithmic ? INFINITY : 0, high = -INFINITY;
  const auto value = [&](double y) { return chart.logarithmic ? std::log2(y) : y; };
  Json curves = Json::array();
  for (const Curve& curve : chart.curves) {
    if (curve.points.empty()) continue;
    Json points = Json::array();
    double last = NAN, most = 0.0;
    for (const CurvePoint& p : thinned(curve.points)) {
      left = std::min(left, p.x);
      right = std::max(right, p.x);
      const double y = value(p.y);
      if (!std::isfinite(y)) {
        points.push_back({p.x, nullptr});
        continue;
      }
      low = std::min(low, y);
      high = std::max(high, y);
      last = p.y;
      most = std::max(most, p.y);
      points.push_back({p.x, y});
      if (curve.dots) points.back().push_back(fmt::format("{}, step {:.0f}: {:.4g}", curve.name, p.x, p.y));
    }
    const std::string name = chart.bytes
                                 ? fmt::format("{}, at most {}", curve.name, short_bytes(static_cast<int64_t>(most)))
                             : std::isfinite(last) ? fmt::format("{}, at the end {}", curve.name, short_number(last))
                                                   : curve.name;
    curves.push_back({{"name", name},
                      {"paint", curve.paint},
                      {"dots", curve.dots},
                      {"steps", curve.steps},
                      {"dashes", curve.dashes},
                      {"points", points}});
  }
  if (!(low <= high) || !std::isfinite(left)) return {};
  if (low == high) high = low + 1;
  Json json = {{"kind", "curves"},
               {"label", chart.label},
               {"x", {left, right}},
               {"y", {low, high}},
               {"ticks", curve_ticks(chart, low, high)},
               {"curves", curves}};
  const auto step = [](double x) { return fmt::format("step {:.0f}", x); };
  if (!chart.bands.empty()) {
    json["ends"] = {"start of the step", "end of the step"};
  } else {
    json["ends"] = {step(left), left == right ? std::string() : step(right)};
  }
  for (const Band& band : chart.bands) {
    json["bands"].push_back({{"name", band.name}, {"paint", band.paint}, {"begin", band.begin}, {"end", band.end}});
  }
  return json;
}

}  // namespace vitrine::tools::html
