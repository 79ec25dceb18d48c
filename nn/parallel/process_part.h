// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include <vitrine/nn/parallel/scheme.h>

namespace vitrine {

/// The samples that the devices of one process compute at once: forward and backward run once for each micro-batch of a
/// step.
struct MicroBatch {
  std::vector<int64_t> sizes;  // samples of each device of the process
  int64_t first_row = 0;       // of its first sample, in this process's part of the batch
  int64_t position = 0;        // of its first sample, in the global batch
  bool last = true;            // of the step
  int64_t global_samples = 0;  // of the micro-batch, of all processes; 0: those of this process
  int index = 0;               // among the micro-batches of the step
  // Exact mode:
  std::vector<RowRange> leaves = {};  // numbers of each device's leaves
  RowRange all_leaves = {};           // those of all devices of all processes

  int64_t samples() const;
};

/// What one process needs to know about a step; its size does not depend on the number of processes.
struct ProcessPart {
  std::vector<MicroBatch> micro_batches;  // those in which any process has a sample
  /// Ranges of the global batch, in the order in which the devices take them: at most one range per micro-batch,
  /// because a process's devices are consecutive.
  std::vector<RowRange> rows;
};
/// The samples of one micro-batch that the devices of one process compute, which begin at `first_row` of its part.
MicroBatch micro_batch_of_process(const BatchPlan& plan, int micro_batch, int first_device, int device_count,
                                  int64_t first_row);
///   first_device  the process's first device among those of all processes
ProcessPart part_of_process(const BatchPlan& plan, int first_device, int device_count);

}  // namespace vitrine
