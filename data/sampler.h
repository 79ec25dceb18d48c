// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace vitrine {

/// The order of samples in an epoch.
struct SamplerConfig {
  bool shuffle = true;
  bool drop_last = false;
  uint64_t seed = 0;
};

/// Indices of epoch `epoch` (0, 1, ...): a permutation of [0, count) drawn from (seed, epoch), or 0, 1, 2, ... without shuffling.
std::vector<int64_t> epoch_order(const SamplerConfig& config, int64_t count, int64_t epoch);

/// Optimizer steps of an epoch: the last, shorter batch counts unless drop_last.
int64_t batches_per_epoch(const SamplerConfig& config, int64_t count, int64_t batch_size);

}  // namespace vitrine
