// SPDX-License-Identifier: Apache-2.0
// vitrine lab: known bugs of data-parallel training, planted in small computations.
#include <cstdio>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "tools/program/commands/commands.h"
#include "tools/program/learn/experiment.h"
#include "tools/program/process/attempts.h"
#include "tools/program/process/interrupt.h"
#include "tools/program/render/html/page.h"
#include "tools/program/render/lab_report.h"
#include "tools/program/render/reports.h"
#include "tools/program/run/run_facts.h"
#include "tools/program/text/output_file.h"

namespace vitrine::tools {
namespace {

void print_results(const std::vector<lab::Result>& results, bool in_full) {
  const Style style = Style::of(STDOUT_FILENO);
  if (!in_full) {
    fmt::print("{}", lab::overview(results, style));
    return;
  }
  for (size_t i = 0; i < results.size(); ++i) fmt::print("{}{}", i > 0 ? "\n" : "", lab::page(results[i], style));
}

/// Whether all experiments show what they state; reports on stderr those that do not.
bool all_as_stated(const std::vector<lab::Result>& results) {
  bool all = true;
  for (const lab::Result& result : results) {
    if (result.as_stated()) continue;
    all = false;
    fmt::print(stderr,
               "vitrine: lab: {}: expected more than {} with the bug and at most {} without it, got {} and {}\n",
               result.experiment->name, lab::format_wrongness(result.experiment->harm),
               lab::format_wrongness(result.experiment->noise), lab::format_wrongness(result.most_planted()),
               lab::format_wrongness(result.most_without()));
  }
  return all;
}

}  // namespace

int run_lab(const Options& options) {
  if (options.lab.list) {
    fmt::print("{}", lab::list_of_experiments(Style::of(STDOUT_FILENO)));
    return kExitOk;
  }
  check_writable("--report", options.report);
  const bool all = options.lab.names.empty();
  std::vector<lab::Result> results;
  for (const std::string& name : all ? lab::experiment_names() : options.lab.names) {
    if (interrupted()) break;
    results.push_back(lab::run(lab::experiment(name)));
  }
  Attempts attempts;
  const bool reported = !options.report.empty() && !results.empty() && attempts.run([&] {
    html::write_page(options.report, lab::results_page(results, interrupted(), command_line(options)));
  });
  if (options.json) {
    print_json(lab::results_json(results, interrupted()));
  } else if (!results.empty()) {
    print_results(results, !all);
    if (reported) fmt::print("\n{}\n", Style::of(STDOUT_FILENO).prose("The report is in " + options.report));
  }
  attempts.rethrow();
  if (interrupted()) return interrupt_status();
  return all_as_stated(results) ? kExitOk : kExitFailure;
}

}  // namespace vitrine::tools
