// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include <vitrine/nn/parallel/state/training_checkpoint.h>

namespace vitrine {

/// Hashes of a training state, of 128 bits in hex: two runs whose states have the same bits have the same hash.
struct StateHash {
  std::string hash;                                        // of all of it
  std::vector<std::pair<std::string, std::string>> parts;  // "parameters.fc.weight", ..., and "scalars"
};

/// 128 bits in hex.
std::string hash_values(std::span<const float> values);

/// Hashes parameters, optimizer states, averages and buffers, tensor by tensor in the order of the weight file, then
/// counters, the number of updates and the loss scaler.
StateHash hash_state(const FlatLayout& layout, const BufferLayout& buffers, const TrainingState& state);

}  // namespace vitrine
