// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <vitrine/nn/parallel/scheme.h>

namespace vitrine {

/// What one process needs to know of a step, whatever the number of processes.
struct ProcessPart {
  std::vector<std::vector<int64_t>> sizes;  // [k][d]: samples of its device d in micro-batch k, up to the last one in which any process has a sample
  std::vector<int64_t> first;               // [k]: the position of its first sample in the global batch
  std::vector<RowRange> rows;               // as rows_of_processes() has them
};
///   first_device  the process's first one among all devices
ProcessPart part_of_process(const BatchPlan& plan, int first_device, int device_count);

}  // namespace vitrine
