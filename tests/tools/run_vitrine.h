// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/paths.h"

namespace vitrine::test {

using Arguments = std::vector<std::string>;

/// Both lists, one after the other.
inline Arguments with(Arguments first, const Arguments& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

/// The vitrine program with these arguments.
inline Arguments vitrine_command(Arguments arguments) {
  arguments.insert(arguments.begin(), program_path("vitrine"));
  return arguments;
}

/// Runs the program to its end.
inline ChildResult run_vitrine(Arguments arguments) {
  return ChildProcess(vitrine_command(std::move(arguments))).wait();
}

}  // namespace vitrine::test
