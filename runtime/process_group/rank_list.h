// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

namespace vitrine::process_group {

/// "rank 3", "ranks 0, 1", "ranks 0 to 41, 43 to 255": ascending ranks for a message. Of more than eight runs only the first ones are named, with the
/// number of all.
std::string describe_ranks(std::span<const int> ranks);

}  // namespace vitrine::process_group
