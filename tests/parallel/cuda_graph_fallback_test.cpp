// SPDX-License-Identifier: Apache-2.0
// A step that CUDA refuses to capture or launch as a graph is issued, on all ranks, with the same bits.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/parallel/cuda_processes.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

constexpr int kFallbackSteps = 5;

struct Outcome {
  std::vector<float> parameters;
  std::vector<double> losses;
  std::string state;
  GraphCounts counts;
};

/// f16 with dynamic loss scaling and two micro-batches per step: all that a step keeps on the host is involved.
EngineConfig config_of(const Model& model) {
  EngineConfig config = small_config(model, 8);
  config.accumulate = 2;
  config.optimizer = make_optimizer_config("adamw", 0.05, {}, false, {});
  compute_in(config, DType::f16);
  config.precision.clip_norm = 0.1;
  return config;
}

/// Trains; `take_part` gives this process's rows of a batch.
template <class TakePart>
Outcome train(const Model& model, DeviceGroup& devices, const EngineConfig& config, const TakePart& take_part) {
  Engine engine(model, devices, config, {{config.batch_size}, {}});
  for (int step = 0; step < kFallbackSteps; ++step)
    engine.train_step(take_part(random_batch(model, config.batch_size, static_cast<uint32_t>(step), 0.1), engine));
  Outcome outcome;
  for (const StepResult& step : engine.take_step_results(true)) outcome.losses.push_back(step.loss_sum);
  engine.finish();  // also that the peak is the plan's
  outcome.parameters = engine.parameters().values();
  outcome.state = engine.facts().cuda_graphs;
  outcome.counts = engine.graph_counts();
  return outcome;
}

class CudaGraphFallback : public GraphProcesses {};

TEST_F(CudaGraphFallback, IssuesTheStepWhicheverCallIsRefused) {
  const Model model = random_model(1);
  EngineConfig config = config_of(model);
  const auto run = [&](int64_t failing) {
    DeviceGroup devices(test_group(1, false));
    standins::fail_capture_call(failing);
    return train(model, devices, config, [](const OwnedBatch& batch, Engine&) { return batch.view(); });
  };
  config.cuda_graph = false;
  const Outcome issued = run(0);
  config.cuda_graph = true;
  const Outcome replayed = run(0);
  const int64_t calls = standins::capture_calls();
  EXPECT_EQ(replayed.counts.failed, 0);
  EXPECT_EQ(replayed.counts.launched, 2 * (kFallbackSteps - 2));
  EXPECT_GT(calls, 50);
  for (int64_t n = 1; n <= calls; ++n) {
    SCOPED_TRACE("call " + std::to_string(n) + " of " + std::to_string(calls));
    const Outcome outcome = run(n);
    ASSERT_EQ(outcome.parameters, issued.parameters);
    ASSERT_EQ(outcome.losses, issued.losses);
    ASSERT_GE(outcome.counts.failed, 1);
    ASSERT_EQ(outcome.counts.failed + outcome.counts.launched, 2 * (kFallbackSteps - 2));
    ASSERT_EQ(outcome.state.substr(0, 15), "off since step ") << outcome.state;
    expect_contains(outcome.state, ": a step could not be ");
  }
  standins::fail_capture_call(0);
}

TEST_F(CudaGraphFallback, IssuesTheStepOnAllRanks) {
  const Model model = random_model(1);
  EngineConfig config = config_of(model);
  std::vector<std::vector<Outcome>> outcomes;
  for (const bool cuda_graph : {false, true}) {
    config.cuda_graph = cuda_graph;
    const RendezvousPlace place;
    std::vector<Outcome> of_ranks(2);
    run_ranks(2, [&](int rank) {
      Process process(rank, 2, place);
      if (rank == 1) standins::fail_capture_call(10);
      of_ranks[static_cast<size_t>(rank)] = train(model, process.devices, config, part_of);
      process.process_group->close();
    });
    outcomes.push_back(of_ranks);
  }
  for (const size_t rank : {size_t{0}, size_t{1}}) {
    const Outcome& outcome = outcomes[1][rank];
    EXPECT_EQ(outcome.parameters, outcomes[0][rank].parameters);
    EXPECT_EQ(outcome.losses, outcomes[0][rank].losses);
    EXPECT_EQ(outcome.counts.launched, 0);
    EXPECT_EQ(outcome.counts.failed, 2 * (kFallbackSteps - 2));
    expect_contains(outcome.state, rank == 0
                                       ? "off since step 3: on rank 1, a step could not be captured as a CUDA graph: "
                                       : "off since step 3: a step could not be captured as a CUDA graph: ");
  }
}

}  // namespace
}  // namespace vitrine::test
