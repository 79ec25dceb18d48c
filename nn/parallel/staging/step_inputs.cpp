// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/staging/step_inputs.h"

#include <cstring>

#include "nn/parallel/replicas/replica.h"

namespace vitrine {

constexpr int64_t kTail = StepValues::kCount, kSamples = kTail + kTailElements;

StepInputs::StepInputs(int64_t micro_batches, int64_t samples, int64_t labels, HostMemory memory)
    : micro_batches_(micro_batches),
      most_samples_(samples),
      words_(kSamples + samples + labels),
      memory_(kStepSlots * micro_batches * words_ * static_cast<int64_t>(sizeof(int32_t)), memory) {}

View StepInputs::part(int64_t position, int64_t begin, int64_t count) const {
  const int64_t entry = step_ % kStepSlots * micro_batches_ + position;
  return memory_.view({kStepSlots * micro_batches_ * words_}, DType::i32)
      .rows(entry * words_ + begin, entry * words_ + begin + count);
}

View StepInputs::samples(int64_t position, int64_t count) const { return part(position, kSamples, count); }

View StepInputs::labels(int64_t position, int64_t count) const {
  return part(position, kSamples + most_samples_, count);
}

View StepInputs::tail() const {
  return {part(0, kTail, kTailElements).data, {kTailElements}, DType::f32, DeviceId::host()};
}

void StepInputs::set_values(int64_t position, const StepValues& values) {
  std::memcpy(this->values(position).data, &values, sizeof values);
}

void StepInputs::begin_step(int64_t step, bool stop_vote) {
  step_ = step;
  tail().as<float>()[LossTotals::kCount] = stop_vote ? 1.0F : 0.0F;
}

}  // namespace vitrine
