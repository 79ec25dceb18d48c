// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace vitrine::tools {

/// A message of the library in the program's words: each setting of the API that has a flag ("EngineConfig::workspace_bytes") becomes that flag
/// ("--workspace"). The library's layers do not know the flags.
std::string in_program_words(std::string message);

}  // namespace vitrine::tools
