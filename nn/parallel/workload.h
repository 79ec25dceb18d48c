// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <vector>

#include <vitrine/nn/parallel/engine_config.h>

namespace vitrine {

/// Sizes of the batches that a run will have: what has to be planned for.
struct Workload {
  std::vector<int64_t> train_batches;     // distinct sizes, the full one first
  std::vector<int64_t> evaluate_batches;  // distinct sizes of evaluation batches
  /// The workload under another batch size or number of micro-batches, for advice when memory is short. Null: one full
  /// batch, and evaluation batches of a micro-batch if there are any.
  std::function<Workload(const EngineConfig&)> under = nullptr;
  /// Asked before each plan of a search (nn/parallel/plan/plan_search.h), also of the one for advice when memory is
  /// short: true ends the search with SearchStopped. Null: searches run to completion.
  std::function<bool()> stop = nullptr;
};

/// Workload::stop ended a search for configurations that fit.
class SearchStopped : public std::exception {
 public:
  const char* what() const noexcept override { return "the search for a configuration that fits was stopped"; }
};

}  // namespace vitrine
