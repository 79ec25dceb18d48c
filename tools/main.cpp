// SPDX-License-Identifier: Apache-2.0
// The program: reads the command line, runs the subcommand, and turns errors into a sentence and an exit status.
#include <cstdio>
#include <exception>

#include <fmt/format.h>

#include "runtime/error.h"
#include "tools/commands.h"
#include "tools/interrupt.h"

namespace {

int run(const vitrine::tools::Options& options) {
  using Command = vitrine::tools::Options::Command;
  switch (options.command) {
    case Command::train:
      return vitrine::tools::run_train(options);
    case Command::eval:
      return vitrine::tools::run_eval(options);
    case Command::compare:
      return vitrine::tools::run_compare(options);
    case Command::collectives:
      return vitrine::tools::run_collectives(options);
    case Command::info:
      break;
  }
  return vitrine::tools::run_info(options);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace vitrine::tools;
  const CommandLine line = parse_command_line({argv + 1, argv + argc});
  std::fputs(line.output.c_str(), stdout);
  std::fputs(line.error.c_str(), stderr);
  if (!line.options) return line.exit_code;
  install_interrupt_handler();
  try {
    return run(*line.options);
  } catch (const vitrine::Error& error) {
    fmt::print(stderr, "vitrine: {}\n", error.what());
    return error.kind() == vitrine::ErrorKind::config ? kExitUsage : kExitFailure;
  } catch (const std::exception& error) {
    fmt::print(stderr, "vitrine: {}\n", error.what());
    return kExitFailure;
  }
}
