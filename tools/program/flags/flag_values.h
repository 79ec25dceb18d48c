// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tools/program/flags/setting.h"

/// The ranges of settings.
namespace vitrine::tools {

Values whole_number(int64_t least, int64_t most = std::numeric_limits<int64_t>::max());
Values number(double least, double most);
/// A number of at least 0, or above 0, that f32 can hold.
Values number_of_at_least_0();
Values number_above_0();
/// A number above 0 and below 1, or from 0 (`with_0`) or to 1 (`with_1`).
Values fraction(bool with_0, bool with_1);
/// A size: "512MiB", "8G", "4096" (see parse_bytes()).
Values bytes(int64_t least, int64_t most = std::numeric_limits<int64_t>::max());
Values one_of(const std::vector<std::string>& words);
/// A word, or a file with the extension of `file` ("FILE.json").
Values one_of_or_file(const std::vector<std::string>& words, const std::string& file);
Values number_or_words(Values number, const std::vector<std::string>& words);

}  // namespace vitrine::tools
