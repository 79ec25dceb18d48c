// SPDX-License-Identifier: Apache-2.0
#include "tools/program/report/sections.h"

#include <algorithm>

#include <fmt/format.h>

#include "tools/program/report/html.h"
#include "tools/program/report/palette.h"
#include "tools/program/report/scale.h"
#include "tools/program/tables.h"

namespace vitrine::tools::html {

namespace {

// Waits that never took this share of a step are told together.
constexpr double kWaitTold = 0.001;

/// Text whose `...` are code.
std::string with_code(const std::string& text) {
  std::string html;
  bool code = false;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('`', begin), text.size());
    html += escape(text.substr(begin, end - begin));
    if (end < text.size()) html += code ? "</code>" : "<code>";
    code = !code;
    begin = end + 1;
  }
  return html;
}

std::string bytes_or_dash(int64_t bytes) { return bytes == 0 ? "–" : short_bytes(bytes); }

bool as_planned(const DeviceFigures& d) { return d.plan.peak_bytes == d.pool.peak_bytes && d.plan.peak_by_category == d.pool.peak_by_category; }

std::string place(Phase phase, const std::string& layer) {
  return layer.empty() ? phase_name(phase) : fmt::format("{} {}", phase_name(phase), layer);
}

std::string memory_table(const std::vector<DeviceFigures>& figures, bool equal) {
  std::vector<std::string> header = {"at the peak"};
  for (const DeviceFigures& d : figures) {
    header.push_back(d.device);
    if (!equal) header.push_back("planned");
  }
  HtmlTable table(header);
  const auto row = [&](const char* name, bool strong, const auto& measured, const auto& planned) {
    std::vector<std::string> cells = {name};
    for (const DeviceFigures& d : figures) {
      cells.push_back(measured(d));
      if (!equal) cells.push_back(planned(d));
    }
    table.add_row(cells, strong);
  };
  const auto nothing = [](const DeviceFigures&) { return std::string(); };
  for (size_t c = 0; c < static_cast<size_t>(kCategoryCount); ++c) {
    if (std::all_of(figures.begin(), figures.end(),
                    [&](const auto& d) { return d.pool.peak_by_category[c] == 0 && d.plan.peak_by_category[c] == 0; }))
      continue;
    row(
        category_name(static_cast<Category>(c)), false, [&](const DeviceFigures& d) { return bytes_or_dash(d.pool.peak_by_category[c]); },
        [&](const DeviceFigures& d) { return bytes_or_dash(d.plan.peak_by_category[c]); });
  }
  row(
      "peak of the pool", true, [](const DeviceFigures& d) { return short_bytes(d.pool.peak_bytes); },
      [](const DeviceFigures& d) { return short_bytes(d.plan.peak_bytes); });
  row(
      "in bytes, measured", false, [](const DeviceFigures& d) { return format_count(d.pool.peak_bytes); }, nothing);
  row(
      "in bytes, planned", false, [](const DeviceFigures& d) { return format_count(d.plan.peak_bytes); }, nothing);
  row(
      "reached in", false, [](const DeviceFigures& d) { return place(d.pool.peak_phase, d.pool.peak_layer); },
      [](const DeviceFigures& d) { return place(d.plan.peak_phase, d.plan.peak_layer); });
  row(
      "capacity", false, [](const DeviceFigures& d) { return short_bytes(d.pool.capacity_bytes); }, nothing);
  row(
      "outside the pool", false, [](const DeviceFigures& d) { return short_bytes(d.outside_bytes); }, nothing);
  return table.str();
}

/// The row of that cause.
double wait_seconds(const PhaseTable& table, const std::string& cause) {
  for (const WaitRow& wait : table.waits) {
    if (wait.cause == cause) return wait.seconds;
  }
  return 0;
}

/// All causes of waiting, longest first.
std::vector<std::string> causes_of(const std::vector<PhaseTable>& tables) {
  std::vector<WaitRow> sums;
  for (const PhaseTable& table : tables) {
    for (const WaitRow& wait : table.waits) {
      const auto known = std::find_if(sums.begin(), sums.end(), [&](const WaitRow& sum) { return sum.cause == wait.cause; });
      if (known == sums.end()) {
        sums.push_back(wait);
      } else {
        known->seconds += wait.seconds;
      }
    }
  }
  std::stable_sort(sums.begin(), sums.end(), [](const WaitRow& a, const WaitRow& b) { return a.seconds > b.seconds; });
  std::vector<std::string> causes;
  for (const WaitRow& sum : sums) causes.push_back(sum.cause);
  return causes;
}

const PhaseRow* row_of(const PhaseTable& table, Phase phase) {
  const auto found = std::find_if(table.rows.begin(), table.rows.end(), [&](const PhaseRow& row) { return row.phase == phase; });
  return found == table.rows.end() ? nullptr : &*found;
}

std::string time_cell(double seconds, const PhaseTable& table) {
  if (seconds == 0 || table.wall_seconds == 0) return "–";
  return fmt::format("{} ms, {}", format_ms(seconds / static_cast<double>(table.steps)), percent(seconds / table.wall_seconds));
}

