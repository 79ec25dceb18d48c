// SPDX-License-Identifier: Apache-2.0
// While steps are replayed as CUDA graphs, a process that dies, is late, or would do something else than the others is
// named.
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/comm/capabilities.h"
#include "runtime/comm/communicator.h"
#include "runtime/copy.h"
#include "runtime/error.h"
#include "tests/parallel/cuda_processes.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

constexpr int64_t kImpatientMs = 3000;

/// Three processes that replay steps until one of them misbehaves.
class CudaGraphFault : public GraphProcesses {
 protected:
  /// `culprit` calls misbehave before the eighth step; it returns false to leave without close(). Returns the error of
  /// the others.
  std::string verdict_when(int culprit, const std::function<bool(Process&)>& misbehave,
                           int64_t timeout_ms = kPatientMs) {
    const Verdict verdict = verdict_of({.processes = 3,
                                        .culprit = culprit,
                                        .model = [](int) { return random_model(1); },
                                        .misbehave =
                                            [&](Process& process, Engine& engine, int step) {
                                              if (step != 7) return true;
                                              engine.take_step_results(true);
                                              EXPECT_EQ(engine.graph_counts().launched, 5);
                                              return misbehave(process);
                                            },
                                        .timeout_ms = timeout_ms},
                                       6, {{6}, {64}});
    own_error_ = verdict.own;
    return verdict.text;
  }

  std::string own_error_;  // of the culprit
};

TEST_F(CudaGraphFault, ADeadProcessIsNamed) {
  const std::string verdict = verdict_when(2, [](Process&) { return false; });
  expect_contains(verdict, "rank 2 (pid ", ") died: its connection closed unexpectedly; its last known was collective ",
                  "all_reduce of bucket ", "phase reduce, step 6, in a CUDA graph)",
                  "; others have reached collective ");
}

TEST_F(CudaGraphFault, ALateProcessIsNamed) {
  const std::string verdict = verdict_when(
      1,
      [](Process& process) {
        while (process.process_group->failure().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return true;
      },
      kImpatientMs);
  expect_contains(verdict, "rank 1 (pid ", ") is late: others have begun collective ", "and it has not",
                  "its last known was collective ", "step 6, in a CUDA graph)");
}

TEST_F(CudaGraphFault, AnErrorInNcclIsReported) {
  const std::string verdict = verdict_when(1, [](Process&) {
    standins::break_nccl(1);
    return true;
  });
  expect_contains(verdict, "rank 1 (pid ", "rank 1 (cuda:1): NCCL reports ");
}

TEST_F(CudaGraphFault, ACollectiveThatHangsInAReplayIsFound) {
  const std::string verdict = verdict_when(
      1,
      [](Process&) {
        standins::hang_nccl_call(1, 2);
        return true;
      },
      kImpatientMs);
  expect_contains(verdict, "which every rank has begun and no rank is known to have finished");
}

TEST_F(CudaGraphFault, ARankWhoseMemoryMovedDoesNotGoOnAlone) {
  const std::string verdict = verdict_when(1, [&](Process& process) {
    process.kept = process.devices[0].compute().allocate({1}, DType::f32, Category::activations, "of the caller");
    return true;
  });
  expect_contains(verdict, "rank 1 (pid ", "failed: ",
                  "memory of cuda:1 has moved since this micro-batch was captured as a CUDA graph, which all ranks "
                  "launch together");
  expect_contains(own_error_, "memory of cuda:1 has moved");
}

TEST_F(CudaGraphFault, ARankThatRecordsItsMemoryAloneIsNamed) {
  const std::string verdict = verdict_when(
      1,
      [](Process& process) {
        process.devices[0].pool().record_history(true);
        return true;
      },
      kImpatientMs);
  expect_contains(verdict, "rank 1 (pid ", ") is late: others have begun collective ");
}

TEST_F(CudaGraphFault, AnEngineEndsWithAReplayInFlight) {
  const RendezvousPlace place;
  std::vector<std::string> verdicts(2);
  const Model model = random_model(1);
  run_ranks(2, [&](int rank) {
    Process process(rank, 2, place);
    try {
      const EngineConfig config = small_config(model, 6);
      Engine engine(model, process.devices, config, {{6}, {}});
      const HostBatch batch = part_of(random_batch(model, 6, 1, 0), engine);
      for (int step = 0;; ++step) {
        engine.train_step(batch);
        if (rank == 1 && step == 8) throw DataError("image 7 cannot be read");
      }
    } catch (const DataError& error) {
      process.process_group->fail(error.what());
    } catch (const CommError&) {
    }
    verdicts[static_cast<size_t>(rank)] = process.process_group->failure();
  });
  EXPECT_EQ(verdicts[0], verdicts[1]);
  expect_contains(verdicts[0], "failed: image 7 cannot be read; its last known was collective ");
}

TEST_F(CudaGraphFault, ARankThatIssuesWhatAnotherLaunchesIsNamed) {
  const RendezvousPlace place;
  std::vector<std::string> verdicts(2);
  run_ranks(2, [&](int rank) {
    Process process(rank, 2, place);
    auto communicators = make_communicators(process.devices);
    Communicator& communicator = *communicators[0];
    CollectiveCapture* const capture = CollectiveCapture::of(&communicator);
    ASSERT_NE(capture, nullptr);
    ExecContext& ctx = process.devices[0].communication();
    Stream& compute = process.devices[0].compute().stream();
    const Tensor values = ctx.allocate({8}, DType::f32, Category::communication, "values");
    zero(ctx, values);
    const auto all_reduce = [&] {
      const PhaseScope phase(ctx, Phase::reduce, "bucket 0");
      communicator.all_reduce(ctx, values.view());
    };
    all_reduce();
    ctx.stream().synchronize();
    Stream* const joined[] = {&ctx.stream()};
    compute.begin_capture(joined);
    capture->begin_capture();
    all_reduce();
    const std::unique_ptr<CapturedCollectives> collectives = capture->end_capture();
    std::unique_ptr<CapturedWork> work = compute.end_capture();
    EXPECT_THROW(
        {
          if (rank == 0) {
            capture->begin_launch(*collectives, 5);
            compute.launch(*work, 5);
          } else {
            ctx.set_step(5);
            all_reduce();
          }
          while (process.process_group->failure().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          process.devices.synchronize();
          capture->begin_launch(*collectives, 6);
        },
        CommError);
    verdicts[static_cast<size_t>(rank)] = process.process_group->failure();
    work.reset();
  });
  expect_contains(verdicts[0],
                  "began collective 1 (all_reduce of bucket 0, 32 bytes, phase reduce, step 5), where rank 0 began "
                  "collective 1 (all_reduce of bucket "
                  "0, 32 bytes, phase reduce, step 5, in a CUDA graph)");
  EXPECT_EQ(verdicts[0], verdicts[1]);
}

}  // namespace
}  // namespace vitrine::test
