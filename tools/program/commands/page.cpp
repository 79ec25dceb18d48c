// SPDX-License-Identifier: Apache-2.0
#include "tools/program/render/html/page.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "tools/program/commands/commands.h"
#include "tools/program/flags/setting.h"
#include "tools/program/learn/lessons.h"
#include "tools/program/page/planner_page.h"
#include "tools/program/text/output_file.h"

namespace vitrine::tools {

namespace {

// The settings that the page has controls for, in their order.
constexpr const char* kControls[] = {"--model",      "--mode",      "--devices",    "--device-memory",
                                     "--batch-size", "--split",     "--accumulate", "--recompute-segments",
                                     "--precision",  "--optimizer", "--workspace"};

/// [{"flag", "help", "words", "value"}]: what planner.html makes controls from.
///   words  the values, if there are no others      value  the default; null without one
Json controls() {
  Options defaults;
  Json all = Json::array();
  for (const char* flag : kControls) {
    const auto row = std::find_if(setting_table().begin(), setting_table().end(), [&](const SettingRow& r) {
      return r.flag.substr(0, r.flag.find(',')) == flag && (r.commands & kPlan) != 0;
    });
    all.push_back(
        {{"flag", flag}, {"help", row->help}, {"words", row->values.words}, {"value", field_value(*row, defaults)}});
  }
  return all;
}

/// [{"title", "question", "command", "explanation"}]: the lessons whose command is a plan.
Json lessons() {
  Json all = Json::array();
  for (const std::string_view page : lesson_pages()) {
    const Lesson lesson = parse_lesson(page);
    const std::vector<std::string> arguments = lesson.command.arguments();
    if (arguments.empty() || arguments.front() != "plan") continue;
    all.push_back({{"title", fmt::format("Lesson {}: {}", lesson.number, lesson.title)},
                   {"question", plain_text(lesson.question)},
                   {"command", fmt::format("{}", fmt::join(arguments.begin() + 1, arguments.end(), " "))},
                   {"explanation", plain_text(lesson.look_at) + "\n\n" + plain_text(lesson.why)}});
  }
  return all;
}

}  // namespace

int run_page(const Options& options) {
  const Json data = {
      {"title", "What each device of a training step holds"}, {"controls", controls()}, {"lessons", lessons()}};
  const std::string_view planner = planner_page();
  write_output_file("--out", options.page, [&](std::ostream& file) { file << html::page_of(data, planner); });
  return kExitOk;
}

}  // namespace vitrine::tools
