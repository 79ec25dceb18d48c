// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/process_part.h"

#include <numeric>

namespace vitrine {

int64_t MicroBatch::samples() const { return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}); }

MicroBatch micro_batch_of_process(const BatchPlan& plan, int micro_batch, int first_device, int device_count,
                                  int64_t first_row) {
  const auto k = static_cast<size_t>(micro_batch);
  const auto mine = [&](const auto& of_devices) {
    const auto begin = of_devices.begin() + first_device;
    return std::vector(begin, begin + device_count);
  };
  MicroBatch part;
  part.sizes = mine(plan.sizes[k]);
  part.first_row = first_row;
  part.position = plan.first[k][static_cast<size_t>(first_device)];
  part.global_samples = plan.micro_batch_size(micro_batch);
  if (plan.leaves.empty()) return part;
  part.leaves = mine(plan.leaves[k]);
  part.all_leaves = {plan.leaves[k].front().begin, plan.leaves[k].back().end};
  return part;
}

ProcessPart part_of_process(const BatchPlan& plan, int first_device, int device_count) {
  ProcessPart part;
  int64_t row = 0;
  for (int k = 0; k < plan.micro_batches(); ++k) {
    if (plan.micro_batch_size(k) == 0) continue;
    if (!part.micro_batches.empty()) part.micro_batches.back().last = false;
    MicroBatch& added =
        part.micro_batches.emplace_back(micro_batch_of_process(plan, k, first_device, device_count, row));
    added.index = static_cast<int>(part.micro_batches.size()) - 1;
    row += added.samples();
    if (added.samples() > 0) part.rows.push_back({added.position, added.position + added.samples()});
  }
  return part;
}

}  // namespace vitrine
