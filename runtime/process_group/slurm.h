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

/// "4(x2),1": numbers of at least 1, one per node. Nothing when it is not such a list.
std::optional<std::vector<SlurmCount>> parse_slurm_counts(std::string_view text);

/// "node[01-04,7],other": node01. Nothing when it is not a list of hosts.
std::optional<std::string> first_slurm_host(std::string_view list);

}  // namespace vitrine
