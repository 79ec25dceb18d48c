// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/state/state_hash.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "nn/parameter_store.h"
#include "runtime/hash.h"

namespace vitrine {
namespace {

std::string hash_of(const void* bytes, int64_t count) {
  return fmt::format("{:016x}{:016x}", hash_bytes(0, bytes, count), hash_bytes(1, bytes, count));
}

std::string hash_of(const std::string& text) { return hash_of(text.data(), static_cast<int64_t>(text.size())); }

}  // namespace

std::string hash_values(std::span<const float> values) {
  return hash_of(values.data(), static_cast<int64_t>(values.size_bytes()));
}

StateHash hash_state(const FlatLayout& layout, const BufferLayout& buffers, const TrainingState& state) {
  StateHash hashes;
  const FlatLayout trained = layout.trained();
  for (const TrainingState::Flat& flat : state.flats) {
    const FlatLayout& own = flat.name == "parameters" ? layout : flat.name == "buffers" ? buffers.saved() : trained;
    for (int i = 0; i < own.size(); ++i) {
      const ParamSpec& spec = own.specs()[static_cast<size_t>(i)];
      hashes.parts.emplace_back(fmt::format("{}.{}", flat.name, spec.name),
                                hash_values(flat.values().subspan(static_cast<size_t>(own.offset(i)),
                                                                  static_cast<size_t>(spec.shape.numel()))));
    }
  }
  std::string scalars = fmt::format("{} {}", fmt::join(state.counters, ","), state.updates);
  if (state.loss_scale) scalars += fmt::format(" {:a} {}", state.loss_scale->first, state.loss_scale->second);
  hashes.parts.emplace_back("scalars", hash_of(scalars));
  std::string all;
  for (const auto& [name, hash] : hashes.parts) all += fmt::format("{} {}\n", name, hash);
  hashes.hash = hash_of(all);
  return hashes;
}

}  // namespace vitrine
