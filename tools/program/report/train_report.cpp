// SPDX-License-Identifier: Apache-2.0
#include "tools/program/report/train_report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "tools/program/report/html.h"
#include "tools/program/report/memory_charts.h"
#include "tools/program/report/palette.h"
#include "tools/program/report/scale.h"
#include "tools/program/report/sections.h"
#include "tools/program/tables.h"

namespace vitrine::tools {

namespace {

using namespace html;

/// Of several processes, that curves over time are those of this one's devices.
std::string whose(const TrainReport& report) {
  return report.processes == 1 ? std::string() : " Shown are the devices of rank 0; the tables have those of all processes.";
}

std::string memory_over_time(const TrainReport& report) {
  return memory_charts(
      report.memory,
      fmt::format("Step {}, change by change: memory is taken and given back by the host, ahead of the device's work, so the axis is the "
                  "order of these changes and not time. The bands above are the phases they belong to.",
                  report.shown_step + 1) +
          whose(report));
}

std::string step_over_time(const TrainReport& report) {
  const std::string chart = step_chart(report.steps);
  if (chart.empty()) return {};
  return paragraph(fmt::format("Step {} on each stream; hatched spans are waits, and say for what.", report.shown_step + 1) + whose(report)) +
         "<figure>" + chart + "</figure>\n";
}

std::string loss_curves(const TrainReport& report) {
  Curve steps{"loss of each step", phase_paint(Phase::forward).css_class, {}, false, false};
  for (size_t i = 0; i < report.step_losses.size(); ++i) steps.points.push_back({static_cast<double>(i + 1), report.step_losses[i]});
  Curve test{"test loss", phase_paint(Phase::loss).css_class, {}, true, false},
      accuracy{"test accuracy", phase_paint(Phase::optimizer).css_class, {}, true, false};
  HtmlTable table({"", "after step", "train loss", "test loss", "test accuracy"});
  const auto cell = [](double value) { return std::isfinite(value) ? fmt::format("{:.4f}", value) : "–"; };
  for (size_t e = 0; e < report.epochs.size(); ++e) {
    const EpochFigures& epoch = report.epochs[e];
    if (std::isfinite(epoch.test_loss)) test.points.push_back({epoch.end_step, epoch.test_loss});
    if (std::isfinite(epoch.test_accuracy)) accuracy.points.push_back({epoch.end_step, epoch.test_accuracy});
    table.add_row({fmt::format("epoch {}", e + 1), fmt::format("{:.0f}", epoch.end_step), cell(epoch.train_loss), cell(epoch.test_loss),
                   cell(epoch.test_accuracy)});
  }
  std::string html = "<div class=\"pair\">";
  const auto add = [&](const char* title, const std::string& chart) {
    if (!chart.empty()) html += fmt::format("<div><h3>{}</h3><figure>{}</figure></div>\n", title, chart);
  };
  CurveChart losses{"Loss over the steps", "step", {steps}, true, false};
  if (!test.points.empty()) losses.curves.push_back(test);
  add("Loss", curve_chart(losses));
  if (!accuracy.points.empty()) add("Accuracy", curve_chart({"Test accuracy over the epochs", "step", {accuracy}, true, false}));
  if (!report.loss_scales.empty()) {
    Curve scale{"loss scale", phase_paint(Phase::backward).css_class, report.loss_scales, false, true};
    scale.points.push_back({static_cast<double>(std::max<size_t>(1, report.step_losses.size())), report.loss_scales.back().y});
    add("Loss scale", curve_chart({"Loss scale over the steps", "step", {scale}, true, true}));
  }
  return html + "</div>\n" + table.str();
}

}  // namespace

std::string facts_section(const std::string& command_line, const Facts& facts) {
  std::string html = "<code class=\"command\">" + escape(command_line) + "</code>\n<div class=\"scroll text\"><table><tbody>\n";
  for (const auto& [name, text] : facts) html += "<tr><th scope=\"row\">" + escape(name) + "</th><td>" + escape(text) + "</td></tr>\n";
  return html + "</tbody></table></div>\n";
}

Page train_page(const TrainReport& report) {
  std::vector<std::string> names;
  for (const DeviceFigures& device : report.figures.figures) names.push_back(device.device);
  Page page(report.title);
  page.add_section("The run", facts_section(report.command_line, report.facts));
  page.add_section("Findings", findings_section(find_findings(report.figures)));
  page.add_section("Memory: planned and measured", memory_section(report.figures.figures, report.outside));
  page.add_section("Memory over one step", memory_over_time(report));
  page.add_section("Time of a step", time_section(names, report.figures.tables));
  page.add_section("One step on each stream", step_over_time(report));
  page.add_section("Communication", communication_section(names, report.figures.communication));
  page.add_section("Learning", loss_curves(report));
  return page;
}

}  // namespace vitrine::tools
