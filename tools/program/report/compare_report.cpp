// SPDX-License-Identifier: Apache-2.0
#include "tools/program/report/compare_report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/program/report/html.h"
#include "tools/program/report/palette.h"
#include "tools/program/report/scale.h"
#include "tools/program/report/sections.h"
#include "tools/program/tables.h"

namespace vitrine::tools {

namespace {

using namespace html;

// A difference below this share is no difference.
constexpr double kDiffers = 0.03;

int64_t fullest_bytes(const SchemeFigures& scheme) {
  int64_t bytes = 0;
  for (const DeviceFigures& d : scheme.figures.figures) bytes = std::max(bytes, d.pool.peak_bytes);
  return bytes;
}

/// For each scheme a heading and its bars, all on one scale.
template <class Bars>
std::string bars_by_scheme(const std::vector<SchemeFigures>& schemes, const char* what, double largest, const Bars& bars_of) {
  std::string html;
  for (const SchemeFigures& scheme : schemes) {
    const std::vector<Bar> bars = bars_of(scheme);
    html +=
        "<h3>" + escape(scheme.name) + "</h3>\n<figure>" + stacked_bars(fmt::format("{} under {}", what, scheme.name), bars, largest) + "</figure>\n";
  }
  return html;
}

std::string speed_section(const CompareReport& report) {
  HtmlTable table({"", "samples/s, median of rounds", "against the first", "skipped steps", "gradient difference", "samples of each device"});
  std::vector<Bar> bars;
  double largest = 0;
  const double first = report.schemes.front().rates.median();
  for (const SchemeFigures& s : report.schemes) {
    const double median = s.rates.median();
    const std::string rate = s.rates.str();
    bars.push_back({s.name, {{rate, phase_paint(Phase::forward).css_class, median, "samples/s"}}, rate + " samples/s"});
    largest = std::max(largest, median);
    table.add_row({s.name, rate, first > 0 ? fmt::format("{:.2f}", median / first) : "–", format_count(s.skipped_steps),
                   std::isfinite(s.gradient_difference) ? fmt::format("{:.1e}", s.gradient_difference) : "overflow", s.batch});
  }
  return "<figure>" + stacked_bars("Samples per second under each scheme", bars, largest) + "</figure>\n" + table.str() +
         paragraph(report.rounding, "soft");
}

std::string memory_by_scheme(const CompareReport& report) {
  double largest = 0;
  std::vector<Bar> all;
  const auto bars_of = [](const SchemeFigures& scheme) {
    std::vector<Bar> bars;
    for (const DeviceFigures& d : scheme.figures.figures) bars.push_back(memory_bar(d.device, d.pool.peak_by_category));
    return bars;
  };
  HtmlTable table({"scheme", "device", "samples", "peak", "planned", "reached in", "outside the pool"});
  bool equal = true;
  for (const SchemeFigures& scheme : report.schemes) {
    largest = std::max(largest, static_cast<double>(fullest_bytes(scheme)));
    for (const Bar& bar : bars_of(scheme)) all.push_back(bar);
    for (const DeviceFigures& d : scheme.figures.figures) {
      const bool as_planned = d.pool.peak_by_category == d.plan.peak_by_category;
      equal = equal && as_planned;
      table.add_row({&d == &scheme.figures.figures.front() ? scheme.name : "", d.device, format_count(d.samples_per_step),
                     short_bytes(d.pool.peak_bytes), as_planned ? "the same" : short_bytes(d.plan.peak_bytes),
                     fmt::format("{} {}", phase_name(d.pool.peak_phase), d.pool.peak_layer), short_bytes(d.outside_bytes)});
    }
  }
  return paragraph(equal ? "Peak of each device by category. Planned and measured are equal to the byte."
                         : "Peak of each device by category, as measured.") +
         legend(all) + bars_by_scheme(report.schemes, "Peak memory of each device by category", largest, bars_of) + table.str() +
         paragraph(report.outside, "soft");
}

std::string time_by_scheme(const CompareReport& report) {
  double largest = 0;
  std::vector<Bar> all;
  const auto bars_of = [](const SchemeFigures& scheme) {
    std::vector<Bar> bars;
    for (const PhaseTable& t : scheme.figures.tables) bars.push_back(time_bar(scheme.figures.figures[static_cast<size_t>(t.ordinal)].device, t));
    return bars;
  };
  for (const SchemeFigures& scheme : report.schemes) {
    for (const PhaseTable& t : scheme.figures.tables)
      largest = std::max(largest, t.wall_seconds / static_cast<double>(std::max<int64_t>(1, t.steps)));
    for (const Bar& bar : bars_of(scheme)) all.push_back(bar);
  }
  std::string tables;
  for (const SchemeFigures& scheme : report.schemes) {
    std::vector<std::string> names;
    for (const DeviceFigures& d : scheme.figures.figures) names.push_back(d.device);
    tables += folding("Where a step's time went under " + scheme.name, time_tables(names, scheme.figures.tables));
  }
  return paragraph("Each device's phases add up to its step's wall time. Hatched: waits, by what they waited for.") + time_legend(all) +
         bars_by_scheme(report.schemes, "Time of a step by phase", largest, bars_of) + tables;
}

std::string communication_by_scheme(const CompareReport& report) {
  std::string html;
  for (const SchemeFigures& scheme : report.schemes) {
    std::vector<std::string> names;
    for (const DeviceFigures& d : scheme.figures.figures) names.push_back(d.device);
    const std::string section = communication_section(names, scheme.figures.communication);
    if (!section.empty()) html += "<h3>" + escape(scheme.name) + "</h3>\n" + section;
  }
  return html;
}

/// What schemes differ in, and what tells them apart.
std::vector<Finding> all_findings(const std::vector<SchemeFigures>& schemes) {
  std::vector<Finding> all = compare_findings(schemes);
  for (const SchemeFigures& scheme : schemes) {
    for (const auto find : {uneven_memory, idle_device, waits_for_peers, exposed_communication}) {
      if (const auto finding = find(scheme.figures)) all.push_back({scheme.name + ": " + finding->text, finding->remedy});
    }
  }
  return all;
}

}  // namespace

double Rates::median() const {
  if (rounds.empty()) return 0;
  std::vector<double> sorted = rounds;
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

double Rates::least() const { return rounds.empty() ? 0 : *std::min_element(rounds.begin(), rounds.end()); }
double Rates::most() const { return rounds.empty() ? 0 : *std::max_element(rounds.begin(), rounds.end()); }

std::string Rates::str() const {
  const std::string text = format_count(std::llround(median()));
  return rounds.size() < 2 || median() <= 0 ? text : fmt::format("{} ±{:.0f} %", text, (most() - least()) / 2 / median() * 100);
}

bool is_faster(const Rates& fast, const Rates& slow) {
  if (fast.rounds.size() < 2 || slow.rounds.size() < 2) return false;
  return fast.least() > slow.most() && fast.median() > slow.median() * (1 + kDiffers);
}

std::optional<Finding> compare_speed(const std::vector<SchemeFigures>& schemes) {
  if (schemes.size() < 2) return std::nullopt;
  const auto by_speed = [](const SchemeFigures& a, const SchemeFigures& b) { return a.rates.median() < b.rates.median(); };
  const auto [slowest, fastest] = std::minmax_element(schemes.begin(), schemes.end(), by_speed);
  const size_t rounds = fastest->rates.rounds.size();
  if (rounds < 2) return Finding{"Speeds are those of one round, which does not tell differences from noise.", "`--rounds 5` does."};
  if (!is_faster(fastest->rates, slowest->rates)) {
    return Finding{fmt::format("The schemes' speeds are within noise: medians from {} to {} samples/s, single rounds from {} to {}.",
                               format_count(std::llround(slowest->rates.median())), format_count(std::llround(fastest->rates.median())),
                               format_count(std::llround(slowest->rates.least())), format_count(std::llround(fastest->rates.most()))),
                   fmt::format("`--rounds {}` or more `--steps` tell smaller differences.", rounds * 2)};
  }
  std::string text = fmt::format("{} is fastest: {} samples/s (median of {} rounds, {} to {}), {:.2f} times {}.", fastest->name,
                                 format_count(std::llround(fastest->rates.median())), rounds, format_count(std::llround(fastest->rates.least())),
                                 format_count(std::llround(fastest->rates.most())), fastest->rates.median() / slowest->rates.median(), slowest->name);
  std::vector<std::string> tied;
  for (const SchemeFigures& scheme : schemes) {
    if (&scheme != &*fastest && !is_faster(fastest->rates, scheme.rates)) tied.push_back(scheme.name);
  }
  if (!tied.empty()) text += fmt::format(" Within noise of it: {}.", fmt::join(tied, ", "));
  return Finding{text, {}};
}

std::vector<Finding> compare_findings(const std::vector<SchemeFigures>& schemes) {
  std::vector<Finding> all;
  if (schemes.size() < 2) return all;
  if (auto speed = compare_speed(schemes)) all.push_back(std::move(*speed));
  const auto by_memory = [](const SchemeFigures& a, const SchemeFigures& b) { return fullest_bytes(a) < fullest_bytes(b); };
  const auto [least, most] = std::minmax_element(schemes.begin(), schemes.end(), by_memory);
  const int64_t less = fullest_bytes(*most) - fullest_bytes(*least);
  if (static_cast<double>(less) > kDiffers * static_cast<double>(fullest_bytes(*most))) {
    all.push_back({fmt::format("{} leaves most room: its fullest device holds {}, {} less than that of {}.", least->name,
                               short_bytes(fullest_bytes(*least)), short_bytes(less), most->name),
                   {}});
  }
  return all;
}

Page compare_page(const CompareReport& report) {
  Page page(report.title);
  page.add_section("The runs", facts_section(report.command_line, report.facts));
  if (report.schemes.empty()) return page;
  page.add_section("Findings", findings_section(all_findings(report.schemes)));
  page.add_section("Speed and gradients", speed_section(report));
  page.add_section("Peak memory", memory_by_scheme(report));
  page.add_section("Time of a step", time_by_scheme(report));
  page.add_section("Communication", communication_by_scheme(report));
  return page;
}

}  // namespace vitrine::tools
