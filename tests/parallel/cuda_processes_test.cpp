// SPDX-License-Identifier: Apache-2.0
// GPUs of several processes train like those of one process; and when a process dies, fails, disagrees or is missing,
// all others stop and name it.
#include "tests/parallel/cuda_processes.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <set>

#include <gtest/gtest.h>

#include "nn/layers/linear.h"
#include "runtime/comm/communicator.h"
#include "runtime/copy.h"
#include "runtime/cuda/nccl_group.h"
#include "runtime/error.h"
#include "tests/parallel/planted_layer.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

constexpr int64_t kBatch = 24;
constexpr int kSteps = 4;
// Deadlines after the first step, and a delay beyond them.
constexpr int64_t kImpatientMs = 3000;

void check_order(DeviceGroupOptions& options) { options.check_order = true; }

class CudaProcesses : public ProcessesTest {
 protected:
  /// Trains a small model; returns the parameters of all devices, in rank order. No processes: one, with as many
  /// devices as they have together.
  static std::vector<std::vector<float>> train(const std::vector<std::vector<int>>& gpus_of_processes, bool together,
                                               uint32_t seed) {
    std::vector<int> all;
    for (const auto& gpus : gpus_of_processes) all.insert(all.end(), gpus.begin(), gpus.end());
    std::vector<std::vector<float>> parameters(all.size());
    const auto use = [](DeviceGroupOptions& options, const std::vector<int>& gpus) {
      options.devices.clear();
      for (const int gpu : gpus) options.devices.push_back({Backend::cuda, gpu});
      options.check_order = true;
    };
    const auto work = [&](DeviceGroup& devices) {
      const Model model = random_model(seed);
      Engine engine(model, devices, small_config(model, kBatch), {{kBatch}, {}});
      for (uint32_t step = 0; step < kSteps; ++step)
        engine.train_step(part_of(random_batch(model, kBatch, step, 0.2), engine));
      engine.finish();
      for (int d = 0; d < devices.size(); ++d)
        parameters[static_cast<size_t>(devices.first_rank() + d)] = engine.parameters().values(d);
    };
    if (together) {
      DeviceGroupOptions options;
      options.memory_bytes = {int64_t{64} << 20};
      use(options, all);
      DeviceGroup devices(options);
      work(devices);
      return parameters;
    }
    const RendezvousPlace place;
    const int size = static_cast<int>(gpus_of_processes.size());
    run_ranks(size, [&](int rank) {
      Process process(rank, size, place, kPatientMs,
                      [&](DeviceGroupOptions& options) { use(options, gpus_of_processes[static_cast<size_t>(rank)]); });
      work(process.devices);
      process.process_group->close();
    });
    return parameters;
  }
};

TEST_F(CudaProcesses, TrainLikeOneProcess) {
  for (const std::vector<std::vector<int>>& gpus :
       {std::vector<std::vector<int>>{{0}, {1}, {2}, {3}}, {{0, 1}, {2, 3}}, {{5}, {2, 7}}}) {
    const uint32_t seed = static_cast<uint32_t>(gpus.size());
    const auto apart = train(gpus, false, seed), again = train(gpus, false, seed), together = train(gpus, true, seed);
    for (size_t rank = 0; rank < apart.size(); ++rank) {
      EXPECT_LT(relative_difference(apart[rank], together[rank]), 1e-5) << rank;
      EXPECT_EQ(apart[rank], apart[0]) << "replica " << rank;
      EXPECT_EQ(apart[rank], again[rank]) << "run to run, of rank " << rank;
    }
  }
}

