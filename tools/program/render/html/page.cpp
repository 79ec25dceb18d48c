// SPDX-License-Identifier: Apache-2.0
#include "tools/program/render/html/page.h"

#include <algorithm>

#include <fmt/format.h>

#include "tools/program/record/findings.h"
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

/// A chart under a heading that says what it shows; null without a chart.
Json titled(const Json& chart) { return chart.is_null() ? chart : Json::array({heading(chart["label"]), chart}); }

/// "cpu:1 to cpu:3, each".
std::string name_of_each(const DeviceSet& set, const std::vector<DeviceRecord>& devices) {
  return set.name(names_of(devices)) + (set.single() ? "" : ", each");
}

/// A bar for all devices with the same peak and capacity; two of them where plan and measurement differ.
std::vector<Bar> memory_bars(const std::vector<DeviceRecord>& devices) {
  std::vector<Bar> bars;
  const auto same = [&](size_t i, size_t j) {
    const DeviceRecord &a = devices[i], &b = devices[j];
    return a.pool.peak_by_category == b.pool.peak_by_category && a.plan.peak_by_category == b.plan.peak_by_category &&
           a.pool.capacity_bytes == b.pool.capacity_bytes;
  };
  for (const DeviceSet& set : group_devices(devices.size(), same)) {
    const DeviceRecord& d = devices[set.first()];
    const std::string name = name_of_each(set, devices);
    if (!d.as_planned() && d.plan.peak_bytes > 0)
      bars.push_back(memory_bar(name + ", planned", d.plan.peak_bytes, d.plan.peak_by_category));
    bars.push_back(memory_bar(d.as_planned() ? name : name + ", measured", d.pool.peak_bytes, d.pool.peak_by_category));
    if (d.pool.capacity_bytes == 0) continue;
    bars.back().capacity = static_cast<double>(d.pool.capacity_bytes);
    bars.back().total += " of " + short_bytes(d.pool.capacity_bytes);
  }
  return bars;
}

/// A bar for all devices with the same memory outside their pools.
std::vector<Bar> outside_bars(const std::vector<DeviceRecord>& devices) {
  std::vector<Bar> bars;
  const auto same = [&](size_t i, size_t j) { return devices[i].outside_bytes == devices[j].outside_bytes; };
  for (const DeviceSet& set : group_devices(devices.size(), same)) {
    const int64_t bytes = devices[set.first()].outside_bytes;
    if (bytes == 0) continue;
    bars.push_back({name_of_each(set, devices) + ", outside the pool",
                    {{"outside the pool", "outside", static_cast<double>(bytes), short_bytes(bytes)}},
                    short_bytes(bytes)});
  }
  return bars;
}

