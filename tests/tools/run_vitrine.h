// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/child_process.h"

namespace vitrine::test {

using Arguments = std::vector<std::string>;

/// Both lists, one after the other.
inline Arguments with(Arguments first, const Arguments& more) {
  first.insert(first.end(), more.begin(), more.end());
  return first;
}

/// The vitrine program with these arguments: that of the build, or of the environment variable VITRINE_TEST_PROGRAM,
/// where the test runs elsewhere.
inline Arguments vitrine_command(Arguments arguments) {
  const char* const elsewhere = std::getenv("VITRINE_TEST_PROGRAM");
  arguments.insert(arguments.begin(), elsewhere == nullptr ? VITRINE_PROGRAM : elsewhere);
  return arguments;
}

/// Runs the program to its end.
inline ChildResult run_vitrine(Arguments arguments) {
  return ChildProcess(vitrine_command(std::move(arguments))).wait();
}

}  // namespace vitrine::test
