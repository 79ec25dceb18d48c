// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include <vitrine/runtime/tensor.h>

namespace vitrine {

/// The numbers of a training step that differ from step to step, in a block of device memory. A kernel's arguments are
/// fixed once it is part of a CUDA graph, so the operations that depend on these numbers take a view of the block: on
/// CUDA they then read them there, when they run, in place of those in their configuration. Other backends use the
/// configuration, which must contain the same numbers.
struct StepValues {
  double lr = 0.0;
  double momentum = 0.0;      // of sgd; beta1 of adam and adamw
  int64_t step = 0;           // optimizer step, for dropout
  int64_t first_sample = 0;   // position of row 0 in the global batch of the step, for dropout
  uint64_t epoch_stream = 0;  // random_stream(RandomPurpose::augmentation, epoch)

  /// Elements of the view, which is i32.
  static constexpr int64_t kCount = 10;
};
static_assert(std::is_trivially_copyable_v<StepValues> && sizeof(StepValues) == StepValues::kCount * sizeof(int32_t));

}  // namespace vitrine
