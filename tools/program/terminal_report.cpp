// SPDX-License-Identifier: Apache-2.0
#include "tools/program/terminal_report.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "tools/program/findings.h"
#include "tools/program/record_tables.h"

namespace vitrine::tools {

namespace {

/// How a GPU computes convolutions (the first one stands for all), and why cuDNN is not used where it is not. Empty on CPU devices.
std::string convolution_report(const std::vector<Conv2dChoice>& choices) {
  if (choices.empty()) return {};
  std::map<std::string, int> by_implementation;
  for (const Conv2dChoice& choice : choices) ++by_implementation[choice.implementation];
  std::string text = "Convolutions:";
  for (const auto& [implementation, count] : by_implementation) text += fmt::format(" {} by {};", count, implementation);
  text.back() = '\n';
  for (const Conv2dChoice& choice : choices) {
    if (!choice.reason.empty()) text += fmt::format("  {}: {}\n", choice.operation, choice.reason);
  }
  return text;
}

std::string without_backquotes(std::string text) {
  std::erase(text, '`');
  return text;
}

}  // namespace

std::string memory_report(const Record& record, const Style& style) {
  const std::vector<DeviceRecord>& devices = record.run().devices;
  return memory_table(devices).str(style) + style.dim(wrap(describe_outside(devices, record.dataset_bytes, record.processes), style.width)) + "\n";
}

std::string run_report(const Record& record, const Style& style) {
  const RunRecord& run = record.run();
  std::string text;
  for (const Table& table : time_tables(run.devices)) text += "\n" + table.str(style);
  if (const auto communication = communication_table(run.devices)) text += "\n" + communication->str(style);
  text += "\n" + memory_report(record, style);
  for (const std::string& part : {run.steps.report(), convolution_report(record.convolutions)}) text += part.empty() ? part : "\n" + part;
  return text;
}

std::string comparison_report(const Record& record, const Style& style) {
  if (record.runs.empty()) return {};
  size_t width = 10;
  for (const RunRecord& run : record.runs) width = std::max(width, run.name.size());
  std::string text;
  for (const RunRecord& run : record.runs) text += fmt::format("  {:<{}} {}\n", run.name, width, run.batch);
  text += "\n" + schemes_table(record).str(style) + "\n" + scheme_times_table(record).str(style);
  if (const auto speed = compare_speed(record.runs)) text += fmt::format("\n{} {}\n", speed->text, without_backquotes(speed->remedy));
  return text;
}

std::string plan_report(const Record& record, const Style& style) {
  const std::vector<DeviceRecord>& devices = record.run().devices;
  std::string text = plan_table(devices).str(style) + "\n" + plan_bars(devices, style);
  if (const auto held = held_table(devices)) text += "\n" + held->str(style);
  if (!record.remedies.empty()) text += fmt::format("\nIt does not fit. {}\n", record.remedies);
  return text;
}

}  // namespace vitrine::tools