TEST_F(CudaProcesses, ShareSeveralIdsOfNccl) {
  for (const std::vector<std::vector<int>>& gpus :
       {std::vector<std::vector<int>>{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}, {{0, 1}, {2, 3, 4, 5, 6, 7}}}) {
    std::vector<std::string> ids(gpus.size());
    const RendezvousPlace place;
    run_ranks(static_cast<int>(gpus.size()), [&](int rank) {
      const auto use = [&](DeviceGroupOptions& options) {
        options.devices.clear();
        for (const int gpu : gpus[static_cast<size_t>(rank)]) options.devices.push_back({Backend::cuda, gpu});
      };
      const Process process(rank, static_cast<int>(gpus.size()), place, kPatientMs, use);
      ids[static_cast<size_t>(rank)] = cuda::exchange_nccl_ids(process.devices, 3);
    });
    for (const std::string& of_rank : ids) EXPECT_EQ(of_rank, ids[0]);
    // Three ranks join through each of the first two ids, two through the last. Their first ranks are 0, 3 and 6.
    const size_t bytes = ids[0].size() / 3;
    std::set<uint64_t> numbers;
    for (size_t id = 0; id < 3; ++id) {
      uint64_t number = 0;
      std::memcpy(&number, ids[0].data() + id * bytes, sizeof number);
      numbers.insert(number);
      const int first_gpu_of_process = gpus.size() == 8 ? static_cast<int>(3 * id) : (id == 0 ? 0 : 2);
      EXPECT_EQ(standins::creator_of_nccl_id(number), first_gpu_of_process) << id;
    }
    EXPECT_EQ(numbers.size(), 3U);
    standins::reset();
  }
}

TEST_F(CudaProcesses, NeedSeveralIdsOfNcclBeyond128Ranks) {
  constexpr int ranks_per_id = cuda::kRanksPerNcclId;
  EXPECT_EQ(cuda::nccl_id_count(128, ranks_per_id), 1);
  EXPECT_EQ(cuda::nccl_id_count(129, ranks_per_id), 2);
  EXPECT_EQ(cuda::nccl_id_count(4096, ranks_per_id), 32);
  // The ranks of the ids differ by one at most, the first ids have more, and none has more than allowed.
  for (const int world_size : {1, 2, 5, 129, 300, 1000, 4097}) {
    const int count = cuda::nccl_id_count(world_size, ranks_per_id);
    EXPECT_EQ(cuda::first_rank_of_nccl_id(0, count, world_size), 0);
    for (int id = 0; id < count; ++id) {
      const int begin = cuda::first_rank_of_nccl_id(id, count, world_size),
                end = cuda::first_rank_of_nccl_id(id + 1, count, world_size);
      EXPECT_EQ(end - begin, world_size / count + (id < world_size % count ? 1 : 0))
          << world_size << " ranks, id " << id;
      EXPECT_LE(end - begin, ranks_per_id);
    }
    EXPECT_EQ(cuda::first_rank_of_nccl_id(count, count, world_size), world_size);
  }
}

TEST_F(CudaProcesses, UseOnlyTheirOwnGpus) {
  train({{3}, {5}}, false, 1);
  for (int gpu = 0; gpu < 8; ++gpu) EXPECT_EQ(standins::has_context(gpu), gpu == 3 || gpu == 5) << "cuda:" << gpu;
}

TEST_F(CudaProcesses, RefuseToShareAGpu) {
  const RendezvousPlace place;
  run_ranks(3, [&](int rank) {
    const auto change = [rank](DeviceGroupOptions& options) {
      if (rank == 2) options.devices[0].index = 1;
    };
    const std::string text =
        error_of<UnsupportedError>([&] { const Process process(rank, 3, place, kPatientMs, change); });
    expect_contains(text, "ranks 1 and 2 both use the GPU 0000:02:00.0", "its own GPUs");
  });
}

/// Four processes that train until one of them misbehaves.
class CudaFault : public CudaProcesses {
 protected:
  static constexpr int kProcesses = 4;

  using Step = std::function<bool(Process&, Engine&, int step)>;

  /// `culprit` misbehaves from the third step on. Returns the error of the others.
  std::string verdict_when(int culprit, const Step& misbehave, int64_t timeout_ms = kPatientMs) {
    const auto begin = std::chrono::steady_clock::now();
    const Verdict verdict = verdict_of({.processes = kProcesses,
                                        .culprit = culprit,
                                        .model =
                                            [&](int rank) {
                                              static const std::atomic<bool> kNever{false};
                                              const auto& armed = rank == culprit ? armed_ : kNever;
                                              return planted_model(std::make_unique<RunsOutOfMemory>(armed));
                                            },
                                        .misbehave =
                                            [&](Process& process, Engine& engine, int step) {
                                              if (step == 2) engine.take_step_results(true);
                                              return step < 2 || misbehave(process, engine, step);
                                            },
                                        .timeout_ms = timeout_ms,
                                        .change = check_order},
                                       kBatch, {{kBatch}, {}});
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(kPatientMs));
    own_error_ = verdict.own;
    return verdict.text;
  }

  std::string own_error_;           // of the culprit
  std::atomic<bool> armed_{false};  // what is planted in its model
};

