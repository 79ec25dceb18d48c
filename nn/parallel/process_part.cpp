// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/process_part.h"

#include <numeric>

namespace vitrine {

int64_t MicroBatch::samples() const { return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}); }

ProcessPart part_of_process(const BatchPlan& plan, int first_device, int device_count) {
  int micro_batches = plan.micro_batches();
  while (micro_batches > 1 && plan.micro_batch_size(micro_batches - 1) == 0) --micro_batches;
  ProcessPart part;
  int64_t row = 0;
  for (int k = 0; k < micro_batches; ++k) {
    const auto sizes = plan.sizes[static_cast<size_t>(k)].begin() + first_device;
    const int64_t position = plan.first[static_cast<size_t>(k)][static_cast<size_t>(first_device)];
    const MicroBatch& added = part.micro_batches.emplace_back(
        MicroBatch{{sizes, sizes + device_count}, row, position, k + 1 == micro_batches, plan.micro_batch_size(k)});
    row += added.samples();
    if (added.samples() > 0) part.rows.push_back({position, position + added.samples()});
  }
  return part;
}

}  // namespace vitrine
