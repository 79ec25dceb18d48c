// SPDX-License-Identifier: Apache-2.0
#include "tools/program/run/warnings.h"

#include <algorithm>
#include <cstdio>

#include <fmt/ranges.h>
#include <unistd.h>

#include "runtime/gpu_info.h"
#include "runtime/text.h"
#include "runtime/units.h"
#include "tools/program/flags/advice.h"
#include "tools/program/run/describe.h"
#include "tools/program/text/tables.h"

namespace vitrine::tools {
namespace {

constexpr size_t kShortagesNamed = 4;

/// An option that names a file, and the endings that fit the format.
struct OutputFile {
  const char* option;
  const std::string& path;
  std::vector<std::string> endings;  // the usual one first
  const char* format;
};

/// ".pt" of "a/b.pt"; empty without one.
std::string ending_of(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  const size_t dot = name.rfind('.');
  return dot == std::string::npos || dot == 0 ? std::string() : name.substr(dot);
}

}  // namespace

std::vector<std::string> file_warnings(const Options& options) {
  std::vector<std::string> warnings;
  for (const OutputFile& file :
       {OutputFile{"--save", options.save, {".safetensors"}, "safetensors, which torch.load does not read"},
        {"--report", options.report, {".html", ".htm"}, "HTML"},
        {"--trace", options.trace, {".json"}, "JSON"},
        {"--memory-history", options.memory_history, {".json"}, "JSON"},
        {"--save-logits", options.save_logits, {".npy"}, "NumPy's npy"}}) {
    const std::string ending = ending_of(file.path);
    if (ending.empty() || std::find(file.endings.begin(), file.endings.end(), ending) != file.endings.end()) continue;
    warnings.push_back(fmt::format("{} {}: the format written is {}, whatever the extension; name it {}{}", file.option,
                                   file.path, file.format, file.path.substr(0, file.path.size() - ending.size()),
                                   file.endings.front()));
  }
  return warnings;
}

std::vector<std::string> class_warnings(const Dataset& all, const Dataset& used) {
  constexpr size_t kNamed = 8;
  std::vector<std::string> warnings;
  const auto empty_of = [](const Dataset& set) {
    std::vector<std::string> empty;
    const std::vector<int64_t> counts = class_counts(set);
    for (size_t c = 0; c < counts.size(); ++c) {
      if (counts[c] == 0) empty.push_back(excerpt(set.class_names[c]));
    }
    return empty;
  };
  // A set of fewer samples than classes has empty ones anyway.
  const auto possible = [](const Dataset& set) { return static_cast<size_t>(std::min(set.size(), set.classes)); };
  const auto classes = static_cast<size_t>(all.classes);
  const std::vector<std::string> empty = empty_of(all);
  if (classes - empty.size() < possible(all)) {
    const size_t named = std::min(kNamed, empty.size());
    warnings.push_back(fmt::format("{}: {} of {} classes {} no sample: {}{}{}", all.name, empty.size(), classes,
                                   empty.size() == 1 ? "has" : "have",
                                   fmt::join(empty.begin(), empty.begin() + static_cast<ptrdiff_t>(named), ", "),
                                   named < empty.size() ? fmt::format(" and {} more", empty.size() - named) : "",
                                   empty.front() == "0" ? "; if the labels start at 1, subtract 1 from them" : ""));
  }
  const size_t found = classes - empty_of(used).size();
  if (used.size() == all.size() || found >= possible(used) || found == classes - empty.size()) return warnings;
  size_t runs = 1;  // of equal labels
  for (int64_t i = 1; i < used.size(); ++i) runs += used.label(i) != used.label(i - 1) ? 1 : 0;
  if (runs == found) {
    warnings.push_back(
        fmt::format("--limit-samples {}: the first images of {} are sorted by class and have {} of {} classes; shuffle "
                    "the files, or "
                    "use more images",
                    used.size(), all.name, found, classes));
  }
  return warnings;
}

std::vector<std::string> batch_warnings(const Options& options, const Job& job) {
  const int64_t samples = job.data.train.size();
  if (options.batch_size <= samples || options.drop_last || job.model.targets_per_sample > 1) return {};
  const char* const plural = samples == 1 ? "" : "s";
  return {fmt::format(
      "--batch-size {}: the training set has {} image{}, so every step has {} sample{}, and an epoch is one step",
      options.batch_size, format_count(samples), plural, format_count(samples), plural)};
}

std::vector<std::string> workspace_warnings(const DevicePlan& plan) {
  const WorkspacePlan& workspace = plan.workspace;
  std::vector<std::string> warnings;
  if (!workspace.unknown.empty() && cuda_device_count() > 0) {
    warnings.push_back(fmt::format("the workspace is {}, because cuDNN could not be asked what convolutions need: {}",
                                   format_bytes(workspace.bytes), in_program_words(workspace.unknown)));
  }
  if (workspace.shortages.empty()) return warnings;
  std::string text = fmt::format("the workspace is {}, all that fits, so {} operation{} slower than with more memory:",
                                 format_bytes(workspace.bytes), workspace.shortages.size(),
                                 workspace.shortages.size() == 1 ? " is" : "s are");
  for (size_t i = 0; i < std::min(kShortagesNamed, workspace.shortages.size()); ++i) {
    const WorkspaceShortage& shortage = workspace.shortages[i];
    text += fmt::format("\n  {}: the best algorithm needs {}", shortage.operation, format_bytes(shortage.needed_bytes));
  }
  if (workspace.shortages.size() > kShortagesNamed)
    text += fmt::format("\n  and {} more", workspace.shortages.size() - kShortagesNamed);
  warnings.push_back(std::move(text));
  return warnings;
}

std::vector<std::string> idle_device_warnings(const BatchPlan& batch) {
  const auto devices = static_cast<int>(batch.sizes.front().size());
  for (int d = 0; d < devices; ++d) {
    if (batch.device_samples(d) == 0)
      return {fmt::format("a device gets no samples: the batch of {} is split as {}", batch.batch_size,
                          describe_batch(batch))};
  }
  return {};
}

void print_warnings(const Options& options, const std::vector<std::string>& warnings) {
  if (options.quiet) return;
  const Style style = Style::of(STDERR_FILENO);
  for (const std::string& warning : warnings) fmt::print(stderr, "{}\n", style.prose("vitrine: warning: " + warning));
}

void print_device_warnings(const Options& options, const DeviceGroup& devices) {
  const bool first_here = !options.quiet || options.local_rank == 0;
  for (const std::string& warning : first_here ? devices.warnings() : std::vector<std::string>{}) {
    fmt::print(stderr, "vitrine: warning: {}{}\n",
               options.quiet ? fmt::format("rank {}: ", devices.process()) : std::string(), warning);
  }
}

}  // namespace vitrine::tools
