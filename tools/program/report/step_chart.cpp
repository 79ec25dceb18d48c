// SPDX-License-Identifier: Apache-2.0
#include "tools/program/report/step_chart.h"

#include <algorithm>

#include <fmt/format.h>

#include "tools/program/report/palette.h"
#include "tools/program/report/scale.h"
#include "tools/program/report/svg.h"

namespace vitrine::tools::html {

namespace {

constexpr double kRow = 17, kLaneLabel = 14, kLaneGap = 4, kDeviceLabel = 20, kAxis = 20;
constexpr double kThinnest = 0.03;  // percent: spans below it would be less than a hair on any screen
constexpr double kLabelled = 7;     // percent

struct Lane {
  std::string name;
  const std::vector<SpanRecord>* spans;
  int rows;
};

/// Rows that the spans of a lane need, of those that are long enough to be drawn.
int rows_of(const std::vector<SpanRecord>& spans, double shortest_ns) {
  int rows = 0;
  for (const SpanRecord& span : spans) rows = static_cast<double>(span.end_ns - span.begin_ns) >= shortest_ns ? std::max(rows, span.depth + 1) : rows;
  return rows;
}

std::vector<Lane> with_spans(std::vector<Lane> lanes) {
  std::erase_if(lanes, [](const Lane& lane) { return lane.rows == 0; });
  return lanes;
}

double height_of(const std::vector<Lane>& lanes) {
  double height = 0;
  for (const Lane& lane : lanes) height += kLaneLabel + kRow * lane.rows + kLaneGap;
  return height;
}

std::string name_of(const SpanInfo& info) {
  if (info.phase == Phase::wait) return std::string("wait for ") + info.cause;
  if (info.operation[0] != '\0') return info.operation;
  return info.layer[0] != '\0' ? fmt::format("{} {}", phase_name(info.phase), info.layer) : phase_name(info.phase);
}

class Drawing {
 public:
  explicit Drawing(const std::vector<DeviceStep>& devices) {
    begin_ns_ = devices.front().view.begin_ns;
    end_ns_ = devices.front().view.end_ns;
    for (const DeviceStep& device : devices) {
      begin_ns_ = std::min(begin_ns_, device.view.begin_ns);
      end_ns_ = std::max(end_ns_, device.view.end_ns);
    }
    const double shortest_ns = kThinnest / 100 * static_cast<double>(end_ns_ - begin_ns_);
    const auto lane = [&](const char* name, const std::vector<SpanRecord>& spans) { return Lane{name, &spans, rows_of(spans, shortest_ns)}; };
    groups_.push_back({"host", with_spans({lane("data", devices.front().view.host)})});
    for (const DeviceStep& device : devices) {
      const StepView& view = device.view;
      groups_.push_back(
          {device.device, with_spans({lane("compute", view.compute), lane("communication", view.communication), lane("copy", view.copy)})});
    }
    std::erase_if(groups_, [](const Group& group) { return group.lanes.empty(); });
  }

  std::string str() {
    double height = kAxis;
    for (const Group& group : groups_) height += kDeviceLabel + height_of(group.lanes);
    svg_ = Svg(height, "One step by device and stream");
    axis(height);
    for (const Group& group : groups_) {
      heading(group.name);
      for (const Lane& l : group.lanes) lane(l);
    }
    return svg_.str();
  }

 private:
  struct Group {
    std::string name;
    std::vector<Lane> lanes;
  };

  double x(int64_t time_ns) const {
    return 100 * static_cast<double>(time_ns - begin_ns_) / static_cast<double>(std::max<int64_t>(1, end_ns_ - begin_ns_));
  }

  void axis(double height) {
    const double seconds = static_cast<double>(end_ns_ - begin_ns_) * 1e-9;
    for (const double tick : ticks(seconds, 4)) {
      if (tick > seconds * 0.97) continue;
      const double at = 100 * tick / seconds;
      svg_.line({at, kAxis - 6}, {at, height}, "grid");
      svg_.text({at, kAxis - 9}, tick == 0 ? Svg::Anchor::start : Svg::Anchor::middle, "axis", short_seconds(tick));
    }
    top_ = kAxis;
  }

  void heading(const std::string& device) {
    svg_.line({0, top_ + 2}, {100, top_ + 2}, "border");
    svg_.text({0, top_ + 16}, Svg::Anchor::start, "strong", device);
    top_ += kDeviceLabel;
  }

  void lane(const Lane& lane) {
    svg_.text({0, top_ + 10}, Svg::Anchor::start, "axis", lane.name);
    top_ += kLaneLabel;
    for (const SpanRecord& span : *lane.spans) draw(span);
    top_ += kRow * lane.rows + kLaneGap;
  }

  void draw(const SpanRecord& span) {
    const double left = x(span.begin_ns), width = x(span.end_ns) - left, y = top_ + kRow * span.depth;
    if (width < kThinnest) return;
    const std::string name = name_of(span.info);
    std::string title = fmt::format("{}: {}", name, short_seconds(static_cast<double>(span.end_ns - span.begin_ns) * 1e-9));
    if (span.bytes > 0) title += ", moved " + short_bytes(span.bytes);
    title += fmt::format(", in step {}", span.info.step + 1);
    const bool wait = span.info.phase == Phase::wait;
    svg_.rect(left, y, width, kRow - 1, fmt::format("part {}", wait ? "hatched" : phase_paint(span.info.phase).css_class), title);
    if (width >= kLabelled) svg_.clipped_text(left, y, width, name, wait);
  }

  std::vector<Group> groups_;
  Svg svg_{0, {}};
  int64_t begin_ns_, end_ns_;
  double top_ = 0;
};

}  // namespace

std::string step_chart(const std::vector<DeviceStep>& devices) { return devices.empty() ? std::string() : Drawing(devices).str(); }

}  // namespace vitrine::tools::html
