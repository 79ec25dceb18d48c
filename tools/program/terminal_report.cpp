// SPDX-License-Identifier: Apache-2.0
#include "tools/program/terminal_report.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "tools/program/advice.h"
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
    if (!choice.reason.empty()) text += fmt::format("  {}: {}\n", choice.operation, in_program_words(choice.reason));
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
  const auto add = [&](const std::string& part) {
    if (!part.empty()) text.append("\n").append(part);
  };
  for (const Table& table : time_tables(run.devices)) add(table.str(style));
  if (const auto communication = communication_table(run.devices)) add(communication->str(style));
  add(memory_report(record, style));
  add(run.steps.report());
  add(convolution_report(record.convolutions));
  return text;
}

std::string comparison_report(const Record& record, const Style& style) {
  if (record.runs.empty()) return {};
  size_t width = 10;
  for (const RunRecord& run : record.runs) width = std::max(width, run.name.size());
  std::string text;
  for (const RunRecord& run : record.runs) text += fmt::format("  {:<{}} {}\n", run.name, width, run.batch);
  text += fmt::format("\n{}\n{}", schemes_table(record).str(style), scheme_times_table(record).str(style));
  if (const auto speed = compare_speed(record.runs)) text += fmt::format("\n{} {}\n", speed->text, without_backquotes(speed->remedy));
  return text;
}

std::string plan_report(const Record& record, const Style& style) {
  const std::vector<DeviceRecord>& devices = record.run().devices;
  std::string text = fmt::format("{}\n{}", plan_table(devices).str(style), plan_bars(devices, style));
  if (const auto held = held_table(devices)) text += fmt::format("\n{}", held->str(style));
  if (!record.remedies.empty()) text += fmt::format("\nIt does not fit. {}\n", record.remedies);
  return text;
}

}  // namespace vitrine::tools
