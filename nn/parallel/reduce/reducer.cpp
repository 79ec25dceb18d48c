// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/reduce/reducer.h"

#include "nn/parallel/reduce/reducers.h"
#include "runtime/error.h"

namespace vitrine {

std::unique_ptr<Reducer> make_reducer(const ReducerContext& replica) {
  // A replica that is alone has nothing to reduce.
  if (replica.config.scheme.reduce == ReducerKind::gpu0 && replica.world_size > 1)
    return std::make_unique<Gpu0Reducer>(replica);
  if (replica.shards_states() || replica.config.update_in_backward) return std::make_unique<ShardedReducer>(replica);
  return std::make_unique<AllReduceReducer>(replica);
}

std::unique_ptr<Reducer> make_configured_reducer(const ReducerContext& replica) {
  if (!replica.config.reducer) return make_reducer(replica);
  std::unique_ptr<Reducer> reducer = replica.config.reducer(replica);
  if (reducer == nullptr)
    throw ConfigError(
        "EngineConfig::reducer returned null, expected a Reducer; return make_reducer(replica) for the scheme's own");
  return reducer;
}

}  // namespace vitrine
