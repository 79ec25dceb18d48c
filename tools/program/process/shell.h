// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace vitrine::tools {

/// Runs a line of the shell, in which `vitrine` is this program. Returns its exit status.
int run_in_shell(const std::string& command);

/// A text as one word of such a line, whatever characters it has, in quotes where it needs them.
std::string shell_word(const std::string& text);

}  // namespace vitrine::tools
