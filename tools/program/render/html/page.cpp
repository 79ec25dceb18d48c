// SPDX-License-Identifier: Apache-2.0
#include "tools/program/render/html/page.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "runtime/text.h"
#include "tools/program/record/findings.h"
#include "tools/program/render/report_tables.h"
#include "tools/program/render/reports.h"
#include "tools/program/text/html_text.h"
#include "tools/program/text/json_text.h"
#include "tools/program/text/output_file.h"

namespace vitrine::tools::html {

std::string paragraph(const std::string& text) {
  return text.empty() ? std::string() : fmt::format("<p>{}</p>", escape_html(text));
}

std::string chart(const char* name, size_t run, size_t device) {
  return fmt::format(R"(<div data-chart="{}" data-run="{}" data-device="{}"></div>)", name, run, device);
}

namespace {

constexpr size_t kHoldersShown = 8;

std::string note(const std::string& text) { return fmt::format("<p class=\"soft\">{}</p>", escape_html(text)); }
std::string heading(const std::string& text) { return fmt::format("<h3>{}</h3>", escape_html(text)); }
/// Nothing without content.
std::string fold(const std::string& title, const std::string& content) {
  if (content.empty()) return {};
  return fmt::format("<details><summary>{}</summary>{}</details>", escape_html(title), content);
}

/// A command, broken between its words only.
std::string words_html(const std::string& command) {
  std::string html;
  for (const std::string& word : split_text(command, ' '))
    html += fmt::format("{}<span class=\"word\">{}</span>", html.empty() ? "" : " ", escape_html(word));
  return html;
}

/// Text in which what stands in backquotes is emphasized.
std::string marked(const std::string& text, bool as_commands) {
  std::string html;
  bool inside = false;
  for (const std::string& part : split_text(text, '`')) {
    html += !inside       ? escape_html(part)
            : as_commands ? fmt::format("<code>{}</code>", words_html(part))
                          : fmt::format("<strong>{}</strong>", escape_html(part));
    inside = !inside;
  }
  return html;
}

std::string tables(const std::vector<Table>& all) {
  std::string html;
  for (const Table& table : all) html += table.html();
  return html;
}
std::string table(const std::optional<Table>& table) { return table ? table->html() : std::string(); }

/// The findings of a record, or why there are none.
std::string findings(const Record& record, const std::string& none) {
  std::string items, hint;
  for (const Finding& finding : record.findings) {
    const std::string cost = describe_cost(finding);
    items += fmt::format("<li class=\"{}\">{}{}</li>", severity_of(finding),
                         cost.empty() ? cost : fmt::format("<span class=\"severity\">{}</span>", escape_html(cost)),
                         marked(fmt::format("{} {}", finding.text, finding.remedy), true));
    if (finding.cost) hint = note(describe_severities());
  }
  if (items.empty()) items = fmt::format("<li>{}</li>", escape_html(none));
  return fmt::format("<ul class=\"findings\">{}</ul>{}", items, hint);
}

std::string memory_section(const TrainingRecord& record) {
  const std::vector<DeviceRecord>& devices = record.run.devices;
  return paragraph(all_as_planned(devices)
                       ? "Planned and measured are equal to the byte, on every device and in every category."
                       : "Planned and measured differ: the run did not cover the whole workload of the plan, or an "
                         "error ended it early.") +
         chart("peaks") + "<div class=\"side\">" + tables(memory_tables(devices)) + "</div>" + chart("difference") +
         chart("outside") + note(describe_outside(devices, record.processes));
}

/// Charts over time show this process's devices only.
std::string which_devices(const Record& record) {
  return record.processes == 1 ? std::string()
                               : " The chart shows the devices of rank 0; the tables have those of all processes.";
}

/// The largest blocks at the peak.
Table peak_holders(const MemoryTimeline& timeline) {
  std::vector<const HeldBlock*> held;
  for (const HeldBlock& block : timeline.blocks) {
    if (timeline.holds_at_peak(block)) held.push_back(&block);
  }
  std::ranges::stable_sort(held, std::ranges::greater(), &HeldBlock::bytes);
  Table table({{"tensor", Table::Align::left},
               {"bytes"},
               {"category", Table::Align::left},
               {"layer", Table::Align::left},
               {"allocated in", Table::Align::left}});
  int64_t rest = 0;
  for (size_t i = 0; i < held.size(); ++i) {
    const HeldBlock& block = *held[i];
    if (i >= kHoldersShown) {
      rest += block.bytes;
    } else {
      table.add_row({block.tensor, short_bytes(block.bytes), category_name(block.category), block.layer,
                     phase_name(block.phase)});
    }
  }
  if (held.size() > kHoldersShown)
    table.add_row({fmt::format("{} more", held.size() - kHoldersShown), short_bytes(rest)});
  return table;
}

bool same_chart(const DeviceRecord& a, const DeviceRecord& b) {
  const auto same = [](const MemoryMoment& x, const MemoryMoment& y) {
    return x.by_category == y.by_category && x.extent_bytes == y.extent_bytes && x.phase == y.phase;
  };
  return a.pool.capacity_bytes == b.pool.capacity_bytes && a.plan.peak_bytes == b.plan.peak_bytes &&
         std::equal(a.memory->moments.begin(), a.memory->moments.end(), b.memory->moments.begin(),
                    b.memory->moments.end(), same);
}

int64_t largest_sum(const MemoryTimeline& timeline) {
  return allocated_bytes(timeline.moments[timeline.peak].by_category);
}
bool has_timeline(const DeviceRecord& device) { return device.memory && device.memory->moments.size() > 1; }

/// A chart for each set of devices that hold the same to the byte.
std::string memory_over_time(const std::vector<DeviceRecord>& devices, const std::string& introduction) {
  std::vector<size_t> shown;
  std::vector<std::string> names;
  bool has_gaps = false;
  for (size_t d = 0; d < devices.size(); ++d) {
    if (!has_timeline(devices[d])) continue;
    shown.push_back(d);
    names.push_back(devices[d].device);
    has_gaps = has_gaps || devices[d].memory->peak_bytes > largest_sum(*devices[d].memory);
  }
  if (shown.empty()) return {};
  std::string html = paragraph(introduction);
  if (has_gaps)
    html += note("Fragmentation: free gaps below the highest block. They count as used until a block fits in.");
  const auto same = [&](size_t a, size_t b) { return same_chart(devices[shown[a]], devices[shown[b]]); };
  for (const DeviceSet& set : group_devices(shown.size(), same)) {
    const size_t device = shown[set.first()];
    html += heading(set.name(names)) + chart("memory", 0, device) +
            fold("What holds it at the peak", peak_holders(*devices[device].memory).html());
  }
  return html;
}

std::string times_section(const RunRecord& run) {
  if (measured_steps(run.devices) == 0) return {};
  return paragraph(fmt::format("Mean of {} after the first. A device's phases add up to its step; {:.2f} % of it is "
                               "named. Hatched: waits.",
                               counted(measured_steps(run.devices), "step"), 100 * named_share(run.devices))) +
         chart("times") + tables(time_tables(run.devices, kDevicesApartOnPage));
}

/// What moves where; nothing for one device alone, or without steps.
std::string movement_section(const RunRecord& run, const std::string& boxes) {
  if (run.devices.size() < 2 || measured_steps(run.devices) == 0) return {};
  return paragraph(fmt::format("One step from top to bottom. Arrows: bytes copied. Boxes: work{}. Samples are those of "
                               "a full batch.",
                               boxes)) +
         chart("movement");
}

std::string streams_section(const TrainingRecord& record) {
  const RunRecord& run = record.run;
  if (std::ranges::none_of(run.devices, [](const DeviceRecord& d) { return d.step.has_value(); })) return {};
  return paragraph(fmt::format("Step {} by device and stream. Hatched: waits, and what for.", run.shown_step + 1) +
                   which_devices(record)) +
         chart("step");
}

std::string communication_section(const RunRecord& run) {
  if (least_late(run.devices) == nullptr) return {};
  return chart("communication") + table(communication_table(run.devices));
}

std::vector<Section> sections_of(const TrainingRecord& record) {
  const RunRecord& run = record.run;
  return {{"Findings", findings(record, no_findings({&run, 1}))},
          {"What moves where", movement_section(run, ", with its mean time")},
          {"Memory: planned and measured", memory_section(record)},
          {"Memory over one step",
           memory_over_time(run.devices, fmt::format("Step {}. The axis is the order in which the host allocates and "
                                                     "frees memory, not time. Bands: phases.",
                                                     run.shown_step + 1) +
                                             which_devices(record))},
          {"Time of a step", times_section(run)},
          {"One step on each stream", streams_section(record)},
          {"Communication", communication_section(run)},
          {"Price of exact mode", table(exact_price_table({&run, 1}))},
          {"Learning", run.epochs.empty() && run.step_losses.empty() ? std::string()
                                                                     : chart("learning") + table(epochs_table(run))}};
}

std::vector<Section> sections_of(const ComparisonRecord& record) {
  if (record.runs.empty()) return {};
  std::string communication, folded;
  bool has_timelines = false;
  for (size_t r = 0; r < record.runs.size(); ++r) {
    const RunRecord& run = record.runs[r];
    folded += fold("Where a step's time went under " + run.name, tables(time_tables(run.devices, kDevicesApartOnPage)));
    has_timelines = has_timelines || std::ranges::any_of(run.devices, has_timeline);
    if (least_late(run.devices) == nullptr) continue;
    communication += heading(run.name) + chart("communication", r) +
                     fold("Figures of " + run.name, table(communication_table(run.devices)));
  }
  const bool equal = std::ranges::all_of(record.runs, [](const RunRecord& run) { return all_as_planned(run.devices); });
  // All schemes run in one process.
  return {
      {"Findings", findings(record, no_findings(record.runs))},
      {"Speed, gradients and memory", chart("speed") + schemes_table(record).html()},
      {"Peak memory", paragraph(equal ? "Peak of each device by category. Planned and measured are equal to the byte."
                                      : "Peak of each device by category, as measured.") +
                          chart("peaks") + chart("outside") + note(describe_outside(record.runs.front().devices, 1))},
      {"Memory over one step",
       has_timelines
           ? paragraph("A steady step. Each phase has the same width under every scheme; the axis is not time.") +
                 chart("overlay")
           : std::string()},
      {"Time of a step", paragraph("A device's phases add up to its step. Hatched: waits.") + chart("times") +
                             scheme_times_table(record.runs).html() + folded},
      {"Communication", communication},
      {"Price of exact mode", table(exact_price_table(record.runs))}};
}

std::vector<Section> sections_of(const PlanRecord& record) {
  const RunRecord& run = record.run;
  const std::vector<DeviceRecord>& devices = run.devices;
  return {
      {"How it would fit", paragraph(record.remedies)},
      {"Findings", findings(record, no_findings(record))},
      {"Peak memory", chart("peaks") + plan_table(devices).html() + chart("difference")},
      {"Memory over one step", memory_over_time(devices,
                                                "A steady step. The axis is the order in which the host allocates and "
                                                "frees memory, not time. Bands: phases.")},
      {"What moves where", movement_section(run, "") + table(movement_table(run))},
      {"Price of exact mode", table(exact_price_table({&run, 1}))},
      {"Recomputation: bytes and time",
       record.frontier ? paragraph("Each dot is a choice of layers that are computed again in backward. No choice lies "
                                   "below the line.") +
                             chart("frontier") + table(frontier_table(record))
                       : std::string()},
      {"Held for backward", table(held_table(devices))}};
}

/// A comparison's run with the timeline of the device that holds most, without blocks: what its chart shows.
Json compared_data(RunRecord run) {
  const DeviceRecord* most = nullptr;
  for (const DeviceRecord& d : run.devices) {
    if (has_timeline(d) && (most == nullptr || largest_sum(*most->memory) < largest_sum(*d.memory))) most = &d;
  }
  for (DeviceRecord& d : run.devices) {
    d.step.reset();
    if (&d != most) d.memory.reset();
  }
  Json data = chart_data(run);
  for (Json& device : data["devices"]) {
    if (!device["memory"].is_null()) device["memory"].erase("blocks");
  }
  return data;
}

Page make_page(const auto& record, Json data) {
  Page page{record.title, story(record), sections_of(record), std::move(data)};
  page.sections.push_back(settings_section(record.command_line, record.facts));
  return page;
}

std::string story_html(const Page& page) {
  return page.story.empty() ? std::string() : fmt::format("<p class=\"story\">{}</p>", marked(page.story, false));
}

/// The links to the sections, and the sections.
std::pair<std::string, std::string> body_of(const Page& page) {
  std::string nav, main;
  size_t part = 0;
  for (const auto& [title, content] : page.sections) {
    if (content.empty()) continue;
    ++part;
    nav += fmt::format("<a href=\"#part{}\">{}</a>", part, escape_html(title));
    main += fmt::format("<section id=\"part{}\"><h2>{}</h2>{}</section>\n", part, escape_html(title), content);
  }
  return {nav, main};
}

/// JSON in an element: "<" is escaped so that no text can end it.
std::string embedded(const Json& data) {
  std::string html;
  for (const char c : json_text(data)) html.append(c == '<' ? "\\u003c" : std::string_view(&c, 1));
  return html;
}

}  // namespace

Section settings_section(const std::string& command, const Facts& facts) {
  std::string rows;
  for (const auto& [name, text] : facts)
    rows += fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td></tr>", escape_html(name), escape_html(text));
  return {
      "Settings and machine",
      fold("Command, settings, machine and versions",
           fmt::format("<code class=\"command\">{}</code><div class=\"scroll text\"><table><tbody>{}</tbody></table>"
                       "</div>",
                       words_html(command), rows))};
}

Page page_of(const TrainingRecord& record, Json json) {
  return make_page(record,
                   {{"kind", "run"}, {"record", std::move(json)}, {"charts", Json::array({chart_data(record.run)})}});
}

Page page_of(const PlanRecord& record, Json json) {
  return make_page(record,
                   {{"kind", "plan"}, {"record", std::move(json)}, {"charts", Json::array({chart_data(record.run)})}});
}

Page page_of(const ComparisonRecord& record, Json json) {
  Json charts = Json::array(), refused = Json::object();
  for (const RunRecord& run : record.runs) charts.push_back(compared_data(run));
  for (const RunRecord& run : record.refused) refused[run.name] = devices_json(run.devices);
  return make_page(record, {{"kind", "comparison"},
                            {"record", std::move(json)},
                            {"charts", std::move(charts)},
                            {"refused", std::move(refused)}});
}

Json page_json(const Page& page) {
  const auto [nav, main] = body_of(page);
  return {{"title", page.title}, {"story", story_html(page)}, {"nav", nav}, {"main", main}, {"data", page.data}};
}

std::string page_html(const Page& page, std::string_view addition) {
  const auto [nav, main] = body_of(page);
  const std::pair<std::string_view, std::string> values[] = {{"{{title}}", escape_html(page.title)},
                                                             {"{{story}}", story_html(page)},
                                                             {"{{nav}}", nav},
                                                             {"{{main}}", main},
                                                             {"{{record}}", embedded(page.data)},
                                                             {"</body>", std::string(addition) + "</body>"}};
  std::string html;
  std::string_view rest = page_template();
  while (!rest.empty()) {
    const auto value = std::ranges::find_if(values, [&](const auto& v) { return rest.starts_with(v.first); });
    if (value == std::end(values)) {
      html += rest.front();
      rest.remove_prefix(1);
    } else {
      html += value->second;
      rest.remove_prefix(value->first.size());
    }
  }
  // Bytes that are not UTF-8, which names of files may have, become U+FFFD.
  return Json::parse(json_text(Json(html))).get<std::string>();
}

void write_page(const std::string& path, const Page& page) {
  write_output_file("--report", path, [&](std::ostream& file) { file << page_html(page); });
}

}  // namespace vitrine::tools::html
