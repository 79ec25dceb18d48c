// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/program/record/record.h"

/// The charts of a page as data: what template.html draws. Every text is ready to show; the template knows only shapes
/// and colors.
namespace vitrine::tools::html {

/// A part of a stacked bar.
struct BarPart {
  std::string name;
  std::string paint;  // a name of template.html's colors: a category, a phase, a series or "outside"
  double value = 0;
  std::string text;  // the value with its unit
};

struct Bar {
  std::string label;
  std::vector<BarPart> parts;
  std::string total;    // shown at the end of the row
  double capacity = 0;  // where a line marks it; 0 if it is not known
};

struct BarGroup {
  std::string title;  // may be empty
  std::vector<Bar> bars;
};

/// {"kind": "bars", ...}: groups of stacked bars on one scale, with one legend. null without any value. A capacity that
/// would make the bars shorter than a quarter of the chart has no line.
///   label  what the chart shows, for readers who cannot see it
Json bar_chart(const std::string& label, const std::vector<BarGroup>& groups);

/// The name of a phase among template.html's colors. Phases and categories of memory have no color in common.
const char* phase_paint(Phase phase);

/// A device's memory by category, and the time of its step by phase.
Bar memory_bar(const std::string& label, int64_t peak_bytes, const BytesByCategory& bytes);
Bar time_bar(const DeviceRecord& device);

/// {"kind": "memory", ...}: bytes by category over the changes of a step, with phases, capacity, plan and every large
/// block. Devices that hold the same to the byte share a chart; all charts have one scale. Empty if no device has a
/// timeline with changes.
std::vector<Json> memory_charts(const std::vector<DeviceRecord>& devices);

/// {"kind": "lanes", ...}: the step on one axis of time, with a lane for each stream of each device, and the host's
/// waits for data. null if no device has a step.
Json step_chart(const std::vector<DeviceRecord>& devices);

/// {"kind": "movement", ...}: a column for the host and for each device, and a row for each phase in the order of a
/// step: arrows with the bytes that it moves in a mean step, or a box on each device that works. More than eight
/// devices share columns where they take the same part. null for a single device, or without measured steps.
Json movement_chart(const RunRecord& run);

/// {"kind": "waterfall", ...}: from the peak of the device that holds least to that of the device that holds most,
/// category by category. null for a single device, or if all peaks are equal.
Json difference_chart(const std::vector<DeviceRecord>& devices);

struct CurvePoint {
  double x = 0;
  double y = 0;  // not finite: a gap
};

struct Curve {
  std::string name;
  std::string paint;
  std::vector<CurvePoint> points;
  bool dots = false;   // each point has a dot
  bool steps = false;  // a value holds until the next one
  int dashes = 0;      // 0: a solid line; 1 to 3: kinds of dashes
};

/// A part of the horizontal axis, named above the curves.
struct Band {
  std::string name;
  std::string paint;
  double begin = 0, end = 0;
};

/// Assigns a color to each scheme and a line style to each precision, the same on every call.
class LineStyles {
 public:
  struct Style {
    std::string paint;
    int dashes = 0;
  };
  Style of(const std::string& colored, const std::string& dashed);

 private:
  std::vector<std::string> colored_, dashed_;
};

struct CurveChart {
  std::string label;  // what it shows
  std::vector<Curve> curves;
  bool logarithmic = false;  // an axis in powers of two; otherwise it begins at 0
  bool bytes =
      false;  // values are bytes, and a curve's largest one stands beside its name; otherwise it is the last one
  std::vector<Band> bands = {};  // of one step, which is the axis; without bands the axis is the number of the step
};

/// {"kind": "curves", ...}: curves over the steps, or over one. Of each stretch of a long curve only the smallest and
/// the largest value stay. null without points.
Json curve_chart(const CurveChart& chart);

/// {"kind": "curves", ...}: the choices of what is recomputed, with the time that each adds from left to right and the
/// peak of the fullest device, and that device's capacity. null without --frontier, or where nothing can be saved.
Json frontier_chart(const Record& record);

/// A curve of the device that holds most under each scheme, over a step of which forward and backward take the same
/// width under all. null if no device has a timeline.
Json memory_overlay(const std::vector<RunRecord>& runs);

}  // namespace vitrine::tools::html
