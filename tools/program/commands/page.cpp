// SPDX-License-Identifier: Apache-2.0
#include "tools/program/render/html/page.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/text.h"
#include "tools/program/commands/commands.h"
#include "tools/program/flags/setting.h"
#include "tools/program/learn/lessons.h"
#include "tools/program/page/planner_page.h"
#include "tools/program/text/output_file.h"

namespace vitrine::tools {

namespace {

// The settings that the page has controls for, in their order.
constexpr const char* kControls[] = {"--model",      "--mode",      "--devices",           "--device-memory",
                                     "--batch-size", "--split",     "--precision",         "--optimizer",
                                     "--accumulate", "--workspace", "--recompute-segments"};

/// A row of the table by the long name of its flag; null if plan does not have it.
const SettingRow* plan_row(std::string_view flag) {
  const auto row = std::ranges::find_if(setting_table(), [&](const SettingRow& r) {
    const std::vector<std::string> names = split_text(r.flag, ',');
    return (r.commands & kPlan) != 0 && std::ranges::find(names, flag) != names.end();
  });
  return row == setting_table().end() ? nullptr : &*row;
}

/// [{"flag", "help", "words", "value"}]: what planner.html makes controls from.
///   words  the values, if there are no others      value  the default; null without one
Json controls() {
  Options defaults;
  Json all = Json::array();
  for (const char* flag : kControls) {
    const SettingRow* const row = plan_row(flag);
    all.push_back(
        {{"flag", flag}, {"help", row->help}, {"words", row->values.words}, {"value", field_value(*row, defaults)}});
  }
  return all;
}

/// What a lesson's command trains, as flags of plan on GPUs, which need no workspace of a CPU library: the flags that
/// plan has; of a list of schemes or precisions the first.
std::string plan_flags(const std::vector<std::string>& arguments) {
  std::string flags;
  for (size_t i = 1; i < arguments.size(); ++i) {
    std::string flag = arguments[i], value;
    if (i + 1 < arguments.size() && !arguments[i + 1].starts_with("--")) value = arguments[++i];
    if (flag == "--threads-per-device") continue;  // of CPU devices
    if (flag == "--modes" || flag == "--precisions") {
      flag.pop_back();
      value = value.substr(0, value.find(','));
    }
    if (flag == "--devices" && value.starts_with("cpu")) value.replace(0, 3, "cuda");
    if (plan_row(flag) != nullptr)
      flags += fmt::format("{}{}{}{}", flags.empty() ? "" : " ", flag, value.empty() ? "" : " ", value);
  }
  return flags;
}

/// [{"title", "question", "command", "explanation"}]: the lessons whose command trains or plans a model.
Json lessons() {
  Json all = Json::array();
  for (const std::string_view page : lesson_pages()) {
    const Lesson lesson = parse_lesson(page);
    const std::vector<std::string> arguments = lesson.command.arguments();
    if (arguments.empty()) continue;
    std::string question = plain_text(lesson.question);
    if (arguments.front() != "plan")
      question += fmt::format(
          "\n\nHere its memory is planned on GPUs. What is measured needs a run: vitrine lesson {}.", lesson.number);
    all.push_back({{"title", fmt::format("Lesson {}: {}", lesson.number, lesson.title)},
                   {"question", question},
                   {"command", plan_flags(arguments)},
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
