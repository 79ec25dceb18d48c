// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <ostream>
#include <string>

#include "runtime/error.h"

namespace vitrine::tools {

/// Returns what `action` returns; the message of an error of class `Thrown` gets `prefix` in front.
template <class Thrown, class Action>
auto with_prefix(const std::string& prefix, const Action& action) {
  try {
    return action();
  } catch (const Thrown&) {
    rethrow_with_prefix(std::current_exception(), prefix);
  }
}

/// Writes `content` to the file that an option names, completely or not at all. throws DataError that begins with the
/// option.
void write_output_file(const std::string& option, const std::string& path,
                       const std::function<void(std::ostream&)>& content);

/// Checks that a file can be written there later. throws DataError with the reason.
void check_writable(const std::string& option, const std::string& path);

}  // namespace vitrine::tools
