// SPDX-License-Identifier: Apache-2.0
// A batch forward without training.
#include "kernels/cross_entropy.h"
#include "nn/parallel/engine_state.h"
#include "runtime/copy.h"

namespace vitrine {

void Engine::State::issue_evaluation(const HostBatch& batch, const MicroBatch& part, int64_t samples) {
  section = {kEvaluation, samples, 0};
  // Each device takes its own rows from the host and computes its own loss, whatever the scheme does in training.
  stage(batch, part, Staging::host, LossAt::parallel, false);
  for_each([&](Replica& r) {
    const PhaseScope phase(r.compute(), Phase::evaluate);
    zero(r.compute(), r.evaluate_totals);
    prepare_input(r);
  });
  forward(false);
  for_each_at_once([&](Replica& r) {
    if (r.samples == 0) return;
    const PhaseScope phase(r.compute(), Phase::evaluate);
    compute_loss(r, r.output, View(), r.evaluate_totals);
  });
}

StepResult Engine::State::read_evaluation(float* logits) {
  std::vector<float> totals(replicas.size() * LossTotals::kCount);
  const int64_t values = model.logits_shape(targets_before(size()) / model.targets_per_sample).numel();
  const DType dtype = config.precision.compute;
  const bool widens = logits != nullptr && dtype != DType::f32;
  std::vector<std::byte> narrow(widens ? static_cast<size_t>(values * size_of(dtype)) : 0);
  std::byte* const target = widens ? narrow.data() : reinterpret_cast<std::byte*>(logits);
  int64_t at = 0;
  for_each([&](Replica& r) {
    const PhaseScope phase(r.compute(), Phase::evaluate);
    copy(r.compute(), r.evaluate_totals,
         View{totals.data() + r.ordinal * LossTotals::kCount, {LossTotals::kCount}, DType::f32, DeviceId::host()});
    if (logits == nullptr || r.samples == 0) return;
    copy(r.compute(), r.output, View{target + at * size_of(dtype), r.output.shape(), dtype, DeviceId::host()});
    at += r.output.numel();
  });
  devices.synchronize();
  note_host_read(devices, "evaluate",
                 ConstView(totals.data(), {static_cast<int64_t>(totals.size())}, DType::f32, DeviceId::host()));
  if (logits != nullptr) note_host_read(devices, "evaluate", ConstView(target, {values}, dtype, DeviceId::host()));
  if (widens) widen_on_host(dtype, narrow.data(), values, logits);
  StepResult sum;
  for (int d = 0; d < size(); ++d) {
    const StepResult part = result_from(totals.data() + d * LossTotals::kCount);
    sum.loss_sum += part.loss_sum;
    sum.valid += part.valid;
    sum.correct += part.correct;
    sum.top5 += part.top5;
  }
  return sum;
}

}  // namespace vitrine
