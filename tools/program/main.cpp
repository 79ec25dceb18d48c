// SPDX-License-Identifier: Apache-2.0
// The program: reads the command line, runs the subcommand, and turns errors into a sentence and an exit status.
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "nn/parallel/engine.h"
#include "runtime/error.h"
#include "tools/program/commands/commands.h"
#include "tools/program/flags/advice.h"
#include "tools/program/run/interrupt.h"
#include "tools/program/run/processes.h"
#include "tools/program/run/warnings.h"
#include "tools/program/text/standard_streams.h"

namespace {

int run(const vitrine::tools::Options& options, vitrine::tools::Processes& processes) {
  using Command = vitrine::tools::Options::Command;
  switch (options.command) {
    case Command::train:
      return vitrine::tools::run_train(options, processes);
    case Command::eval:
      return vitrine::tools::run_eval(options, processes);
    case Command::compare:
      require_alone(processes, "compare");
      return vitrine::tools::run_compare(options);
    case Command::reproduce:
      require_alone(processes, "reproduce");
      return vitrine::tools::run_reproduce(options, processes);
    case Command::plan:
      require_alone(processes, "plan");
      return vitrine::tools::run_plan(options);
    case Command::collectives:
      return vitrine::tools::run_collectives(options, processes);
    case Command::lab:
      require_alone(processes, "lab");
      return vitrine::tools::run_lab(options);
    case Command::info:
    case Command::explain:
    case Command::lesson:
      break;  // need no other process
  }
  return vitrine::tools::run_info(options);
}

int run_program(const std::vector<std::string>& arguments) {
  using namespace vitrine::tools;
  const CommandLine line = parse_command_line(arguments);
  std::fputs(line.output.c_str(), stdout);
  std::fputs(line.error.c_str(), stderr);
  if (!line.options) return line.exit_code;
  install_interrupt_handler();
  Options options = *line.options;
  std::optional<Processes> processes;
  const auto fail = [&](const vitrine::Reason& reason, int status) {
    if (processes) {
      processes->fail(reason, status == kExitUsage);
    } else {
      fmt::print(stderr, "vitrine: {}\n", in_program_words(reason));
    }
    return status;
  };
  try {
    if (options.command == Options::Command::info) return run_info(options);
    if (options.command == Options::Command::explain) return run_explain(options);
    if (options.command == Options::Command::lesson) return run_lesson(options, run_program);
    processes.emplace(options);
    print_warnings(options, file_warnings(options));
    const int status = run(options, *processes);
    processes->close();
    return status;
  } catch (const vitrine::Error& error) {
    return fail(error.reason(), error.kind() == vitrine::ErrorKind::config ? kExitUsage : kExitFailure);
  } catch (const vitrine::SearchStopped&) {
    return fail("interrupted while searching for a configuration that fits; there is no result", interrupt_status());
  } catch (const std::exception& error) {
    return fail(error.what(), kExitFailure);
  }
}

}  // namespace

int main(int argc, char** argv) {
  vitrine::tools::keep_standard_streams();
  const int status = run_program({argv + 1, argv + argc});
  const std::string problem = vitrine::tools::finish_stdout();
  if (problem.empty()) return status;
  fmt::print(stderr, "vitrine: the results could not be written to stdout: {}\n", problem);
  return status == vitrine::tools::kExitOk ? vitrine::tools::kExitFailure : status;
}
