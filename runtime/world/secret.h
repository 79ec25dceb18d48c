// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "runtime/world/launch.h"

namespace vitrine {

/// The fewest bytes of a secret.
inline constexpr size_t kLeastSecretBytes = 16;

/// The secret that the processes of a run share: VITRINE_SECRET, or the content of the file that VITRINE_SECRET_FILE names, without white space
/// around it; empty where neither is set.
///   throws  ConfigError when both are set, when the secret is too short, and when the file cannot be read, is no regular file, is longer than 4096
///           bytes, belongs to another user, or may be read or written by others than its owner
std::string find_secret(const Environment& env);

namespace world {

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

}  // namespace world
}  // namespace vitrine
