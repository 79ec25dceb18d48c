// SPDX-License-Identifier: Apache-2.0
#include "tools/program/train/state_hashes.h"

#include "tools/program/text/json_text.h"

namespace vitrine::tools {

StateHashes::StateHashes(const std::string& path, Engine& engine) : engine_(engine) {
  if (!path.empty()) file_.emplace(path);
}

StateHash StateHashes::take() {
  if (!state_) state_.emplace(engine_.checkpointer().make_state());
  engine_.checkpointer().copy_state(*state_);
  return hash_state(engine_.parameters().layout(), engine_.parameters().buffer_layout(), *state_);
}

void StateHashes::add_step() {
  if (!file_) return;
  const StateHash hashes = take();
  Json line = {{"step", engine_.steps_issued()}, {"state_hash", hashes.hash}};
  for (const auto& [name, hash] : hashes.parts) line["tensors"][name] = hash;
  file_->write(json_text(line) + "\n");
}

void StateHashes::close() {
  if (file_) file_->commit();
}

}  // namespace vitrine::tools
