// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu/tree_sum.h"

#include <array>
#include <type_traits>

#include "runtime/cpu/half_lanes.h"
#include "runtime/cpu/parallel.h"
#include "runtime/leaf_tree.h"

namespace vitrine::cpu {
namespace {

constexpr int64_t kParallelGrain = int64_t{1} << 15;  // below this, threads cost more than they gain

/// The value as T stores it. V is float or FloatLanes.
template <class T, class V>
void round_to(V& value) {
  if constexpr (!std::is_same_v<T, float>) {
    std::array<T, kLanes> stored;
    store(value, stored.data());
    load(stored.data(), value);
  }
}

/// The sum of kCount values of type V that begin at element i.
template <class T, class V, size_t kCount>
void add_block(std::span<const uint8_t> folds, std::span<const void* const> inputs, std::span<void* const> outputs,
               int64_t i) {
  constexpr int64_t kWidth = std::is_same_v<V, float> ? 1 : kLanes;
  std::array<std::array<V, kCount>, TreeOrder::kMostPartials> waiting;
  size_t waits = 0;
  std::array<V, kCount> sum;
  const auto at = [i](size_t k) { return i + static_cast<int64_t>(k) * kWidth; };
  const auto take = [&](const void* input) {
    for_each_lane<kCount>([&](size_t k) { load(static_cast<const T*>(input) + at(k), sum[k]); });
  };
  take(inputs[0]);
  for (size_t n = 1; n < inputs.size(); ++n) {
    for_each_lane<kCount>([&](size_t k) { waiting[waits][k] = sum[k]; });
    ++waits;
    take(inputs[n]);
    for (int fold = 0; fold < folds[n]; ++fold) {
      const std::array<V, kCount>& left = waiting[--waits];
      for_each_lane<kCount>([&](size_t k) {
        sum[k] = left[k] + sum[k];
        round_to<T>(sum[k]);
      });
    }
  }
  for (void* const output : outputs) {
    for_each_lane<kCount>([&](size_t k) { store(sum[k], static_cast<T*>(output) + at(k)); });
  }
}

template <class T>
void add(std::span<const uint8_t> folds, std::span<const void* const> inputs, std::span<void* const> outputs,
         int64_t count) {
  constexpr size_t kBlockLanes = 4;
  constexpr int64_t kBlock = static_cast<int64_t>(kBlockLanes) * kLanes;
  parallel_for(count, kParallelGrain, [&](int64_t first, int64_t last) {
    int64_t i = first;
    for (; i + kBlock <= last; i += kBlock) add_block<T, FloatLanes, kBlockLanes>(folds, inputs, outputs, i);
    for (; i < last; ++i) add_block<T, float, 1>(folds, inputs, outputs, i);
  });
}

}  // namespace

void tree_sum(DType dtype, std::span<const uint8_t> folds, std::span<const void* const> inputs,
              std::span<void* const> outputs, int64_t count) {
  if (dtype == DType::f16) return add<Half>(folds, inputs, outputs, count);
  if (dtype == DType::bf16) return add<BFloat16>(folds, inputs, outputs, count);
  add<float>(folds, inputs, outputs, count);
}

}  // namespace vitrine::cpu
