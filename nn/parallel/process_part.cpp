// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/process_part.h"

#include <numeric>

namespace vitrine {

ProcessPart part_of_process(const BatchPlan& plan, int first_device, int device_count) {
  int micro_batches = plan.micro_batches();
  while (micro_batches > 1 && plan.micro_batch_size(micro_batches - 1) == 0) --micro_batches;
  ProcessPart part;
  for (size_t k = 0; k < static_cast<size_t>(micro_batches); ++k) {
    const auto sizes = plan.sizes[k].begin() + first_device;
    part.sizes.emplace_back(sizes, sizes + device_count);
    part.first.push_back(plan.first[k][static_cast<size_t>(first_device)]);
    const int64_t samples = std::accumulate(sizes, sizes + device_count, int64_t{0});
    if (samples > 0) part.rows.push_back({part.first[k], part.first[k] + samples});
  }
  return part;
}

}  // namespace vitrine
