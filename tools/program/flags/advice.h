// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "runtime/reason.h"

namespace vitrine::tools {

/// The program's flag for a setting of the API: "--workspace" for EngineConfig::workspace_bytes; the setting's name in
/// the API if it has no flag.
const char* flag_of(Setting setting);

/// A message of the library in the program's words: each setting becomes its flag. The library does not know the flags.
std::string in_program_words(const Reason& reason);
std::string in_program_words(const std::exception& error);
/// The same for commands that have --modes instead of --mode, and no flags for the axes of a scheme: remedies that need
/// one are left out.
std::string in_words_with_modes(const Reason& reason);

/// A message in which each quote of the command line is short: the middle of what is longer than 300 bytes is omitted.
std::string with_short_quotes(std::string message, const std::vector<std::string>& arguments);

}  // namespace vitrine::tools
