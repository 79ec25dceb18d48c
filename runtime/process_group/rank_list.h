// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

namespace vitrine::process_group {

/// Formats ascending ranks for a message: "rank 3", "ranks 0, 1", "ranks 0 to 41, 43 to 255". Of more than eight runs,
/// names the first ones and the total number.
std::string describe_ranks(std::span<const int> ranks);

}  // namespace vitrine::process_group