/// A row with a cell for each device; `seconds` of its table.
template <class Seconds>
void add_time_row(HtmlTable& table, const std::string& name, const std::vector<PhaseTable>& tables, const Seconds& seconds, bool strong = false) {
  std::vector<std::string> cells = {name};
  bool anywhere = false;
  for (const PhaseTable& t : tables) {
    const double here = seconds(t);
    anywhere = anywhere || here > 0;
    cells.push_back(time_cell(here, t));
  }
  if (anywhere) table.add_row(cells, strong);
}

std::vector<std::string> header_of(const char* first, const std::vector<std::string>& devices) {
  std::vector<std::string> header = {first};
  header.insert(header.end(), devices.begin(), devices.end());
  return header;
}

std::string time_table(const std::vector<std::string>& devices, const std::vector<PhaseTable>& tables) {
  HtmlTable table(header_of("per step", devices));
  for (int p = 0; p < kPhaseCount; ++p) {
    const auto phase = static_cast<Phase>(p);
    if (phase == Phase::wait) continue;
    add_time_row(table, phase_name(phase), tables, [&](const PhaseTable& t) {
      const PhaseRow* row = row_of(t, phase);
      return row != nullptr ? row->seconds : 0.0;
    });
  }
  const std::vector<std::string> causes = causes_of(tables);
  const auto told = [&](const std::string& cause) {
    return std::any_of(tables.begin(), tables.end(), [&](const PhaseTable& t) { return wait_seconds(t, cause) >= kWaitTold * t.wall_seconds; });
  };
  for (const std::string& cause : causes) {
    if (told(cause)) add_time_row(table, "wait for " + cause, tables, [&](const PhaseTable& t) { return wait_seconds(t, cause); });
  }
  add_time_row(table, "other waits", tables, [&](const PhaseTable& t) {
    double seconds = 0;
    for (const std::string& cause : causes) seconds += told(cause) ? 0 : wait_seconds(t, cause);
    return seconds;
  });
  add_time_row(
      table, "step", tables, [](const PhaseTable& t) { return t.wall_seconds; }, true);
  std::vector<std::string> named = {"of which named"};
  for (const PhaseTable& t : tables) named.push_back(fmt::format("{:.2f} %", 100 * t.named_share));
  table.add_row(named);
  return table.str();
}

/// What ran beside other work and cost no time.
std::string hidden_table(const std::vector<std::string>& devices, const std::vector<PhaseTable>& tables) {
  HtmlTable table(header_of("hidden, per step", devices));
  for (int p = 0; p < kPhaseCount; ++p) {
    add_time_row(table, phase_name(static_cast<Phase>(p)), tables, [&](const PhaseTable& t) {
      const PhaseRow* row = row_of(t, static_cast<Phase>(p));
      return row != nullptr ? row->hidden_seconds : 0.0;
    });
  }
  return table.empty() ? std::string() : folding("What ran beside other work and cost no time", table.str());
}

}  // namespace

std::string findings_section(const std::vector<Finding>& findings) {
  if (findings.empty())
    return "<ul class=\"findings\"><li class=\"good\">Nothing stands out: no device waits for long, and none holds much more than the "
           "others.</li></ul>\n";
  std::string html = "<ul class=\"findings\">\n";
  for (const Finding& finding : findings) html += "<li>" + escape(finding.text) + " " + with_code(finding.remedy) + "</li>\n";
  return html + "</ul>\n";
}

Bar memory_bar(const std::string& label, const BytesByCategory& peak) {
  Bar bar{label, {}, {}};
  int64_t total = 0;
  for (size_t c = 0; c < peak.size(); ++c) {
    const auto category = static_cast<Category>(c);
    bar.parts.push_back({category_name(category), category_paint(category).css_class, static_cast<double>(peak[c]), short_bytes(peak[c])});
    total += peak[c];
  }
  bar.total = short_bytes(total);
  return bar;
}

std::string memory_section(const std::vector<DeviceFigures>& figures, const std::string& outside) {
  const bool equal = std::all_of(figures.begin(), figures.end(), as_planned);
  std::string html = paragraph(equal ? "Planned and measured are equal to the byte, on every device and in every category."
                                     : "Planned and measured differ: not the whole workload of the plan was run, or an error cut it short.");
  std::vector<Bar> bars;
  double largest = 0;
  for (const DeviceFigures& d : figures) {
    if (d.plan.peak_bytes > 0) bars.push_back(memory_bar(d.device + ", planned", d.plan.peak_by_category));
    Bar bar = memory_bar(d.device + ", measured", d.pool.peak_by_category);
    bar.parts.push_back({"outside the pool", "hatched", static_cast<double>(d.outside_bytes), short_bytes(d.outside_bytes)});
    if (d.outside_bytes > 0) bar.total += fmt::format(" + {} outside", short_bytes(d.outside_bytes));
    largest = std::max(largest, static_cast<double>(std::max(d.plan.peak_bytes, d.pool.peak_bytes + d.outside_bytes)));
    bars.push_back(bar);
  }
  html += "<figure>" + legend(bars) + stacked_bars("Peak memory of each device, planned and measured, by category", bars, largest) + "</figure>\n";
  return html + memory_table(figures, equal) + paragraph(outside, "soft");
}

