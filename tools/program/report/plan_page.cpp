// SPDX-License-Identifier: Apache-2.0
#include "tools/program/report/plan_page.h"

#include <algorithm>

#include "tools/program/report/html.h"
#include "tools/program/report/memory_charts.h"
#include "tools/program/report/scale.h"
#include "tools/program/report/sections.h"
#include "tools/program/tables.h"

namespace vitrine::tools {

namespace {

using namespace html;

// The history of a plan has a mark for its first step, and then one for the steady step.
constexpr size_t kSteadyStep = 1;

bool equal(const PlannedMemory& a, const PlannedMemory& b) {
  return a.capacity_bytes == b.capacity_bytes && a.plan.peak_bytes == b.plan.peak_bytes && a.plan.peak_by_category == b.plan.peak_by_category &&
         a.plan.peak_phase == b.plan.peak_phase && a.plan.peak_layer == b.plan.peak_layer;
}

/// Devices whose plans are the same are told together.
std::vector<PlannedMemory> group_equal(const std::vector<PlannedMemory>& devices) {
  std::vector<PlannedMemory> different;
  std::vector<std::vector<std::string>> names;
  for (const PlannedMemory& device : devices) {
    const auto known = std::find_if(different.begin(), different.end(), [&](const PlannedMemory& other) { return equal(other, device); });
    if (known == different.end()) {
      different.push_back(device);
      names.push_back({device.device});
    } else {
      names[static_cast<size_t>(known - different.begin())].push_back(device.device);
    }
  }
  for (size_t i = 0; i < names.size(); ++i) different[i].device = name_together(names[i]);
  return different;
}

std::string peaks(const std::vector<PlannedMemory>& devices) {
  std::vector<Bar> bars;
  int64_t largest = 0;
  HtmlTable table({"", "peak", "in bytes", "reached in", "capacity"});
  for (const PlannedMemory& d : devices) {
    bars.push_back(memory_bar(d.device, d.plan.peak_by_category));
    largest = std::max(largest, d.plan.peak_bytes);
    table.add_row({d.device, short_bytes(d.plan.peak_bytes), format_count(d.plan.peak_bytes), describe_peak(d.plan),
                   d.capacity_bytes > 0 ? short_bytes(d.capacity_bytes) : "not known"});
  }
  return "<figure>" + legend(bars) + stacked_bars("Planned peak of each device, by category", bars, static_cast<double>(largest)) + "</figure>\n" +
         table.str();
}

std::string over_a_step(const std::vector<PlannedMemory>& devices) {
  std::vector<MemoryChart> charts;
  for (const PlannedMemory& d : devices) {
    if (d.plan.history.steps.size() <= kSteadyStep) continue;
    charts.push_back({d.device, make_memory_timeline(cut_history(d.plan.history, kSteadyStep)), d.capacity_bytes, d.plan.peak_bytes, 0});
  }
  return memory_charts(charts, "A steady step, change by change. The bands above are the phases that the changes belong to.");
}

std::string held_for_backward(const std::vector<PlannedMemory>& devices) {
  std::string html;
  for (const PlannedMemory& d : devices) {
    HtmlTable table({"layer", "bytes"});
    int64_t all = 0;
    for (const HeldBytes& held : d.plan.held) {
      table.add_row({held.layer, short_bytes(held.bytes)});
      all += held.bytes;
    }
    if (table.empty()) continue;
    table.add_row({"all", short_bytes(all)}, true);
    html += "<h3>" + escape(d.device) + "</h3>\n" + table.str();
  }
  return html;
}

}  // namespace

Page plan_page(const PlanReport& report) {
  const std::vector<PlannedMemory> devices = group_equal(report.devices);
  Page page(report.title);
  page.add_section("The plan", facts_section(report.command_line, report.facts));
  page.add_section("Does it fit?", paragraph(report.remedies.empty() ? "Every device whose capacity is known has room for its plan."
                                                                     : "It does not fit. " + report.remedies));
  page.add_section("Peak memory", peaks(devices));
  page.add_section("Memory over one step", over_a_step(devices));
  page.add_section("Held for backward", held_for_backward(devices));
  return page;
}

}  // namespace vitrine::tools
