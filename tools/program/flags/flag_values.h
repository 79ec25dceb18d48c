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
/// A number of at least 0, or above 0, that f32 can hold.
CLI::Validator number_of_at_least_0();
CLI::Validator number_above_0();
/// A number above 0 and below 1, or from 0 (`with_0`) or to 1 (`with_1`).
CLI::Validator fraction(bool with_0, bool with_1);
CLI::Validator one_of(const std::vector<std::string>& words);
/// A word, or a file whose name ends as that of `file` ("FILE.json").
CLI::Validator one_of_or_file(const std::vector<std::string>& words, const std::string& file);

}  // namespace vitrine::tools
