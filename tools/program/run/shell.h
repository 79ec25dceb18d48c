// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace vitrine::tools {

/// Runs a line of the shell, in which `vitrine` is this program. Returns its exit status.
int run_in_shell(const std::string& command);

}  // namespace vitrine::tools
