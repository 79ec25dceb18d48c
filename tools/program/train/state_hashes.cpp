// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdint>
#include <map>
#include <span>

#include "kernels/cross_entropy.h"
#include "tools/program/text/json_text.h"
#include "tools/program/train/training.h"

namespace vitrine::tools {

namespace {

/// Sums of the values with signs that depend on their positions. The distance of two sketches, divided by the length of
/// one, estimates how far the values are apart, relative to their norm, within about a quarter.   source Achlioptas
/// 2003
std::array<double, 8> sketch(std::span<const float> values) {
  std::array<double, 8> sums{};
  uint64_t position = 0;
  for (const float value : values) {
    uint64_t bits = (++position) * 0x9E3779B97F4A7C15;  // the finalizer of splitmix64 mixes the position
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB;
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += (bits >> (32 + i) & 1) != 0 ? -value : value;
  }
  return sums;
}

}  // namespace

StateHashes::StateHashes(const std::string& path, Engine& engine, bool is_rank0)
    : engine_(engine), is_rank0_(is_rank0), adds_steps_(!path.empty()) {
  if (is_rank0_ && adds_steps_) file_.emplace(path);
}

StateHash StateHashes::take() {
  if (!is_rank0_) {
    engine_.checkpointer().share_state();
    return {};
  }
  if (!state_) state_.emplace(engine_.checkpointer().make_state());
  engine_.checkpointer().copy_state(*state_);
  return hash_state(engine_.parameters().layout(), engine_.parameters().buffer_layout(), *state_);
}

void StateHashes::add_step() {
  if (!adds_steps_) return;
  const StateHash hashes = take();
  if (!is_rank0_) {
    // Rank 0 reads the gradients of all processes.
    if (engine_.config().scheme.shard != Sharding::none) engine_.parameters().gradients();
    return;
  }
  Json line = {{"step", engine_.steps_issued()}, {"state_hash", hashes.hash}};
  line["leaves"] = Json::array();
  if (engine_.config().exact()) {
    const std::vector<float> totals = engine_.parameters().leaf_totals();
    for (size_t i = 0; i < totals.size(); i += LossTotals::kCount)
      line["leaves"].push_back(hash_values(std::span(totals).subspan(i, LossTotals::kCount)));
  }
  const FlatLayout layout = engine_.parameters().layout().trained();
  const std::vector<float> gradients = engine_.parameters().gradients();
  std::map<int64_t, ParamSpec> by_offset;
  for (int i = 0; i < layout.size(); ++i) by_offset.emplace(layout.offset(i), layout.specs()[static_cast<size_t>(i)]);
  for (const auto& [offset, spec] : by_offset) {
    line["gradients"][spec.name] =
        hash_values(std::span(gradients).subspan(static_cast<size_t>(offset), static_cast<size_t>(spec.shape.numel())));
  }
  for (const auto& [name, hash] : hashes.parts) line["tensors"][name] = hash;
  line["sketches"] = {{"gradients", sketch(gradients)}, {"parameters", sketch(state_->flat("parameters").values())}};
  file_->write(json_text(line) + "\n");
}

void StateHashes::close() {
  if (file_) file_->commit();
}

}  // namespace vitrine::tools