Json memory_section(const Record& record) {
  const std::vector<DeviceRecord>& devices = record.run().devices;
  std::vector<Bar> bars = memory_bars(devices);
  for (Bar& bar : outside_bars(devices)) bars.push_back(std::move(bar));
  return blocks_of({text(all_as_planned(devices)
                             ? "Planned and measured are equal to the byte, on every device and in every category."
                             : "Planned and measured differ: the run did not cover the whole workload of the plan, or "
                               "an error ended it early."),
                    bar_chart("Peak memory of each device by category, and outside the pools", {{"", bars}}),
                    memory_table(devices).json(), titled(difference_chart(devices)),
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
  const bool has_gaps = std::ranges::any_of(charts, [](const Json& chart) { return !chart["extent"].is_null(); });
  return blocks_of(
      {text(introduction),
       has_gaps ? note("Fragmentation: free gaps below the highest block. They count as used until a block fits in.")
                : Json(),
       charts});
}

std::vector<Bar> time_bars(const std::vector<DeviceRecord>& devices) {
  std::vector<Bar> bars;
  for (const DeviceRecord& d : devices) bars.push_back(time_bar(d));
  return bars;
}

Json times_section(const RunRecord& run) {
  if (measured_steps(run.devices) == 0) return {};
  return blocks_of(
      {text(fmt::format(
           "Mean of {} after the first. A device's phases add up to its step; {:.2f} % of it is named. Hatched: waits.",
           counted(measured_steps(run.devices), "step"), 100 * named_share(run.devices))),
       bar_chart("Time of a step by phase, for each device", {{"", time_bars(run.devices)}}),
       tables(time_tables(run.devices, kDevicesApartOnPage))});
}

Json communication_bars(const RunRecord& run) {
  const DeviceRecord* slowest = least_late(run.devices);
  if (slowest == nullptr) return {};
  const CommunicationTable& communication = slowest->communication;
  std::vector<Bar> bars;
  for (const CommunicationRow& row : communication.rows) {
    Bar bar{row.name(),
            {},
            short_bytes(per_step(row.buffer_bytes, communication)) + ", " +
                short_seconds(per_step(row.seconds(), communication))};
    if (row.late_seconds() > 0)
      bar.total += ", late peers " + short_seconds(per_step(row.late_seconds(), communication));
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
  return bar_chart("Communication hidden and exposed, bucket by bucket", {{"", bars}});
}

Curve loss_curve(const RunRecord& run, Curve curve) {
  for (size_t i = 0; i < run.step_losses.size(); ++i)
    curve.points.push_back({static_cast<double>(run.first_step + static_cast<int64_t>(i) + 1), run.step_losses[i]});
  return curve;
}

/// A dot after each epoch that has the value.
Curve epochs_curve(const RunRecord& run, std::optional<double> EpochRecord::*value, Curve curve) {
  curve.dots = true;
  for (const EpochRecord& e : run.epochs) {
    if (e.*value) curve.points.push_back({static_cast<double>(e.last_step), *(e.*value)});
  }
  return curve;
}

Json learning_section(const RunRecord& run) {
  Curve scale{"loss scale", "series4", {}, false, true};
  for (const StepRecord::Change& change : run.steps.loss_scales())
    scale.points.push_back({static_cast<double>(change.step + 1), change.loss_scale});
  if (!scale.points.empty())
    scale.points.push_back(
        {static_cast<double>(run.first_step + std::max<int64_t>(1, static_cast<int64_t>(run.step_losses.size()))),
         scale.points.back().y});
  Json columns = Json::array();
  for (const CurveChart& chart :
       {CurveChart{"Loss over the steps",
                   {loss_curve(run, {"loss of each step", "series1", {}}),
                    epochs_curve(run, &EpochRecord::test_loss, {"test loss", "series2", {}})}},
        CurveChart{"Test accuracy over the epochs",
                   {epochs_curve(run, &EpochRecord::test_accuracy, {"test accuracy", "series3", {}})}},
        CurveChart{"Loss scale over the steps", {scale}, true}}) {
    if (const Json column = titled(curve_chart(chart)); !column.is_null()) columns.push_back(column);
  }
  return blocks_of({Json{{"kind", "pair"}, {"columns", columns}}, table(epochs_table(run))});
}

/// One group of bars for each scheme.
std::vector<BarGroup> bars_by_scheme(const Record& record,
                                     std::vector<Bar> (*bars_of)(const std::vector<DeviceRecord>&)) {
  std::vector<BarGroup> groups;
  for (const RunRecord& run : record.runs) groups.push_back({run.name, bars_of(run.devices)});
  return groups;
}

Json comparison_speed(const Record& record) {
  std::vector<Bar> bars;
  for (const RunRecord& run : record.runs) {
    const std::string rate = run.rates.str();
    bars.push_back({run.name, {{rate, "series1", run.rates.median(), "samples/s"}}, fmt::format("{} samples/s", rate)});
  }
  return blocks_of({bar_chart("Samples per second under each scheme", {{"", bars}}), schemes_table(record).json()});
}

/// What moves where; nothing for one device alone.
Json movement_section(const RunRecord& run, const std::string& boxes) {
  Json movement = movement_chart(run);
  if (movement.is_null()) return movement;
  return blocks_of({text(fmt::format("One step from top to bottom. Arrows: bytes copied. Boxes: work{}. Samples are "
                                     "those of a full batch.",
                                     boxes)),
                    movement});
}

using Sections = std::vector<std::pair<const char*, Json>>;

Sections run_sections(const Record& record) {
  const RunRecord& run = record.run();
  Json steps = step_chart(run.devices);
  if (!steps.is_null()) {
    steps =
        blocks_of({text(fmt::format("Step {} by device and stream. Hatched: waits, and what for.", run.shown_step + 1) +
                        which_devices(record)),
                   steps});
  }
  return {
      {"Findings", blocks_of({findings(record)})},
      {"What moves where", movement_section(run, ", with its mean time")},
      {"Memory: planned and measured", memory_section(record)},
      {"Memory over one step",
       memory_over_time(
           run.devices,
           fmt::format(
               "Step {}. The axis is the order in which the host allocates and frees memory, not time. Bands: phases.",
               run.shown_step + 1) +
               which_devices(record))},
      {"Time of a step", times_section(run)},
      {"One step on each stream", steps},
      {"Communication", blocks_of({communication_bars(run), table(communication_table(run.devices))})},
      {"Price of exact mode", blocks_of({table(exact_price_table(record.runs))})},
      {"Learning", learning_section(run)}};
}

/// Peak memory, times and communication of every run, one group of each for a run.
Sections measurements_sections(const Record& record) {
  std::vector<Json> times = {text("A device's phases add up to its step. Hatched: waits."),
                             bar_chart("Time of a step by phase", bars_by_scheme(record, time_bars)),
                             scheme_times_table(record).json()};
  std::vector<Json> communication;
  for (const RunRecord& run : record.runs) {
    times.push_back(
        fold("Where a step's time went under " + run.name, tables(time_tables(run.devices, kDevicesApartOnPage))));
    const Json bars = communication_bars(run);
    if (bars.is_null()) continue;
    communication.insert(communication.end(),
                         {heading(run.name), bars,
                          fold("Figures of " + run.name, blocks_of({table(communication_table(run.devices))}))});
  }
  std::vector<BarGroup> memory;
  for (const RunRecord& run : record.refused) memory.push_back({run.name + ", does not fit", memory_bars(run.devices)});
  for (BarGroup& group : bars_by_scheme(record, memory_bars)) memory.push_back(std::move(group));
  // All schemes run in one process.
  if (std::vector<Bar> outside = outside_bars(record.runs.front().devices); !outside.empty())
    memory.push_back({"all schemes", std::move(outside)});
  const bool equal = std::ranges::all_of(record.runs, [](const RunRecord& run) { return all_as_planned(run.devices); });
  return {{"Peak memory",
           blocks_of({text(equal ? "Peak of each device by category. Planned and measured are equal to the byte."
                                 : "Peak of each device by category, as measured."),
                      bar_chart("Peak memory of each device by category, and outside the pools", memory),
                      note(describe_outside(record.runs.front().devices, 1))})},
          {"Time of a step", blocks_of(times)},
          {"Communication", blocks_of(communication)},
          {"Price of exact mode", blocks_of({table(exact_price_table(record.runs))})}};
}

Sections comparison_sections(const Record& record) {
  if (record.runs.empty()) return {};
  Sections sections = {{"Findings", blocks_of({findings(record)})},
                       {"Speed, gradients and memory", comparison_speed(record)}};
  Sections measured = measurements_sections(record);
  const Json overlay = titled(memory_overlay(record.runs));
  if (!overlay.is_null()) {
    measured.insert(
        measured.begin() + 1,
        {"Memory over one step",
         blocks_of({text("A steady step. Each phase has the same width under every scheme; the axis is not time."),
                    overlay})});
  }
  sections.insert(sections.end(), measured.begin(), measured.end());
  return sections;
}

Json frontier_section(const Record& record) {
  if (!record.frontier) return {};
  return blocks_of(
      {text("Each dot is a choice of layers that are computed again in backward. No choice lies below the line."),
       frontier_chart(record), table(frontier_table(record))});
}

Sections plan_sections(const Record& record) {
  const std::vector<DeviceRecord>& devices = record.run().devices;
  return {
      {"How it would fit", blocks_of({record.remedies.empty() ? Json() : text(record.remedies)})},
      {"Findings", blocks_of({findings(record)})},
      {"Peak memory", blocks_of({bar_chart("Planned peak of each device, by category", {{"", memory_bars(devices)}}),
                                 plan_table(devices).json(), titled(difference_chart(devices))})},
      {"Memory over one step", memory_over_time(devices,
                                                "A steady step. The axis is the order in which the host allocates and "
                                                "frees memory, not time. Bands: phases.")},
      {"What moves where", blocks_of({movement_section(record.run(), ""), table(movement_table(record.run()))})},
      {"Price of exact mode", blocks_of({table(exact_price_table(record.runs))})},
      {"Recomputation: bytes and time", frontier_section(record)},
      {"Held for backward", blocks_of({table(held_table(devices))})}};
}

}  // namespace

Json settings_section(const std::string& command, const Facts& facts) {
  Json block = {{"kind", "facts"}, {"command", command}, {"facts", Json::array()}};
  for (const auto& [name, words] : facts) block["facts"].push_back({name, words});
  return {{"title", "Settings and machine"},
          {"blocks", Json::array({fold("Command, settings, machine and versions", Json::array({block}))})}};
}

Json page_data(const Record& record) {
  Json data = {{"title", record.title}, {"story", story(record)}, {"sections", Json::array()}};
  using Kind = Record::Kind;
  for (const auto& [title, blocks] : record.kind == Kind::run    ? run_sections(record)
                                     : record.kind == Kind::plan ? plan_sections(record)
                                                                 : comparison_sections(record)) {
    if (!blocks.empty()) data["sections"].push_back({{"title", title}, {"blocks", blocks}});
  }
  data["sections"].push_back(settings_section(record.command_line, record.facts));
  return data;
}

std::string page_of(const Json& data, std::string_view addition) {
  constexpr std::string_view kPlace = "{{record}}";
  const std::string_view whole = page_template();
  // Bytes that are not UTF-8 become U+FFFD; "<" is escaped so that no text can end the element.
  const std::string text = json_text(data);
  const size_t at = whole.find(kPlace);
  std::string html(whole.substr(0, at));
  for (const char c : text) html.append(c == '<' ? "\\u003c" : std::string_view(&c, 1));
  const size_t end = whole.rfind("</body>");
  html.append(whole.substr(at + kPlace.size(), end - at - kPlace.size()));
  return html.append(addition).append(whole.substr(end));
}

std::string page(const Record& record) { return page_of(page_data(record)); }

void write_page_data(const std::string& path, const Json& data) {
  write_output_file("--report", path, [&](std::ostream& file) { file << page_of(data); });
}

void write_page(const std::string& path, const Record& record) { write_page_data(path, page_data(record)); }

}  // namespace vitrine::tools::html
