// SPDX-License-Identifier: Apache-2.0
#include "tools/program/render/lab_report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tools/program/render/html/charts.h"
#include "tools/program/run/run_facts.h"
#include "tools/program/text/tables.h"
#include "vitrine_version.h"

namespace vitrine::tools::lab {

namespace {

// The axis of charts in text, in powers of ten: from below the rounding of f32 to above every number.
constexpr double kAxisBegin = -8, kAxisEnd = 1;
constexpr double kThinnestShare = 1e-3;  // of the longest bar on a page
constexpr int kLongestBar = 60, kShortestBar = 10, kNumberWidth = 9;

struct Pair {
  std::string label;
  double planted = 0, without = 0;
};

/// Two bars for each label, on a logarithmic axis.
std::string chart(const std::vector<Pair>& pairs, const Style& style) {
  size_t label_width = 0;
  for (const Pair& pair : pairs) label_width = std::max(label_width, pair.label.size());
  const int longest =
      std::clamp(style.width - static_cast<int>(label_width) - 2 - kNumberWidth, kShortestBar, kLongestBar);
  const auto bar = [&](double value, char mark) {
    if (!(value > 0.0)) return std::string();
    const double share = (std::log10(value) - kAxisBegin) / (kAxisEnd - kAxisBegin);
    return std::string(static_cast<size_t>(std::clamp(static_cast<int>(std::lround(share * longest)), 1, longest)),
                       mark);
  };
  const auto line = [&](const std::string& label, const std::string& drawn, double value) {
    return fmt::format("{:<{}}  {}{}{}\n", label, label_width, drawn, drawn.empty() ? "" : " ",
                       format_wrongness(value));
  };
  std::string text =
      style.bold(wrap(fmt::format("Wrongness on a logarithmic axis from {:.0e} to {:.0f}: # with the bug, - without it",
                                  std::pow(10.0, kAxisBegin), std::pow(10.0, kAxisEnd)),
                      style.width));
  text += '\n';
  for (const Pair& pair : pairs) {
    text += line(pair.label, bar(pair.planted, '#'), pair.planted);
    text += line("", bar(pair.without, '-'), pair.without);
  }
  return text;
}

/// The number under each setting.
std::vector<Pair> pairs_of(const Result& result) {
  std::vector<Pair> pairs;
  for (size_t i = 0; i < result.planted.size(); ++i)
    pairs.push_back({result.experiment->settings[i], result.planted[i], result.without[i]});
  return pairs;
}

Table settings_table(const Result& result) {
  Table table({{result.experiment->axis, Table::Align::left}, {"with the bug"}, {"without"}});
  for (const Pair& pair : pairs_of(result))
    table.add_row({pair.label, format_wrongness(pair.planted), format_wrongness(pair.without)});
  table.set_hint(fmt::format("The number is {}.", result.experiment->measures));
  return table;
}

Table overview_table(const std::vector<Result>& results) {
  Table table({{"bug", Table::Align::left}, {"with the bug"}, {"without"}, {"the number is", Table::Align::left}});
  for (const Result& result : results) {
    table.add_row({result.experiment->name, format_wrongness(result.most_planted()),
                   format_wrongness(result.most_without()), result.experiment->measures});
  }
  return table;
}

/// A bar for each number, on a linear axis: what is mere rounding has no width.
Json bars_of(const Result& result) {
  std::vector<html::Bar> bars;
  const double thinnest = kThinnestShare * *std::max_element(result.planted.begin(), result.planted.end());
  const auto add = [&](const std::string& setting, const char* name, const char* paint, double value) {
    const std::string number = format_wrongness(value);
    bars.push_back(
        {fmt::format("{}, {}", setting, name), {{number, paint, value < thinnest ? 0.0 : value, name}}, number});
  };
  for (const Pair& pair : pairs_of(result)) {
    add(pair.label, "with the bug", "exposed", pair.planted);
    add(pair.label, "without it", "optimizer", pair.without);
  }
  Json chart = html::bar_chart(result.experiment->measures, {{"", bars}});
  if (!chart.is_null()) chart["legend"] = false;
  return chart;
}

}  // namespace

std::string format_wrongness(double value) { return value == 0.0 ? "0" : fmt::format("{:.2g}", value); }

std::string overview(const std::vector<Result>& results, const Style& style) {
  std::vector<Pair> pairs;
  for (const Result& result : results)
    pairs.push_back({result.experiment->name, result.most_planted(), result.most_without()});
  Table table = overview_table(results);
  table.set_hint(
      "With the bug: under the last setting. `vitrine lab NAME` shows all settings, how to notice the bug in PyTorch "
      "code, and a link.");
  return fmt::format("{}\n{}", table.str(style), chart(pairs, style));
}

std::string page(const Result& result, const Style& style) {
  const Experiment& e = *result.experiment;
  const auto paragraph = [&](const char* title, const char* text) {
    return wrap(fmt::format("{}: {}", title, text), style.width);
  };
  return fmt::format("{}\n{}\n\n{}\n\n{}\n{}\n{}\n\n{}: {}\n", style.bold(e.name), wrap(e.question, style.width),
                     paragraph("What is wrong", e.bug), settings_table(result).str(style),
                     chart(pairs_of(result), style), paragraph("How to notice it in PyTorch", e.notice),
                     "Where it happened", e.link);
}

std::string list_of_experiments(const Style& style) {
  Table table({{"bug", Table::Align::left}, {"question", Table::Align::left}});
  for (const Experiment& e : experiments()) table.add_row({e.name, e.question});
  return table.str(style);
}

Json results_json(const std::vector<Result>& results, bool interrupted) {
  Json json;
  json["version"] = VITRINE_VERSION;
  json["experiments"] = Json::array();
  for (const Result& result : results) {
    const Experiment& e = *result.experiment;
    Json settings = Json::array();
    for (const Pair& pair : pairs_of(result))
      settings.push_back({{"name", pair.label}, {"planted", pair.planted}, {"without", pair.without}});
    json["experiments"].push_back({{"name", e.name},
                                   {"question", e.question},
                                   {"bug", e.bug},
                                   {"measures", e.measures},
                                   {"planted", result.most_planted()},
                                   {"without", result.most_without()},
                                   {"harm", e.harm},
                                   {"noise", e.noise},
                                   {"as_stated", result.as_stated()},
                                   {"axis", e.axis},
                                   {"settings", settings},
                                   {"notice", e.notice},
                                   {"link", e.link}});
  }
  json["interrupted"] = interrupted;
  return json;
}

Json results_page(const std::vector<Result>& results, const std::string& command) {
  const auto text = [](const std::string& words) { return Json{{"kind", "text"}, {"text", words}}; };
  Json data = {{"title", "Known bugs of data-parallel training"}, {"sections", Json::array()}};
  const auto add = [&](const char* title, Json blocks) {
    data["sections"].push_back({{"title", title}, {"blocks", std::move(blocks)}});
  };
  Json facts = {{"kind", "facts"}, {"command", command}, {"facts", Json::array()}};
  for (const auto& [name, words] : program_facts()) facts["facts"].push_back({name, words});
  facts["facts"].push_back({"computed on", "CPU devices, small models, f32"});
  add("The experiments", Json::array({facts, overview_table(results).json()}));
  for (const Result& result : results) {
    const Experiment& e = *result.experiment;
    add(e.name, Json::array({text(e.question), text(e.bug), bars_of(result), settings_table(result).json(),
                             text(fmt::format("How to notice it in PyTorch: {}", e.notice)),
                             text(fmt::format("Where it happened: {}", e.link))}));
  }
  return data;
}

}  // namespace vitrine::tools::lab
