// SPDX-License-Identifier: Apache-2.0
#include "data/sampler.h"

#include <numeric>
#include <utility>

#include "runtime/error.h"
#include "runtime/philox.h"

namespace vitrine {

std::vector<int64_t> epoch_order(const SamplerConfig& config, int64_t count, int64_t epoch) {
  VITRINE_ASSERT(count >= 0 && epoch >= 0, "counts and epochs are not negative");
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  if (!config.shuffle) return order;
  PhiloxSequence random(config.seed, static_cast<uint64_t>(epoch));
  for (size_t left = order.size(); left > 1; --left) std::swap(order[left - 1], order[random.next_below(left)]);
  return order;
}

int64_t batches_per_epoch(const SamplerConfig& config, int64_t count, int64_t batch_size) {
  VITRINE_ASSERT(count >= 0 && batch_size > 0, "a batch has at least one sample");
  const int64_t whole = count / batch_size;
  return whole + (!config.drop_last && whole * batch_size < count ? 1 : 0);
}

}  // namespace vitrine
