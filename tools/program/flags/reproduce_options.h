// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace vitrine::tools {

struct Options;

/// The flags that only `vitrine reproduce` has.
struct ReproduceOptions {
  std::string out;
  std::string modes = "single,dp,ddp";
  int64_t seeds = 1;
  bool as_published = false;
};

/// The defaults of `vitrine reproduce`: those of the published scripts, apart from what --as-published adds.
Options reproduction_defaults();
/// Adds what --as-published sets, and refuses the flags that it replaces.   app  the subcommand, parsed      throws
/// ConfigError
void resolve_as_published(const CLI::App& app, Options& options);

/// The options of the published runs, with the files, runs and devices of `options`.
Options published_options(const Options& options);

/// A configuration of a reproduction: a mode in a precision.
struct Configuration {
  std::string mode;       // "single", or a scheme
  std::string precision;  // "fp32", "fp16:none", "fp16:dynamic"

  /// "dp fp16:none".
  std::string name() const { return mode + " " + precision; }
};

/// What --modes and --precisions name, mode by mode. "fp16" stands for fp16:dynamic. throws ConfigError.
std::vector<Configuration> configurations(const Options& options);
/// The options of `vitrine train` for a run.
///   devices  the devices of dp and ddp; `single` runs on the first, with the threads and memory of all
Options train_options(const Options& options, const Configuration& configuration,
                      const std::vector<std::string>& devices, uint64_t seed);
/// OUT/runs.json: where the figures of all runs are written.
std::string reproduction_figures_path(const Options& options);
/// "dp-fp16-none", with "-seed3" for other seeds than the first: the name of a run's folder.
std::string folder_name(const Options& options, const Configuration& configuration, uint64_t seed);

}  // namespace vitrine::tools
