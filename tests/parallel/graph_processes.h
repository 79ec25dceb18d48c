// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "nn/parallel/process_part.h"
#include "runtime/gpu_features.h"
#include "runtime/process_group/join_processes.h"
#include "tests/parallel/random_model.h"
#include "tests/runtime/processes.h"
#include "tests/standins/controls.h"

/// Processes over the stand-ins that replay steps as CUDA graphs: each is a thread with its own process group, one GPU
/// and an engine.
namespace vitrine::test {

/// One of the processes, from its rendezvous to its end.
struct Process {
  using Change = std::function<void(DeviceGroupOptions&)>;
  Process(int rank, int size, const RendezvousPlace& place, int64_t timeout_ms = kPatientMs, const Change& change = {})
      : process_group(std::make_shared<ProcessGroup>(process_options(rank, size, place.init(), timeout_ms))),
        devices(options(rank, change)) {
    standins::be_process_of({rank});
  }
  DeviceGroupOptions options(int rank, const Change& change) const {
    DeviceGroupOptions options;
    options.devices = {{Backend::cuda, rank}};
    options.memory_bytes = {int64_t{256} << 20};
    if (change) change(options);
    return join_processes(std::move(options), process_group);
  }

  std::shared_ptr<ProcessGroup> process_group;
  DeviceGroup devices;
  Tensor kept;  // of the caller
};

/// Appends rows of `from`, with `row` elements each, to `to`.
template <class T>
void take_rows(const T* from, int64_t row, const std::vector<RowRange>& rows, std::vector<T>& to) {
  for (const RowRange& r : rows) to.insert(to.end(), from + r.begin * row, from + r.end * row);
}

/// This process's rows of a batch of u8 images that all processes know.
inline HostBatch part_of(const OwnedBatch& whole, const EngineConfig& config, const DeviceGroup& devices) {
  const HostBatch all = whole.view();
  const int64_t samples = all.labels.shape[0];
  const BatchPlan plan = plan_batch(config.scheme.split, samples, config.accumulate, devices.world_size());
  const ProcessPart part = part_of_process(plan, devices.first_rank(), devices.size());
  OwnedBatch mine;
  int64_t count = 0;
  for (const RowRange& r : part.rows) count += r.size();
  take_rows(all.images.as<uint8_t>(), all.images.shape.numel() / samples, part.rows, mine.memory->bytes);
  take_rows(all.labels.as<int32_t>(), all.labels.shape.numel() / samples, part.rows, mine.memory->labels);
  mine.image_shape = all.images.rows(0, count).shape;
  mine.label_shape = all.labels.rows(0, count).shape;
  HostBatch batch = mine.view();
  batch.global_samples = samples;
  return batch;
}

/// Checks that nothing is left, and that no communicator ended before its graphs.
class GraphProcesses : public ::testing::Test {
 protected:
  GraphProcesses() {
    {
      DeviceGroupOptions options;
      options.devices = {{Backend::cuda, 0}};
      options.memory_bytes = {int64_t{1} << 20};
      const DeviceGroup warm_up(options);
    }
    standins::reset();
    setenv(variable_of(GpuFeature::graph_collectives), "on", 1);
    check_.emplace();
  }
  ~GraphProcesses() override {
    check_.reset();
    unsetenv(variable_of(GpuFeature::graph_collectives));
    EXPECT_EQ(standins::live_objects(), 0);
    EXPECT_EQ(standins::communicators_ended_before_graphs(), 0);
    standins::reset();
  }

 private:
  std::optional<LeavesNothingBehind> check_;
};

}  // namespace vitrine::test
