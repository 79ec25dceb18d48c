// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vitrine {

/// A run of equal numbers in Slurm's lists: 4(x2).
struct SlurmCount {
  int value = 0;
  int times = 1;
};

/// Parses "4(x2),1": numbers of at least 1, one per node. Returns nothing for anything else.
std::optional<std::vector<SlurmCount>> parse_slurm_counts(std::string_view text);

/// Returns the first host of a list: node01 for "node[01-04,7],other". Returns nothing for anything else.
std::optional<std::string> first_slurm_host(std::string_view list);

}  // namespace vitrine
