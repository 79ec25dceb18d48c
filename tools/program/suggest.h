// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace vitrine::tools {

/// The known word that was most likely meant by `word`: one that it begins, if there is only one, else the one with the fewest typing errors (two
/// letters exchanged are one). Empty when none is near.
std::string nearest_word(const std::string& word, const std::vector<std::string>& known);

/// "; did you mean WORD?", or nothing.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

}  // namespace vitrine::tools
