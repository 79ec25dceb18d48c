// SPDX-License-Identifier: Apache-2.0
// The planner of the page, compiled to WebAssembly: planner.html calls plan().
#include <cerrno>
#include <fstream>

#include <emscripten/emscripten.h>
#include <fmt/ranges.h>
#include <sched.h>

#include "kernels/workspace.h"
#include "runtime/units.h"
#include "tools/program/commands/commands.h"
#include "tools/program/flags/advice.h"
#include "tools/program/render/html/page.h"
#include "tools/program/render/reports.h"
#include "tools/program/text/json_text.h"

namespace vitrine::tools {
namespace {

/// What the libraries of a machine have answered.
std::shared_ptr<const WorkspaceRecord>& workspace_record() {
  static std::shared_ptr<const WorkspaceRecord> record = std::make_shared<const WorkspaceRecord>();
  return record;
}

/// What the plan assumes of the machine and of libraries, which cannot be asked here, and what it has from a record;
/// empty if it needs nothing of them.
std::string assumption(const Options& options, const DeviceRecord& device) {
  const WorkspacePlan& workspace = device.plan.workspace;
  const std::string name = device.device.substr(device.device.rfind(' ') + 1);  // after the rank
  const bool on_cpus = parse_device_list(name, 0).front().backend == Backend::cpu;
  std::vector<std::string> sentences;
  if (on_cpus && options.device_memory.empty()) {
    sentences.push_back(fmt::format(
        "The capacity of {} is an assumption: this page does not know the machine's memory. Give --device-memory.",
        format_bytes(device.pool.capacity_bytes)));
  }
  if (!options.workspace && !workspace.unknown.empty()) {
    sentences.push_back(
        fmt::format("The workspace of {} is an assumption: {}. Give --workspace, or run the command on the machine.",
                    format_bytes(workspace.bytes),
                    on_cpus ? workspace.unknown.str() : "this page has no record of what cuDNN asks for"));
  } else if (!options.workspace && on_cpus) {
    sentences.push_back(fmt::format("The workspace of {} is recorded: {} asked for it where this page was written.",
                                    format_bytes(workspace.bytes), workspace_record()->library()));
  }
  if (options.workspace && on_cpus) {
    sentences.push_back(fmt::format(
        "Whether a workspace of {} is enough is not known here: the libraries of the CPU cannot be asked. The program "
        "refuses one that is too small.",
        format_bytes(workspace.bytes)));
  }
  return fmt::format("{}", fmt::join(sentences, "\n"));
}

Json answer(const Json& request) {
  for (const auto& [name, text] : request.at("files").items()) std::ofstream(name) << text.get<std::string>();
  CommandLine line = parse_command_line(request.at("arguments").get<std::vector<std::string>>());
  if (!line.options || line.options->command != Options::Command::plan) return {{"error", line.error + line.output}};
  line.options->workspace_record = workspace_record();
  try {
    const PlanRecord record = plan_record(*line.options, request.at("remedies"));
    const Json json = plan_json(record);
    return {{"json", json_text(json)},
            {"page", html::page_json(html::page_of(record, json))},
            {"assumption", assumption(*line.options, record.run.devices.front())},
            {"fits", all_fit(record.run.devices)},
            {"remedies", record.remedies}};
  } catch (const std::exception& error) {
    return {{"error", in_program_words(error)}};
  }
}

}  // namespace

}  // namespace vitrine::tools

/// Missing in emscripten.
extern "C" int sched_getaffinity(pid_t, size_t, cpu_set_t*) {
  errno = ENOSYS;
  return -1;
}

/// Plans without --workspace on CPU devices use what WorkspaceRecord::text() has told here.
extern "C" EMSCRIPTEN_KEEPALIVE void use_workspaces(const char* text) {
  using vitrine::WorkspaceRecord;
  vitrine::tools::workspace_record() = std::make_shared<const WorkspaceRecord>(WorkspaceRecord::parse(text));
}

/// Plans {"arguments": ["plan", "--model", ...], "files": {"model.json": text}, "remedies": whether to search for what
/// would fit}. Returns {"json": what --json prints, "page": html::page_json(), "assumption": text, "fits", "remedies":
/// text} or {"error": text}; what it returns is valid until the next call.
extern "C" EMSCRIPTEN_KEEPALIVE const char* plan(const char* request) {
  using vitrine::tools::Json;
  static std::string text;
  text = vitrine::tools::json_text(vitrine::tools::answer(Json::parse(request)));
  return text.c_str();
}
