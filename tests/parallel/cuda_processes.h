// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "nn/parallel/scheme.h"
#include "runtime/error.h"
#include "runtime/gpu_features.h"
#include "runtime/process_group/join_processes.h"
#include "tests/parallel/random_model.h"
#include "tests/runtime/processes.h"
#include "tests/standins/controls.h"

/// Processes over the stand-ins: each is a thread with its own process group, GPUs and an engine.
namespace vitrine::test {

/// One of the processes, from its rendezvous to its end. It has the GPU of its rank, unless `change` gives it others.
struct Process {
  using Change = std::function<void(DeviceGroupOptions&)>;
  Process(int rank, int size, const RendezvousPlace& place, int64_t timeout_ms = kPatientMs, const Change& change = {})
      : process_group(std::make_shared<ProcessGroup>(process_options(rank, size, place.init(), timeout_ms))),
        devices(options(rank, change)) {
    std::vector<int> gpus;
    for (int d = 0; d < devices.size(); ++d) gpus.push_back(devices[d].id().index);
    standins::be_process_of(gpus);
  }
  DeviceGroupOptions options(int rank, const Change& change) const {
    DeviceGroupOptions options{.devices = {{Backend::cuda, rank}}, .memory_bytes = {int64_t{256} << 20}};
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
inline HostBatch part_of(const OwnedBatch& whole, Engine& engine) {
  const EngineConfig& config = engine.config();
  const DeviceGroup& devices = engine.devices();
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

/// Checks that nothing is left on the GPUs.
class ProcessesTest : public ::testing::Test {
 protected:
  ProcessesTest() {
    {
      DeviceGroupOptions options{.devices = {{Backend::cuda, 0}}, .memory_bytes = {int64_t{1} << 20}};
      const DeviceGroup warm_up(options);
    }
    standins::reset();
    check_.emplace();
  }
  ~ProcessesTest() override {
    check_.reset();
    EXPECT_EQ(standins::live_objects(), 0);
    standins::reset();
  }

 private:
  std::optional<LeavesNothingBehind> check_;
};

/// Processes that train, of which one misbehaves.
struct Fault {
  int processes = 0, culprit = 0;
  std::function<Model(int rank)> model;
  /// What the culprit does before each step; false: it leaves without close().
  std::function<bool(Process&, Engine&, int step)> misbehave;
  int64_t timeout_ms = kPatientMs;
  Process::Change change = {};
};

struct Verdict {
  std::string text;  // of the others' errors, which must be one CommError
  std::string own;   // error of the culprit
};

inline Verdict verdict_of(const Fault& fault, int64_t batch_size, const Workload& workload) {
  const RendezvousPlace place;
  std::vector<std::string> verdicts(static_cast<size_t>(fault.processes));
  Verdict verdict;
  run_ranks(fault.processes, [&](int rank) {
    Process process(rank, fault.processes, place, fault.timeout_ms, fault.change);
    const Model model = fault.model(rank);
    Engine engine(model, process.devices, small_config(model, batch_size), workload);
    const HostBatch batch = part_of(random_batch(model, batch_size, 1, 0), engine);
    const auto train = [&] {
      for (int step = 0; step < 100000; ++step) {
        if (rank == fault.culprit && !fault.misbehave(process, engine, step)) return false;
        engine.train_step(batch);
      }
      return true;
    };
    try {
      if (train()) ADD_FAILURE() << "rank " << rank << " was not stopped";
    } catch (const CommError& error) {
      verdicts[static_cast<size_t>(rank)] = error.what();
      EXPECT_EQ(process.process_group->failure(), error.what());
      // The failure is permanent.
      EXPECT_THROW(engine.train_step(batch), CommError);
      EXPECT_THROW(process.process_group->gather("more", ""), CommError);
    } catch (const Error& error) {
      EXPECT_EQ(rank, fault.culprit) << error.what();
      verdict.own = error.what();
    }
  });
  std::set<std::string> reported(verdicts.begin(), verdicts.end());
  reported.erase("");
  EXPECT_EQ(reported.size(), 1U) << (reported.empty() ? "no rank reported the failure"
                                                      : *reported.begin() + "\n" + *reported.rbegin());
  for (int rank = 0; rank < fault.processes; ++rank)
    EXPECT_TRUE(rank == fault.culprit || !verdicts[static_cast<size_t>(rank)].empty()) << rank;
  if (!reported.empty()) verdict.text = *reported.begin();
  return verdict;
}

/// Replays steps with collectives as CUDA graphs. Checks that no communicator ended before its graphs.
class GraphProcesses : public ProcessesTest {
 protected:
  GraphProcesses() { setenv(variable_of(GpuFeature::graph_collectives), "on", 1); }
  ~GraphProcesses() override {
    unsetenv(variable_of(GpuFeature::graph_collectives));
    EXPECT_EQ(standins::communicators_ended_before_graphs(), 0);
  }
};

}  // namespace vitrine::test
