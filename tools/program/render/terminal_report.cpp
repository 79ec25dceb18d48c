// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include <fmt/format.h>

#include "runtime/units.h"
#include "tools/program/flags/advice.h"
#include "tools/program/render/html/page.h"
#include "tools/program/render/report_tables.h"
#include "tools/program/render/reports.h"
#include "tools/program/run/unread.h"

namespace vitrine::tools {
namespace {

/// How the first device computes convolutions, and why some do not run by the preferred implementation: each reason
/// with the first operation. Empty on CPU devices without Winograd.
std::string convolution_report(const std::vector<Conv2dChoice>& choices) {
  if (choices.empty()) return {};
  std::map<std::string, int> by_implementation;
  for (const Conv2dChoice& choice : choices) ++by_implementation[choice.implementation];
  std::string text = "Convolutions:";
  for (const auto& [implementation, count] : by_implementation)
    text += fmt::format(" {} by {};", count, implementation);
  text.back() = '\n';
  std::set<std::string> told;
  for (const Conv2dChoice& choice : choices) {
    if (choice.reason.empty() || !told.insert(choice.reason).second) continue;
    const auto same = std::count_if(choices.begin(), choices.end(),
                                    [&](const Conv2dChoice& other) { return other.reason == choice.reason.str(); });
    text += fmt::format("  {}{}: {}\n", choice.operation, same > 1 ? fmt::format(" and {} more", same - 1) : "",
                        in_program_words(choice.reason));
  }
  return text;
}

std::string graph_report(const std::string& graphs) {
  return graphs.empty() ? std::string() : fmt::format("CUDA graphs: {}\n", graphs);
}

/// What checkpoints take in host memory, and how the saves went.
std::string checkpoint_report(const std::optional<CheckpointRecord>& checkpoints) {
  if (!checkpoints) return {};
  const auto total = [](const StagingBytes& staging) {
    int64_t sum = 0;
    for (const auto& [name, bytes] : staging) sum += bytes;
    return sum;
  };
  const StagingBytes& staging = checkpoints->staging.empty() ? checkpoints->planned_staging : checkpoints->staging;
  std::string parts;
  for (const auto& [name, bytes] : staging)
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", name, format_bytes(bytes));
  const bool planned = checkpoints->staging.empty();
  std::string text = fmt::format(
      "Checkpoint staging in host memory{}: {}{}: {}\n", planned ? ", planned" : "", format_bytes(total(staging)),
      planned ? "" : fmt::format(", planned {}", format_bytes(total(checkpoints->planned_staging))), parts);
  if (planned) return text;
  text += fmt::format("Checkpoints: {} saved", checkpoints->saved);
  if (checkpoints->failed > 0) text += fmt::format(", {} failed", checkpoints->failed);
  if (checkpoints->saved > 0) {
    text +=
        fmt::format(", training waited {:.3f} s for them, writing took {:.3f} s; the newest is {}/{}",
                    checkpoints->stall_seconds, checkpoints->write_seconds, checkpoints->folder, checkpoints->newest);
  }
  return text + "\n";
}

/// A finding as a paragraph.
std::string paragraph(const Finding& finding, const Style& style) {
  std::string text = finding.remedy.empty() ? finding.text : finding.text + " " + finding.remedy;
  std::erase(text, '`');
  return fmt::format("\n{}\n", style.prose(text));
}

/// What a run comes to: speed, the fullest device, the longest wait.
std::string summary(const RunRecord& run, bool details, const Style& style) {
  std::vector<std::string> lines = html::speed_and_peak(run);
  const auto wait = [](const DeviceRecord& d) { return phase_row(d.phases, Phase::wait).share; };
  const auto longest = std::ranges::max_element(run.devices, {}, wait);
  if (measured_steps(run.devices) == 0) {
    lines.emplace_back("the first step is not timed; --steps 2 or more show where the time goes");
  } else if (!longest->phases.waits.empty()) {
    lines.push_back(fmt::format("{} waits longest: {} of the step, most for {}", longest->device,
                                percent(wait(*longest)), longest->phases.waits.front().cause));
  }
  if (!details) lines.emplace_back("--details prints the tables of time and memory, --report FILE.html draws them");
  std::string text;
  for (std::string& line : lines) {
    std::erase(line, '`');
    text += style.prose(line) + "\n";
  }
  return text;
}

std::string stage_report(const Record& record, const Style& style) {
  std::string text;
  for (const Finding& finding : record.stages) text += paragraph(finding, style);
  return text;
}

}  // namespace

std::string memory_report(const std::vector<DeviceRecord>& devices, int processes, const Style& style) {
  return memory_table(devices).str(style) + style.dim(wrap(describe_outside(devices, processes), style.width)) + "\n";
}

std::string run_report(const TrainingRecord& record, bool details, const Style& style) {
  const RunRecord& run = record.run;
  std::string text = "\n" + summary(run, details, style);
  const auto add = [&](const std::string& part) {
    if (!part.empty()) text.append("\n").append(part);
  };
  if (details) {
    for (const Table& table : time_tables(run.devices)) add(table.str(style));
    if (const auto communication = communication_table(run.devices)) add(communication->str(style));
    add(memory_report(run.devices, record.processes, style));
  }
  if (const auto price = exact_price_table({&run, 1})) add(price->str(style));
  for (const std::string& part :
       {run.steps.report(), convolution_report(record.convolutions), graph_report(record.cuda_graphs),
        skipped_report(record.skipped), checkpoint_report(record.checkpoints)}) {
    add(style.prose(part));
  }
  return text + stage_report(record, style);
}

std::string comparison_report(const ComparisonRecord& record, const Style& style) {
  if (record.runs.empty()) return {};
  size_t width = 10;
  for (const std::vector<RunRecord>* runs : {&record.runs, &record.refused}) {
    for (const RunRecord& run : *runs) width = std::max(width, run.name.size());
  }
  std::string text;
  for (const RunRecord& run : record.refused)
    text += style.prose(fmt::format("  {:<{}} {}, does not fit\n", run.name, width, run.batch));
  for (const RunRecord& run : record.runs)
    text += style.prose(fmt::format("  {:<{}} {}\n", run.name, width, run.batch));
  text += fmt::format("\n{}\n{}", schemes_table(record).str(style), scheme_times_table(record.runs).str(style));
  if (const auto price = exact_price_table(record.runs)) text += fmt::format("\n{}", price->str(style));
  if (record.speed) text += paragraph(*record.speed, style);
  return text + stage_report(record, style);
}

std::string plan_report(const PlanRecord& record, const Style& style) {
  const std::vector<DeviceRecord>& devices = record.run.devices;
  std::string text = fmt::format("{}\n{}", plan_table(devices).str(style), plan_bars(devices, style));
  if (const auto movement = movement_table(record.run)) text += fmt::format("\n{}", movement->str(style));
  if (const auto held = held_table(devices)) text += fmt::format("\n{}", held->str(style));
  if (const auto price = exact_price_table({&record.run, 1})) text += fmt::format("\n{}", price->str(style));
  if (const auto frontier = frontier_table(record)) text += fmt::format("\n{}", frontier->str(style));
  if (record.checkpoints) text += fmt::format("\n{}", style.prose(checkpoint_report(record.checkpoints)));
  text += stage_report(record, style);
  if (!record.remedies.empty()) text += fmt::format("\n{}\n", style.prose("It does not fit. " + record.remedies));
  return text;
}

}  // namespace vitrine::tools
