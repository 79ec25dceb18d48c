// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/support/child_process.h"

namespace vitrine::test {

/// The vitrine program with these arguments.
inline std::vector<std::string> vitrine_command(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), VITRINE_PROGRAM);
  return arguments;
}

/// Runs the program to its end.
inline ChildResult run_vitrine(std::vector<std::string> arguments) { return ChildProcess(vitrine_command(std::move(arguments))).wait(); }

}  // namespace vitrine::test