Bar time_bar(const std::string& label, const PhaseTable& table) {
  Bar bar{label, {}, {}};
  if (table.steps == 0) return bar;
  const auto steps = static_cast<double>(table.steps);
  for (const PhaseRow& row : table.rows) {
    if (row.phase == Phase::wait) continue;
    bar.parts.push_back({phase_name(row.phase), phase_paint(row.phase).css_class, row.seconds / steps, short_seconds(row.seconds / steps)});
  }
  for (const WaitRow& wait : table.waits)
    bar.parts.push_back({"wait for " + wait.cause, "hatched", wait.seconds / steps, short_seconds(wait.seconds / steps)});
  bar.total = short_seconds(table.wall_seconds / steps);
  return bar;
}

std::string time_legend(const std::vector<Bar>& bars) {
  std::vector<Bar> one_wait = bars;
  for (Bar& bar : one_wait) {
    for (BarPart& part : bar.parts) part.name = part.css_class == "hatched" ? "wait" : part.name;
  }
  return legend(one_wait);
}

std::string time_tables(const std::vector<std::string>& devices, const std::vector<PhaseTable>& tables) {
  return tables.empty() || tables.front().steps == 0 ? std::string() : time_table(devices, tables) + hidden_table(devices, tables);
}

std::string time_section(const std::vector<std::string>& devices, const std::vector<PhaseTable>& tables) {
  if (tables.empty() || tables.front().steps == 0) return {};
  std::vector<Bar> bars;
  double largest = 0, least_named = 1;
  for (const PhaseTable& table : tables) {
    bars.push_back(time_bar(devices[static_cast<size_t>(table.ordinal)], table));
    largest = std::max(largest, table.wall_seconds / static_cast<double>(std::max<int64_t>(1, table.steps)));
    least_named = std::min(least_named, table.named_share);
  }
  std::string html =
      paragraph(fmt::format("Mean of {} steps after the first. Each moment belongs to one phase, so that a device's phases add up to its step's wall "
                            "time; {:.2f} % of it is named. "
                            "Hatched: waits, by what they waited for.",
                            format_count(tables.front().steps), 100 * least_named));
  html += "<figure>" + time_legend(bars) + stacked_bars("Time of a step by phase, for each device", bars, largest) + "</figure>\n";
  return html + time_tables(devices, tables);
}

std::string communication_section(const std::vector<std::string>& devices, const std::vector<CommunicationTable>& tables) {
  if (tables.empty()) return {};
  const CommunicationTable& told = tables[least_late(tables)];
  if (told.rows.empty() || told.steps == 0) return {};
  const auto steps = static_cast<double>(told.steps);
  HtmlTable table({"", "size", "time", "hidden", "exposed", "late peers", "algbw GB/s", "busbw GB/s"});
  std::vector<Bar> bars;
  double largest = 0;
  const auto add = [&](const CommunicationRow& row, const std::string& name, bool sum) {
    const double late = row.late_hidden_seconds + row.late_exposed_seconds;
    table.add_row({name, short_bytes(row.buffer_bytes / told.steps), short_seconds(row.seconds() / steps), short_seconds(row.hidden_seconds / steps),
                   short_seconds(row.exposed_seconds / steps), short_seconds(late / steps), fmt::format("{:.2f}", row.algbw() * 1e-9),
                   row.busbw() > 0 ? fmt::format("{:.2f}", row.busbw() * 1e-9) : "–"},
                  sum);
  };
  for (const CommunicationRow& row : told.rows) {
    add(row, row.name(), false);
    const auto part = [&](const char* name, const char* css_class, double seconds) {
      return BarPart{name, css_class, seconds / steps, short_seconds(seconds / steps)};
    };
    bars.push_back(
        {row.name(),
         {part("hidden", phase_paint(Phase::reduce).css_class, row.hidden_seconds), part("exposed", exposed_paint().css_class, row.exposed_seconds),
          part("late peers, hidden", "hatched-violet", row.late_hidden_seconds),
          part("late peers, exposed", "hatched-red", row.late_exposed_seconds)},
         short_bytes(row.buffer_bytes / told.steps) + ", " + short_seconds(row.seconds() / steps)});
    largest = std::max(largest, (row.seconds() + row.late_hidden_seconds + row.late_exposed_seconds) / steps);
  }
  add(told.total(), "all", true);
  std::string html = paragraph(fmt::format(
      "Of {}, which waited least for its peers. Hidden ran beside forward, backward or update; exposed, while the device could do nothing else.",
      devices[static_cast<size_t>(told.ordinal)]));
  html += "<figure>" + legend(bars) + stacked_bars("Communication hidden and exposed, bucket by bucket", bars, largest) + "</figure>\n";
  return html + table.str();
}

}  // namespace vitrine::tools::html