TEST_F(CudaFault, ADeadProcessIsNamed) {
  const std::string verdict = verdict_when(2, [](Process&, Engine&, int) { return false; });
  expect_contains(verdict, "rank 2 (pid ", ") died: its connection closed unexpectedly; its last known was collective ",
                  "all_reduce of bucket ", "phase reduce, step 1)");
}

TEST_F(CudaFault, ADeathThatNcclDetectsFirstIsNamed) {
  const std::string verdict = verdict_when(2, [](Process&, Engine&, int) {
    standins::break_nccl(0);  // as real NCCL does when a peer has died
    standins::break_nccl(3);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return false;
  });
  expect_contains(verdict, "rank 2 (pid ", ") died: its connection closed unexpectedly");
}

TEST_F(CudaFault, AnErrorInNcclIsReported) {
  const std::string verdict = verdict_when(1, [](Process&, Engine&, int step) {
    if (step == 2) standins::break_nccl(1);
    return true;
  });
  expect_contains(verdict, "rank 1 (pid ", "failed: ", "rank 1 (cuda:1): NCCL reports ");
}

TEST_F(CudaFault, OutOfMemoryWhileIssuingIsReported) {
  const std::string verdict = verdict_when(3, [this](Process&, Engine&, int) {
    armed_ = true;
    return true;
  });
  expect_contains(verdict, "rank 3 (pid ", "failed: cuda:3: ", "what does not fit");
  expect_contains(own_error_, "what does not fit");
}

TEST_F(CudaFault, AKernelFaultIsReported) {
  const std::string verdict = verdict_when(1, [](Process&, Engine&, int step) {
    if (step == 2) standins::fail_launch(1, 3);
    return true;
  });
  expect_contains(verdict, "rank 1 (pid ",
                  " failed: ", "cuda:1");  // at its beginning, or behind the call of CUDA that reported the fault
  expect_contains(own_error_ + verdict, "illegal");
}

