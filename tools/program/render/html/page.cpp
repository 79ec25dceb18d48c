// SPDX-License-Identifier: Apache-2.0
#include "tools/program/render/html/page.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tools/program/record/device_sets.h"
#include "tools/program/record/findings.h"
#include "tools/program/record/reproduction.h"
#include "tools/program/render/html/charts.h"
#include "tools/program/render/report_tables.h"
#include "tools/program/text/json_text.h"
#include "tools/program/text/output_file.h"
#include "tools/program/text/scale.h"

namespace vitrine::tools::html {

namespace {

Json text(const std::string& words) { return {{"kind", "text"}, {"text", words}}; }
Json note(const std::string& words) { return {{"kind", "text"}, {"text", words}, {"soft", true}}; }
Json heading(const std::string& words) { return {{"kind", "heading"}, {"text", words}}; }
Json fold(const std::string& title, const Json& blocks) {
  return {{"kind", "fold"}, {"title", title}, {"blocks", blocks}};
}

/// The blocks that are there; a section without any is left out.
Json blocks_of(const std::vector<Json>& blocks) {
  Json all = Json::array();
  for (const Json& block : blocks) {
    if (block.is_array()) {
      all.insert(all.end(), block.begin(), block.end());
    } else if (!block.is_null()) {
      all.push_back(block);
    }
  }
  return all;
}

Json tables(const std::vector<Table>& all) {
  Json json = Json::array();
  for (const Table& table : all) json.push_back(table.json());
  return json;
}
Json table(const std::optional<Table>& t) { return t ? t->json() : Json(); }

Json findings(const Record& record) {
  Json json = {{"kind", "findings"}, {"findings", Json::array()}};
  if (record.findings.empty()) json["none"] = no_findings(record);
  for (const Finding& finding : record.findings) {
    json["findings"].push_back({{"text", finding.text},
                                {"remedy", finding.remedy},
                                {"severity", severity_of(finding)},
                                {"cost", describe_cost(finding)}});
    if (finding.cost) json["hint"] = describe_severities();
  }
  return json;
}

/// Why one device holds more than another; null if none does.
Json difference_section(const std::vector<DeviceRecord>& devices) {
  const Json chart = difference_chart(devices);
  return chart.is_null() ? Json() : blocks_of({heading(chart["label"]), chart});
}

Json memory_section(const Record& record) {
  const std::vector<DeviceRecord>& devices = record.run().devices;
  // One bar where plan and measurement agree, and for all devices that hold the same.
  std::vector<Bar> bars;
  const std::vector<std::string> names = names_of(devices);
  const auto same = [&](size_t i, size_t j) {
    const DeviceRecord &a = devices[i], &b = devices[j];
    return a.pool.peak_by_category == b.pool.peak_by_category && a.plan.peak_by_category == b.plan.peak_by_category &&
           a.outside_bytes == b.outside_bytes;
  };
  for (const DeviceSet& set : group_devices(devices.size(), same)) {
    const DeviceRecord& d = devices[set.first()];
    const std::string name = set.name(names);
    if (!d.as_planned() && d.plan.peak_bytes > 0)
      bars.push_back(memory_bar(name + ", planned", d.plan.peak_bytes, d.plan.peak_by_category));
    Bar bar = memory_bar(d.as_planned() ? name : name + ", measured", d.pool.peak_bytes, d.pool.peak_by_category);
    if (d.outside_bytes > 0) bar.total += fmt::format(" + {} outside the pool", short_bytes(d.outside_bytes));
    bars.push_back(bar);
  }
  return blocks_of({text(all_as_planned(devices)
                             ? "Planned and measured are equal to the byte, on every device and in every category."
                             : "Planned and measured differ: the run did not cover the whole workload of the plan, or "
                               "an error ended it early."),
                    bar_chart("Peak memory of each device, planned and measured, by category", {{"", bars}}),
                    memory_table(devices).json(), difference_section(devices),
                    note(describe_outside(devices, record.processes))});
}

/// Charts over time show this process's devices only.
std::string which_devices(const Record& record) {
  return record.processes == 1 ? std::string()
                               : " The chart shows the devices of rank 0; the tables have those of all processes.";
}

Json memory_over_time(const std::vector<DeviceRecord>& devices, const std::string& introduction) {
  const std::vector<Json> charts = memory_charts(devices);
  if (charts.empty()) return {};
  const bool has_gaps =
      std::any_of(charts.begin(), charts.end(), [](const Json& chart) { return !chart["extent"].is_null(); });
  return blocks_of({text(introduction),
                    has_gaps ? note("Fragmentation is what lies between blocks: memory reaches to the highest block, "
                                    "and what is free below it counts "
                                    "until a block fits in.")
                             : Json(),
                    charts});
}

Json times_section(const RunRecord& run) {
  if (measured_steps(run.devices) == 0) return {};
  std::vector<Bar> bars;
  for (const DeviceRecord& d : run.devices) bars.push_back(time_bar(d));
  return blocks_of(
      {text(fmt::format(
           "Mean of {} after the first. Each moment belongs to one phase, so a device's phases add up to its step's "
           "wall time; {:.2f} % of it is named. Hatched: waits, by what they waited for.",
           counted(measured_steps(run.devices), "step"), 100 * named_share(run.devices))),
       bar_chart("Time of a step by phase, for each device", {{"", bars}}),
       tables(time_tables(run.devices, kDevicesApartOnPage))});
}

Json communication_section(const RunRecord& run) {
  const DeviceRecord* slowest = least_late(run.devices);
  if (slowest == nullptr) return {};
  const CommunicationTable& communication = slowest->communication;
  std::vector<Bar> bars;
  for (const CommunicationRow& row : communication.rows) {
    Bar bar{row.name(),
            {},
            short_bytes(per_step(row.buffer_bytes, communication)) + ", " +
                short_seconds(per_step(row.seconds(), communication))};
    const auto add = [&](const char* name, double seconds) {
      bar.parts.push_back(
          {name, name, per_step(seconds, communication), short_seconds(per_step(seconds, communication))});
    };
    add("hidden", row.hidden_seconds);
    add("exposed", row.exposed_seconds);
    add("late peers, hidden", row.late_hidden_seconds);
    add("late peers, exposed", row.late_exposed_seconds);
    bars.push_back(bar);
  }
  return blocks_of({bar_chart("Communication hidden and exposed, bucket by bucket", {{"", bars}}),
                    table(communication_table(run.devices))});
}

Json learning_section(const RunRecord& run) {
  Curve losses{"loss of each step", "series1", {}};
  for (size_t i = 0; i < run.step_losses.size(); ++i)
    losses.points.push_back({static_cast<double>(run.first_step + static_cast<int64_t>(i) + 1), run.step_losses[i]});
  Curve test{"test loss", "series2", {}, true}, accuracy{"test accuracy", "series3", {}, true};
  for (const EpochRecord& e : run.epochs) {
    const auto step = static_cast<double>(e.last_step);
    if (e.test_loss) test.points.push_back({step, *e.test_loss});
    if (e.test_accuracy) accuracy.points.push_back({step, *e.test_accuracy});
  }
  Curve scale{"loss scale", "series4", {}, false, true};
  for (const StepRecord::Change& change : run.steps.loss_scales())
    scale.points.push_back({static_cast<double>(change.step + 1), change.loss_scale});
  if (!scale.points.empty())
    scale.points.push_back(
        {static_cast<double>(run.first_step + std::max<int64_t>(1, static_cast<int64_t>(run.step_losses.size()))),
         scale.points.back().y});
  Json charts = Json::array();
  const auto add = [&](const char* title, const CurveChart& chart) {
    const Json drawn = curve_chart(chart);
    if (!drawn.is_null()) charts.push_back({heading(title), drawn});
  };
  CurveChart loss_chart{"Loss over the steps", {losses}};
  if (!test.points.empty()) loss_chart.curves.push_back(test);
  add("Loss", loss_chart);
  add("Accuracy", {"Test accuracy over the epochs", {accuracy}});
  add("Loss scale", {"Loss scale over the steps", {scale}, true});
  return blocks_of({Json{{"kind", "pair"}, {"columns", charts}}, table(epochs_table(run))});
}

/// One group of bars for each scheme.
template <class MakeBar>
Json bars_by_scheme(const Record& record, const std::string& label, const MakeBar& make_bar) {
  std::vector<BarGroup> groups;
  for (const RunRecord& run : record.runs) {
    BarGroup& group = groups.emplace_back(BarGroup{run.name, {}});
    for (const DeviceRecord& d : run.devices) group.bars.push_back(make_bar(d));
  }
  return bar_chart(label, groups);
}

Json comparison_speed(const Record& record) {
  std::vector<Bar> bars;
  for (const RunRecord& run : record.runs) {
    const std::string rate = run.rates.str();
    bars.push_back({run.name, {{rate, "series1", run.rates.median(), "samples/s"}}, fmt::format("{} samples/s", rate)});
  }
  Json chart = bar_chart("Samples per second under each scheme", {{"", bars}});
  chart["legend"] = false;
  return blocks_of({chart, speeds_table(record).json(), note(rounding_hint(record.runs))});
}

using Sections = std::vector<std::pair<const char*, Json>>;

Sections run_sections(const Record& record) {
  const RunRecord& run = record.run();
  Json steps = step_chart(run.devices);
  if (!steps.is_null()) {
    steps = blocks_of({text(fmt::format("Step {} on each stream; hatched spans are waits and name what they wait for.",
                                        run.shown_step + 1) +
                            which_devices(record)),
                       steps});
  }
  Json movement = movement_chart(run);
  if (!movement.is_null()) {
    movement = blocks_of({text("A step from top to bottom. Arrows carry bytes from one memory to another; boxes are "
                               "the work of a device, with its time in the mean "
                               "step. Bytes of samples are those of a full batch, others those of the mean step; the "
                               "tables below count only what was copied while "
                               "steps "
                               "were measured."),
                          movement});
  }
  return {{"Findings", blocks_of({findings(record)})},
          {"What moves where", movement},
          {"Memory: planned and measured", memory_section(record)},
          {"Memory over one step",
           memory_over_time(
               run.devices,
               fmt::format(
                   "Step {}, change by change: the host allocates and frees memory ahead of the device's work, so the "
                   "axis is the order of these changes, not time. The bands above are the phases they belong to.",
                   run.shown_step + 1) +
                   which_devices(record))},
          {"Time of a step", times_section(run)},
          {"One step on each stream", steps},
          {"Communication", communication_section(run)},
          {"Learning", learning_section(run)}};
}

/// Memory over a step under all schemes, one curve for each.
Json memory_curves(const std::vector<RunRecord>& runs) {
  const std::vector<Json> charts = memory_overlays(runs);
  if (charts.empty()) return {};
  Json blocks =
      blocks_of({text("A steady step, change by change. Each part of the step takes the same width under every scheme, "
                      "so the axis does not show time.")});
  for (const Json& chart : charts) {
    blocks.push_back(heading(charts.size() == 1          ? "Every device"
                             : &chart == &charts.front() ? "The device that holds most"
                                                         : "The device that holds least"));
    blocks.push_back(chart);
  }
  return blocks;
}

/// Peak memory, times and communication of every run, one group of each for a run.
Sections measurements_sections(const Record& record, const std::optional<Table>& peaks) {
  std::vector<Json> times = {
      text("Each device's phases add up to its step's wall time. Hatched: waits, by what they waited for."),
      bars_by_scheme(record, "Time of a step by phase", time_bar), scheme_times_table(record).json()};
  std::vector<Json> communication;
  for (const RunRecord& run : record.runs) {
    times.push_back(
        fold("Where a step's time went under " + run.name, tables(time_tables(run.devices, kDevicesApartOnPage))));
    const Json section = communication_section(run);
    if (!section.is_null()) communication.insert(communication.end(), {heading(run.name), section});
  }
  const bool equal = std::all_of(record.runs.begin(), record.runs.end(),
                                 [](const RunRecord& run) { return all_as_planned(run.devices); });
  const auto memory_of = [](const DeviceRecord& d) {
    return memory_bar(d.device, d.pool.peak_bytes, d.pool.peak_by_category);
  };
  return {{"Peak memory",
           blocks_of({text(equal ? "Peak of each device by category. Planned and measured are equal to the byte."
                                 : "Peak of each device by category, as measured."),
                      bars_by_scheme(record, "Peak memory of each device by category", memory_of), table(peaks),
                      note(describe_outside(record.runs.front().devices, 1))})},
          {"Time of a step", blocks_of(times)},
          {"Communication", blocks_of(communication)}};
}

Sections comparison_sections(const Record& record) {
  if (record.runs.empty()) return {};
  Sections sections = {{"Findings", blocks_of({findings(record)})}, {"Speed and gradients", comparison_speed(record)}};
  Sections measured = measurements_sections(record, schemes_table(record));
  measured.insert(measured.begin() + 1, {"Memory over one step", memory_curves(record.runs)});
  sections.insert(sections.end(), measured.begin(), measured.end());
  return sections;
}

/// Losses and accuracies of all runs on the same axes. A mode has a color and a precision a kind of line, which are
/// those of all seeds.
Json reproduction_curves(const Record& record) {
  CurveChart losses{"Training loss over the steps, all runs", {}},
      accuracies{"Test accuracy over the steps, all runs", {}};
  LineStyles styles;
  for (const RunRecord& run : record.runs) {
    const auto [paint, dashes] = styles.of(run.reproduced->mode, run.reproduced->precision);
    Curve loss{run.name, paint, {}, false, false, dashes}, accuracy{run.name, paint, {}, true, false, dashes};
    for (size_t i = 0; i < run.step_losses.size(); ++i)
      loss.points.push_back({static_cast<double>(i + 1), run.step_losses[i]});
    for (const EpochRecord& e : run.epochs) {
      if (e.test_accuracy) accuracy.points.push_back({static_cast<double>(e.last_step), *e.test_accuracy});
    }
    if (!loss.points.empty()) losses.curves.push_back(loss);
    if (!accuracy.points.empty()) accuracies.curves.push_back(accuracy);
  }
  std::vector<Json> blocks;
  for (const auto& [title, chart] :
       {std::pair<const char*, const CurveChart&>{"Test accuracy", accuracies}, {"Training loss", losses}}) {
    const Json drawn = curve_chart(chart);
    if (!drawn.is_null()) blocks.insert(blocks.end(), {heading(title), drawn});
  }
  return blocks_of(blocks);
}

Json list(const std::vector<std::string>& lines) {
  Json blocks = Json::array();
  for (const std::string& line : lines) blocks.push_back(text(line));
  return blocks;
}

Json reproduction_times(const Record& record) {
  std::vector<Bar> bars;
  for (const ConfigurationSummary& summary : record.summaries) {
    const std::string duration = format_duration(summary.seconds.mean);
    if (summary.seconds.count > 0)
      bars.push_back({summary.name, {{duration, "series1", summary.seconds.mean, "of training"}}, duration});
  }
  Json chart = bar_chart("Time of training in each configuration", {{"", bars}});
  if (!chart.is_null()) chart["legend"] = false;
  return chart;
}

Sections reproduction_sections(const Record& record) {
  Sections sections = {
      {"Problems", list(run_problems(record))},
      {"Results", blocks_of({list(record.notes), reproduction_times(record), reproduction_table(record).json()})}};
  if (record.as_published) {
    sections.push_back(
        {"Published figures",
         blocks_of({table(published_table(record)),
                    record.departures.empty() ? Json() : heading("Differences from the published conditions"),
                    list(record.departures)})});
    sections.push_back({"Published conditions and good practice", list(published_conditions())});
  }
  sections.push_back({"Learning", reproduction_curves(record)});
  const Record measured = measured_runs(record);
  if (!measured.runs.empty()) {
    const Sections of_devices = measurements_sections(measured, std::nullopt);
    sections.insert(sections.end(), of_devices.begin(), of_devices.end());
  }
  return sections;
}

Json frontier_section(const Record& record) {
  if (!record.frontier) return {};
  return blocks_of({text("Each dot is a choice of parts that keep only their input and are computed again in backward. "
                         "Further to the right a step takes "
                         "more time, and the fullest device needs fewer bytes; no choice lies below the line."),
                    frontier_chart(record), table(frontier_table(record))});
}

Sections plan_sections(const Record& record) {
  const std::vector<DeviceRecord>& devices = record.run().devices;
  std::vector<Bar> bars;
  for (const DeviceRecord& d : devices)
    bars.push_back(memory_bar(d.device, d.plan.peak_bytes, d.plan.peak_by_category));
  return {{"Does it fit?",
           blocks_of({text(record.remedies.empty() ? "Every device whose capacity is known has room for its plan."
                                                   : "It does not fit. " + record.remedies)})},
          {"Findings", blocks_of({findings(record)})},
          {"Peak memory", blocks_of({bar_chart("Planned peak of each device, by category", {{"", bars}}),
                                     plan_table(devices).json(), difference_section(devices)})},
          {"Memory over one step",
           memory_over_time(
               devices, "A steady step, change by change. The bands above are the phases that the changes belong to.")},
          {"Recomputation: bytes and time", frontier_section(record)},
          {"Held for backward", blocks_of({table(held_table(devices))})}};
}

}  // namespace

Json page_data(const Record& record) {
  Json data = {{"title", record.title}, {"sections", Json::array()}};
  const auto add = [&](const char* title, const Json& blocks) {
    if (!blocks.empty()) data["sections"].push_back({{"title", title}, {"blocks", blocks}});
  };
  Json facts = {{"kind", "facts"}, {"command", record.command_line}, {"facts", Json::array()}};
  for (const auto& [name, words] : record.facts) facts["facts"].push_back({name, words});
  using Kind = Record::Kind;
  add(record.kind == Kind::run ? "The run" : record.kind == Kind::plan ? "The plan" : "The runs", Json::array({facts}));
  const Sections sections = record.kind == Kind::run            ? run_sections(record)
                            : record.kind == Kind::plan         ? plan_sections(record)
                            : record.kind == Kind::reproduction ? reproduction_sections(record)
                                                                : comparison_sections(record);
  for (const auto& [title, blocks] : sections) add(title, blocks);
  return data;
}

std::string page_of(const Json& data) {
  constexpr std::string_view kPlace = "{{record}}";
  const std::string_view whole = page_template();
  // Bytes that are not UTF-8 become U+FFFD; "<" is escaped so that no text can end the element.
  const std::string text = json_text(data);
  const size_t at = whole.find(kPlace);
  std::string html(whole.substr(0, at));
  for (const char c : text) html.append(c == '<' ? "\\u003c" : std::string_view(&c, 1));
  return html.append(whole.substr(at + kPlace.size()));
}

std::string page(const Record& record) { return page_of(page_data(record)); }

void write_page_data(const std::string& path, const Json& data) {
  write_output_file("--report", path, [&](std::ostream& file) { file << page_of(data); });
}

void write_page(const std::string& path, const Record& record) { write_page_data(path, page_data(record)); }

}  // namespace vitrine::tools::html
