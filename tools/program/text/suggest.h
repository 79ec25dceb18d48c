// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace vitrine::tools {

/// The known words that `word` most likely means ("a or b"): those that it is a prefix of, otherwise those with the
/// fewest typing errors (two exchanged letters are one). Empty if none is close.
std::string nearest_word(const std::string& word, const std::vector<std::string>& known);

/// "; did you mean WORD?", or nothing.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

}  // namespace vitrine::tools