TEST_F(CudaFault, AMissingProcessIsNamed) {
  const std::string verdict = verdict_when(
      2,
      [](Process& process, Engine&, int) {
        while (process.process_group->failure().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return true;
      },
      kImpatientMs);
  expect_contains(verdict, "rank 2 (pid ", ") is late: others have begun collective ", "and it has not",
                  "its last known was collective ", "has waited ", " s in step ");
}

TEST_F(CudaFault, AMissingFirstProcessIsNamed) {
  const std::string verdict = verdict_when(
      0,
      [](Process& process, Engine&, int) {
        while (process.process_group->failure().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return true;
      },
      kImpatientMs);
  expect_contains(verdict, "rank 0 (pid ", ") is late: others have begun collective ");
}

TEST_F(CudaFault, ADeadFirstProcessIsNamed) {
  // Each of the other ranks notices it and reports its position.
  const RendezvousPlace place;
  std::atomic<int> reports{0};
  run_ranks(3, [&](int rank) {
    Process process(rank, 3, place, kPatientMs, check_order);
    const Model model = random_model(1);
    Engine engine(model, process.devices, small_config(model, kBatch), {{kBatch}, {}});
    const OwnedBatch whole = random_batch(model, kBatch, 1, 0);
    engine.train_step(part_of(whole, engine));
    engine.take_step_results(true);
    if (rank == 0) return;
    const std::string verdict = comm_error_of([&] {
      while (true) engine.train_step(part_of(whole, engine));
    });
    expect_contains(verdict, "rank 0 (pid ", ") died: its connection closed unexpectedly");
    ++reports;
  });
  EXPECT_EQ(reports, 2);
}

TEST_F(CudaFault, AnExceptionOfTheCallerIsNotReplaced) {
  // The engine is destroyed with a step in flight; the reason is reported afterwards.
  const RendezvousPlace place;
  std::vector<std::string> verdicts(3);
  run_ranks(3, [&](int rank) {
    Process process(rank, 3, place, kPatientMs, check_order);
    const Model model = random_model(1);
    const OwnedBatch whole = random_batch(model, kBatch, 1, 0);
    try {
      Engine engine(model, process.devices, small_config(model, kBatch), {{kBatch}, {}});
      for (int step = 0;; ++step) {
        engine.train_step(part_of(whole, engine));
        if (rank == 1 && step == 3) throw DataError("image 7 cannot be read");
      }
    } catch (const DataError& error) {
      process.process_group->fail(error.what());
    } catch (const CommError&) {
    }
    verdicts[static_cast<size_t>(rank)] = process.process_group->failure();
  });
  EXPECT_EQ(verdicts, std::vector<std::string>(3, verdicts[0]));
  expect_contains(verdicts[0], "rank 1 (pid ", "failed: image 7 cannot be read; its last known was collective ");
}

/// Four processes that issue collectives directly.
class CudaCollectiveFault : public CudaProcesses {
 protected:
  static constexpr int kProcesses = 4;

  /// issue(rank, all_reduce) issues a step's collectives, all_reduce(bucket, count) each.
  using Issue = std::function<void(int rank, const std::function<void(int, int64_t)>& all_reduce)>;
  static std::string verdict_of(const Issue& issue) {
    static constexpr const char* kNames[] = {"bucket 0", "bucket 1", "bucket 2", "bucket 3"};
    const RendezvousPlace place;
    std::vector<std::string> verdicts(kProcesses);
    run_ranks(kProcesses, [&](int rank) {
      Process process(rank, kProcesses, place, kPatientMs, check_order);
      const auto communicators = make_communicators(process.devices);
      ExecContext& ctx = process.devices[0].communication();
      const Tensor values = ctx.allocate({1024}, DType::f32, Category::communication, "values");
      zero(ctx, values);
      ctx.set_step(6);
      const std::string text = comm_error_of([&] {
        issue(rank, [&](int bucket, int64_t count) {
          const PhaseScope phase(ctx, Phase::reduce, kNames[bucket]);
          communicators[0]->all_reduce(ctx, values.view().rows(0, count));
        });
        while (process.process_group->failure().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ctx.stream().synchronize();  // what was issued is aborted
        communicators[0]->barrier(ctx);
      });
      verdicts[static_cast<size_t>(rank)] = process.process_group->failure();
      EXPECT_EQ(text, verdicts[static_cast<size_t>(rank)]);
    });
    EXPECT_EQ(verdicts, std::vector<std::string>(kProcesses, verdicts[0]));
    return verdicts[0];
  }
};

TEST_F(CudaCollectiveFault, ADifferentCountIsNamed) {
  const std::string verdict = verdict_of([](int rank, const auto& all_reduce) {
    for (int bucket = 0; bucket < 4; ++bucket)
      all_reduce(bucket, 100 * (bucket + 1) - (rank == 1 && bucket == 2 ? 1 : 0));
  });
  expect_contains(
      verdict, "rank 1 (pid ",
      "began collective 2 (all_reduce of bucket 2, 1196 bytes, phase reduce, step 6), where ranks 0, 2, 3 began",
      "collective 2 (all_reduce of bucket 2, 1200 bytes");
}

TEST_F(CudaCollectiveFault, ASkippedCollectiveIsNamed) {
  const std::string verdict = verdict_of([](int rank, const auto& all_reduce) {
    for (int bucket = 0; bucket < 4; ++bucket) {
      if (rank != 3 || bucket != 1) all_reduce(bucket, 100);
    }
  });
  expect_contains(verdict, "rank 3 (pid ",
                  "began collective 1 (all_reduce of bucket 2, 400 bytes, phase reduce, step 6), where ranks 0 to 2 "
                  "began collective 1 "
                  "(all_reduce of bucket 1");
}

TEST_F(CudaCollectiveFault, ADifferentOrderIsNamed) {
  const std::string verdict = verdict_of([](int rank, const auto& all_reduce) {
    for (const int bucket : {0, rank == 0 ? 2 : 1, rank == 0 ? 1 : 2, 3}) all_reduce(bucket, 100);
  });
  expect_contains(verdict, "rank 0 (pid ", "began collective 1 (all_reduce of bucket 2");
}

TEST_F(CudaCollectiveFault, ARankThatDoesNotJoinNcclIsNamed) {
  standins::hang_nccl_init(2);
  const RendezvousPlace place;
  run_ranks(3, [&](int rank) {
    Process process(rank, 3, place, kImpatientMs / 5, check_order);
    expect_contains(comm_error_of([&] { make_communicators(process.devices); }), "s in the initialization of NCCL");
  });
}

}  // namespace
}  // namespace vitrine::test
