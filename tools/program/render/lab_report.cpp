// SPDX-License-Identifier: Apache-2.0
#include "tools/program/render/lab_report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "tools/program/run/run_facts.h"
#include "tools/program/text/html_text.h"
#include "tools/program/text/tables.h"
#include "vitrine_version.h"

namespace vitrine::tools::lab {

namespace {

constexpr int kLongestBar = 60, kShortestBar = 10, kNumberWidth = 9;

struct Pair {
  std::string label;
  double planted = 0, without = 0;
};

/// The number under each setting.
std::vector<Pair> pairs_of(const Result& result) {
  std::vector<Pair> pairs;
  for (size_t i = 0; i < result.planted.size(); ++i)
    pairs.push_back({result.experiment->settings[i], result.planted[i], result.without[i]});
  return pairs;
}

/// "||gradient - one device's|| / ||one device's||, by devices".
std::string measured(const Experiment& e) { return fmt::format("{}, by {}", e.measures, e.axis); }

/// Two bars for each setting, on a linear axis, as on the page: what is mere rounding has no bar.
std::string chart(const Result& result, const Style& style) {
  const std::vector<Pair> pairs = pairs_of(result);
  size_t label_width = 0;
  double most = 0;
  for (const Pair& pair : pairs) {
    label_width = std::max(label_width, pair.label.size());
    most = std::max({most, pair.planted, pair.without});
  }
  const int longest =
      std::clamp(style.width - static_cast<int>(label_width) - 2 - kNumberWidth, kShortestBar, kLongestBar);
  std::string text =
      style.bold(wrap(measured(*result.experiment) + ": # with the bug, - without it", style.width)) + "\n";
  const auto line = [&](const std::string& label, char mark, double value) {
    const double share = value / most;  // not a number if all is right
    const auto cells = static_cast<size_t>(share > 0.0 ? std::lround(share * longest) : 0);
    text += fmt::format("{:<{}}  {}{}{}\n", label, label_width, std::string(cells, mark), cells == 0 ? "" : " ",
                        format_wrongness(value));
  };
  for (const Pair& pair : pairs) {
    line(pair.label, '#', pair.planted);
    line("", '-', pair.without);
  }
  return text;
}

Table overview_table(const std::vector<Result>& results) {
  Table table({{"bug", Table::Align::left}, {"with the bug"}, {"without"}, {"the number is", Table::Align::left}});
  for (const Result& result : results) {
    table.add_row({result.experiment->name, format_wrongness(result.most_planted()),
                   format_wrongness(result.most_without()), result.experiment->measures});
  }
  return table;
}

}  // namespace

std::string format_wrongness(double value) { return value == 0.0 ? "0" : fmt::format("{:.2g}", value); }

std::string overview(const std::vector<Result>& results, const Style& style) {
  Table table = overview_table(results);
  table.set_hint(
      "With the bug: under the last setting. `vitrine lab NAME` shows all settings, how to notice the bug in PyTorch "
      "code, and a link.");
  return table.str(style);
}

std::string page(const Result& result, const Style& style) {
  const Experiment& e = *result.experiment;
  const auto paragraph = [&](const char* title, const std::string& text) {
    return wrap(fmt::format("{}: {}", title, text), style.width);
  };
  return fmt::format("{}\n{}\n\n{}\n\n{}\n{}\n\n{}: {}\n", style.bold(e.name), wrap(e.question, style.width),
                     paragraph("What is wrong", e.bug), chart(result, style),
                     paragraph("How to notice it in PyTorch", e.notice), "Where it happened", e.link);
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

html::Page results_page(const std::vector<Result>& results, bool interrupted, const std::string& command) {
  const auto as_stated = std::count_if(results.begin(), results.end(), [](const Result& r) { return r.as_stated(); });
  html::Page page{"Known bugs of data-parallel training",
                  fmt::format("`{}` of {} bugs make the result wrong when planted, and without them it is right.",
                              as_stated, results.size()),
                  {{"The experiments", overview_table(results).html()}},
                  {{"kind", "lab"}, {"record", results_json(results, interrupted)}, {"charts", Json::array()}}};
  for (size_t i = 0; i < results.size(); ++i) {
    const Experiment& e = *results[i].experiment;
    page.sections.push_back(
        {e.name, html::paragraph(e.question) + html::paragraph(e.bug) + html::paragraph(measured(e) + ".") +
                     html::chart("lab", i) + html::paragraph(fmt::format("How to notice it in PyTorch: {}", e.notice)) +
                     fmt::format(R"(<p>Where it happened: <a href="{0}">{0}</a></p>)", escape_html(e.link))});
  }
  Facts facts = program_facts();
  facts.emplace_back("computed on", "CPU devices, small models, f32");
  page.sections.push_back(html::settings_section(command, facts));
  return page;
}

}  // namespace vitrine::tools::lab
