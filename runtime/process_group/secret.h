// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include <vitrine/runtime/process_group/launch.h>

namespace vitrine {

/// The fewest bytes of a secret.
inline constexpr size_t kLeastSecretBytes = 16;

/// The secret that the processes of a run share: VITRINE_SECRET, or the content of the file that VITRINE_SECRET_FILE names, without white space
/// around it; empty where neither is set.
///   throws  ConfigError when both are set, when the secret is too short, and when the file cannot be read, is no regular file, is longer than 4096
///           bytes, belongs to another user, or may be read or written by others than its owner
std::string find_secret(const Environment& env);

}  // namespace vitrine
