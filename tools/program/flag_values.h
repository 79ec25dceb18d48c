// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace vitrine::tools {

/// Checks of option values. Their messages say what was expected and what was given.
CLI::Validator whole_number(int64_t least, int64_t most = std::numeric_limits<int64_t>::max());
/// A number from `least` to `most`; without bounds any number, which other code checks to be finite.
CLI::Validator number();
CLI::Validator number(double least, double most);
CLI::Validator one_of(const std::vector<std::string>& words);

}  // namespace vitrine::tools
