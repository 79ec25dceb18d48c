// SPDX-License-Identifier: Apache-2.0
// A batch forward without training.
#include <vector>

#include "nn/parallel/replicas/host_copies.h"
#include "nn/parallel/step/model_passes.h"
#include "nn/parallel/step/step_window.h"
#include "runtime/copy.h"

namespace vitrine {

void ModelPasses::evaluate(const HostBatch& batch, const MicroBatch& part, int64_t samples) {
  stager_.begin(Stager::kEvaluation, samples);
  // Each device takes its own rows from the host and computes its own loss, whatever the scheme does in training.
  const StagedBatch staged = stager_.stage(batch, part, Staging::host, LossAt::parallel);
  replicas_.for_each([&](Replica& r) {
    const PhaseScope phase(r.compute(), Phase::evaluate);
    zero(r.compute(), r.evaluate_totals);
    stager_.prepare_input(staged, r);
  });
  forward(nullptr);
  replicas_.for_each_at_once([&](Replica& r) {
    if (r.batch.samples == 0) return;
    const PhaseScope phase(r.compute(), Phase::evaluate);
    outputs_.evaluate_loss(r);
  });
}

StepResult ModelPasses::read_evaluation(float* logits) {
  // One row for each device; in exact mode one for each leaf, of which the devices have consecutive ones.
  const int64_t parts = replicas_[0].evaluate_totals.shape()[0];
  std::vector<float> totals(static_cast<size_t>(replicas_.size() * parts * LossTotals::kCount));
  const int64_t values = setup_.model.logits_shape(replicas_.samples_before(replicas_.size())).numel();
  const DType dtype = setup_.config.precision.compute;
  const bool widens = logits != nullptr && dtype != DType::f32;
  std::vector<std::byte> narrow(widens ? static_cast<size_t>(values * size_of(dtype)) : 0);
  std::byte* const target = widens ? narrow.data() : reinterpret_cast<std::byte*>(logits);
  int64_t at = 0;
  replicas_.for_each([&](Replica& r) {
    const PhaseScope phase(r.compute(), Phase::evaluate);
    copy(r.compute(), r.evaluate_totals,
         View{totals.data() + r.ordinal() * parts * LossTotals::kCount,
              {parts, LossTotals::kCount},
              DType::f32,
              DeviceId::host()});
    if (logits == nullptr || r.batch.samples == 0) return;
    copy(r.compute(), r.batch.output,
         View{target + at * size_of(dtype), r.batch.output.shape(), dtype, DeviceId::host()});
    at += r.batch.output.numel();
  });
  setup_.devices.synchronize();
  note_host_read(setup_.devices, "evaluate",
                 ConstView(totals.data(), {static_cast<int64_t>(totals.size())}, DType::f32, DeviceId::host()));
  if (logits != nullptr)
    note_host_read(setup_.devices, "evaluate", ConstView(target, {values}, dtype, DeviceId::host()));
  if (widens) widen_on_host(dtype, narrow.data(), values, logits);
  StepResult sum;
  for (int64_t i = 0; i < replicas_.size() * parts; ++i) {
    StepResult part = result_from(totals.data() + i * LossTotals::kCount);
    if (setup_.config.exact()) {
      part.leaf_losses.resize(static_cast<size_t>(parts));
      part.leaf_losses[static_cast<size_t>(i % parts)] = part.loss_sum;
    }
    sum.add_totals(part);
  }
  return sum;
}

}  // namespace vitrine
