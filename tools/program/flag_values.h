// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace vitrine::tools {

/// Checks of what follows an option, with messages that say what was expected and what was given.
CLI::Validator whole_number(int64_t least, int64_t most = std::numeric_limits<int64_t>::max());
/// A number of `least` to `most`; without them any, whether finite is checked elsewhere.
CLI::Validator number();
CLI::Validator number(double least, double most);
CLI::Validator one_of(const std::vector<std::string>& words);

}  // namespace vitrine::tools
