// SPDX-License-Identifier: Apache-2.0
#include "tools/program/render/html/page.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "kernels/conv2d.h"
#include "kernels/libraries.h"
#include "kernels/workspace.h"
#include "nn/parallel/plan/memory_plan.h"
#include "runtime/text.h"
#include "tools/program/commands/commands.h"
#include "tools/program/flags/setting.h"
#include "tools/program/learn/lessons.h"
#include "tools/program/page/planner_page.h"
#include "tools/program/record/machine.h"
#include "tools/program/run/run.h"
#include "tools/program/text/output_file.h"
#include "vitrine_version.h"

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
  Json all = Json::array();
  for (const char* flag : kControls) {
    const SettingRow* const row = plan_row(flag);
    all.push_back(
        {{"flag", flag}, {"help", row->help}, {"words", row->values.words}, {"value", row->field.json(Options{})}});
  }
  return all;
}

/// The arguments of a command that is started in several processes, with their number and a GPU for each: of "mpirun
/// -np 2 sh -c '...; $freeze vitrine train --model lenet5'".
std::vector<std::string> arguments_of_processes(const std::string& line) {
  std::vector<std::string> arguments;
  std::string previous, processes = "1";
  bool of_program = false;
  for (const std::string& word : split_text(line, ' ')) {
    if (of_program) arguments.push_back(word.substr(0, word.find('\'')));
    if (previous == "-np") processes = word;
    of_program = of_program || word == "vitrine";
    previous = word;
  }
  arguments.insert(arguments.end(), {"--devices", "cuda:0", "--processes", processes});
  return arguments;
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

/// [{"title", "question", "command", "explanation"}]: the lessons. A lesson whose command is a loop of the shell has
/// another for the page in a comment.
Json lessons() {
  constexpr std::string_view kMark = "<!-- page: ";
  Json all = Json::array();
  for (const std::string_view page : lesson_pages()) {
    Lesson lesson = parse_lesson(page);
    if (const size_t mark = page.find(kMark); mark != std::string_view::npos)
      lesson.command.line = page.substr(mark + kMark.size(), page.find(" -->", mark) - mark - kMark.size());
    std::vector<std::string> arguments = lesson.command.arguments();
    const bool in_processes = arguments.empty();
    if (in_processes) arguments = arguments_of_processes(lesson.command.line);
    std::string question = plain_text(lesson.question);
    if (in_processes) {
      question += fmt::format(
          "\n\nA plan cannot show it, because nothing runs here: vitrine lesson {} does. This is what the first of the "
          "processes holds and moves.",
          lesson.number);
    } else if (arguments.front() != "plan") {
      question += fmt::format(
          "\n\nHere its memory is planned on GPUs. What is measured needs a run: vitrine lesson {}.", lesson.number);
    }
    all.push_back({{"title", fmt::format("Lesson {}: {}", lesson.number, lesson.title)},
                   {"question", question},
                   {"command", plan_flags(arguments)},
                   {"explanation", plain_text(lesson.look_at) + "\n\n" + plain_text(lesson.why)}});
  }
  return all;
}

/// What this machine's CPU libraries answer, for the page, which cannot ask them: for each of these models in each
/// precision, and by Winograd's algorithm, in micro-batches of these samples on each device, on one thread and on two.
WorkspaceRecord ask_libraries() {
  std::vector<int64_t> few(32), samples(64);
  std::iota(few.begin(), few.end(), 1);
  std::iota(samples.begin(), samples.end(), 1);
  for (int64_t more = 72; more <= 256; more += more < 128 ? 8 : 16) samples.push_back(more);
  std::vector<std::vector<std::string>> computations = {{}, {"--precision", "fp16"}, {"--precision", "bf16"}};
  if (winograd_refusal().empty()) computations.push_back({"--winograd"});
  const LibraryInfo library = kernel_libraries(Backend::cpu).front();
  WorkspaceRecord record(fmt::format("{} {} on {}", library.name, library.version, processor_name()));
  for (const char* model :
       {"mlp", "lenet5", "small-cnn", "resnet18-cifar", "alexnet", "resnet18", "resnet50", "vgg16"}) {
    const std::string_view name = model;
    const bool large = name == "resnet50" || name == "vgg16";
    for (const char* threads : {"1", "2"}) {
      for (const std::vector<std::string>& computation : computations) {
        // Two micro-batches: the second adds to the gradients of the first.
        std::vector<std::string> arguments = {
            "plan", "--model", model, "--devices", "cpu:0", "--threads-per-device", threads, "--accumulate", "2"};
        arguments.insert(arguments.end(), computation.begin(), computation.end());
        const CommandLine line = parse_command_line(arguments);
        const Options& options = *line.options;
        const std::vector<DeviceId> devices = resolve_devices(options, 0);
        const std::unique_ptr<DeviceGroup> group = DeviceGroup::planned(device_group_options(options, devices));
        const Job job = open_job(options);
        EngineConfig config =
            engine_config(options, job, resolve_scheme(options, devices, 1), resolve_precision(options));
        for (const int64_t count : large ? few : samples) {
          config.batch_size = 2 * count;
          record_workspaces(job.model, *group, config, {{config.batch_size}, {count}}, record);
        }
      }
    }
  }
  return record;
}

}  // namespace

int run_page(const Options& options) {
  check_writable("--out", options.page);
  const std::string_view planner = planner_page();
  fmt::print(stderr, "Asking oneDNN for the workspaces of the models; this takes about a minute\n");
  html::Page page;
  page.title = "What each device of a training step holds";
  page.data = {{"version", VITRINE_VERSION},
               {"controls", controls()},
               {"lessons", lessons()},
               {"workspaces", ask_libraries().text()}};
  write_output_file("--out", options.page, [&](std::ostream& file) { file << html::page_html(page, planner); });
  fmt::print("The page is in {}\n", options.page);
  return kExitOk;
}

}  // namespace vitrine::tools
