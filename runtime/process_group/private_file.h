// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

/// Files that contain secrets. Private to runtime/process_group.
namespace vitrine::process_group {

/// throws ConfigError unless the secret is empty or long enough.
void check_secret(std::string_view secret, const char* name);

/// Returns the content of a regular file of at most `most_bytes` that belongs to this user (or root) and that no other
/// user may open; otherwise an empty string, and `problem` gives the cause.
std::string read_private_file(const std::string& path, size_t most_bytes, std::string& problem);
/// Writes or replaces a file that only this user may open, atomically. Returns the problem, or an empty string.
std::string write_private_file(const std::string& path, std::string_view content);

/// Path at which rank 0 stores its address for this user's processes on this machine when it listens on this port of
/// the loopback interface, in a folder of mode 0700, which this function creates. throws CommError if the folder
/// belongs to another user or is accessible to others.
std::string private_address_path(int port);

}  // namespace vitrine::process_group
