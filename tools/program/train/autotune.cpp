// SPDX-License-Identifier: Apache-2.0
#include "tools/program/train/autotune.h"

#include <cstdio>
#include <filesystem>

#include <fmt/format.h>

#include "nn/atomic_file.h"
#include "nn/json_file.h"
#include "nn/tuned_plans_file.h"
#include "runtime/error.h"
#include "tools/program/run/describe.h"
#include "tools/program/run/warnings.h"

namespace vitrine::tools {

namespace {

/// The plans of the file that --autotune names; nothing if there is no file yet.
std::optional<TunedPlans> read_file(const std::string& path) {
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return std::nullopt;
  try {
    return parse_tuned_plans(path, read_text_file(path));
  } catch (const DataError&) {
    rethrow_with_prefix(std::current_exception(), "--autotune ");
  }
}

void write_file(const std::string& path, const TunedPlans& plans) {
  try {
    AtomicFile file(path);
    file.write(tuned_plans_json(plans, 1) + "\n");
    file.commit();
  } catch (const DataError&) {
    rethrow_with_prefix(std::current_exception(), "--autotune ");
  }
}

}  // namespace

void check_autotune(const Options& options, const std::vector<DeviceId>& devices) {
  if (!options.autotune || devices.front().backend == Backend::cuda) return;
  throw ConfigError("--autotune has nothing to time on CPU devices; leave it out, or use cuda devices");
}

Autotune resolve_autotune(const Options& options, const Processes& processes) {
  Autotune autotune;
  autotune.enabled = options.autotune.has_value();
  if (!autotune.enabled || !processes.leads()) return autotune;
  std::optional<TunedPlans> known = stored_plans(options);
  if (!known) known = read_file(*options.autotune);
  if (known) autotune.known = std::make_shared<const TunedPlans>(std::move(*known));
  return autotune;
}

void conclude_autotune(const Options& options, const Engine& engine, const std::optional<Resumed>& resumed,
                       const Processes& processes) {
  const std::shared_ptr<const TunedPlans>& plans = engine.facts().tuned_plans;
  if (!plans || !processes.leads()) return;
  std::vector<std::string> warnings = engine.facts().autotune.warnings;
  if (resumed && resumed->state.plans && resumed->state.plans != *plans) {
    warnings.push_back(
        resumed->folder +
        " has other plans than this run uses, so its results may differ from an uninterrupted run by rounding");
  }
  for (std::string& warning : warnings) warning.insert(0, "--autotune: ");
  print_warnings(options, warnings);
  fmt::print(stderr, "vitrine: --autotune: {}\n", describe_autotune(engine));
  std::fflush(stderr);
  const std::string& path = *options.autotune;
  if (!path.empty() && read_file(path) != *plans) write_file(path, *plans);
}

}  // namespace vitrine::tools
