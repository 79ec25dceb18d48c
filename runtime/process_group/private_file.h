// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

/// Files that hold secrets. Private to runtime/process_group.
namespace vitrine::process_group {

/// throws ConfigError unless the secret is empty or long enough.
void check_secret(std::string_view secret, const char* name);

/// The file's content if it is a regular one of at most `most_bytes`, this user's (or root's), that no other user may open; else empty, and `problem`
/// says why.
std::string read_private_file(const std::string& path, size_t most_bytes, std::string& problem);
/// Writes a file that only this user may open, whole or not at all; replaces what is there. Returns the problem, or nothing.
std::string write_private_file(const std::string& path, std::string_view content);

/// Where rank 0 leaves its address for this user's processes on this machine, when it listens on this port of the loopback interface: in a folder of
/// mode 0700, which is made. throws CommError when the folder is another user's or open to others.
std::string private_address_path(int port);

}  // namespace vitrine::process_group
