// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "runtime/memory/history.h"

namespace vitrine {

/// Keeps what a pool's history needs to know about each block. While recording is off, it reads no clock and builds no
/// string for a name that it has seen before.
class MemoryRecorder {
 public:
  /// Position of the program: later changes belong to this phase and layer.
  void set_position(Phase phase, std::string_view layer);
  Phase phase() const { return phase_; }
  const std::string& layer() const { return *layer_; }

  void on_allocate(int64_t offset, int64_t bytes, Category category, std::string_view tensor);
  void on_free(int64_t offset);

  /// Starts a new history with the blocks that are allocated now, timed at this call.
  void start();
  /// Ends the recording; history() keeps what was recorded.
  void stop() { recording_ = false; }
  bool recording() const { return recording_; }
  /// Marks the beginning of a step in the history.
  void mark_step(int64_t step);
  const MemoryHistory& history() const { return history_; }

  /// Number of names stored.
  size_t name_count() const { return names_.size(); }

 private:
  struct Block {
    int64_t bytes;
    Category category;
    Phase phase;
    const std::string* tensor;
    const std::string* layer;
  };
  const std::string* intern(std::string_view name);
  void drop_unused_names();

  static constexpr size_t kFewNames = 4096;
  std::set<std::string, std::less<>> names_{""};
  size_t most_names_ = kFewNames;  // when as many are stored, unused ones are dropped
  Phase phase_ = Phase::setup;
  const std::string* layer_ = &*names_.begin();
  std::map<int64_t, Block> blocks_;  // offset -> block
  bool recording_ = false;
  MemoryHistory history_;
};

}  // namespace vitrine
