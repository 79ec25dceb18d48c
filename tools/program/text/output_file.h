// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <ostream>
#include <string>

namespace vitrine::tools {

/// Writes `content` to the file that an option names, completely or not at all. throws DataError that begins with the
/// option.
void write_output_file(const std::string& option, const std::string& path,
                       const std::function<void(std::ostream&)>& content);

/// Checks that a file can be written there later. throws DataError with the reason.
void check_writable(const std::string& option, const std::string& path);

}  // namespace vitrine::tools
