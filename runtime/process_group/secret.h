// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include <vitrine/runtime/process_group/launch.h>

namespace vitrine {

/// Minimum number of bytes of a secret.
inline constexpr size_t kLeastSecretBytes = 16;

/// Returns the secret that the processes of a run share: VITRINE_SECRET, or the content of the file in
/// VITRINE_SECRET_FILE without surrounding white space; empty if neither is set.
///   throws  ConfigError if both are set, if the secret is too short, and if the file cannot be read, is not a regular
///           file, is longer than 4096 bytes, belongs to another user, or is accessible to users other than its owner
std::string find_secret(const Environment& env);

}  // namespace vitrine
