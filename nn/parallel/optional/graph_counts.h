// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace vitrine {

/// How the work of training micro-batches after Engine::stage() was done where steps may be replayed as CUDA graphs:
/// launched as a graph, or issued operation by operation for one of these reasons.
struct GraphCounts {
  int64_t launched = 0;
  int64_t first_uses = 0;  // issued: one of the first two of its shape and its place in the step
  int64_t recorded = 0;    // issued: the history of the memory was being recorded (Pool::record_history)
  int64_t moved = 0;       // issued: memory was in use where the graph writes, or blocks lay elsewhere
  int64_t beyond = 0;      // issued: later in its step than EngineConfig::accumulate micro-batches
  int64_t failed = 0;      // issued: a graph could not be captured or launched, then or before

  int64_t issued() const { return first_uses + recorded + moved + beyond + failed; }
  /// "27 micro-batches as graphs, 3 issued: 2 first of their shape, 1 while the memory was recorded"; empty before the
  /// first micro-batch.
  std::string str() const;
};

}  // namespace vitrine
