// SPDX-License-Identifier: Apache-2.0
// Steps with collectives that are replayed as CUDA graphs, with one GPU in each process, have the bits of issued ones.
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/parallel/cuda_processes.h"
#include "tests/parallel/graph_training.h"

namespace vitrine::test {
namespace {

constexpr int kSteps = 10;

/// What one rank finds.
struct RankTraining : Training {
  GraphCounts counts;
  std::string state;
};

class CudaGraphProcesses : public GraphProcesses {
 protected:
  /// Trains with another learning rate and other data in each step, one step with fewer samples, and compares the
  /// replicas before the first capture and between replays, so that sharded states leave nothing to gather.
  static std::vector<RankTraining> train(const Model& model, EngineConfig config, bool cuda_graph, int processes) {
    config.cuda_graph = cuda_graph;
    const RendezvousPlace place;
    std::vector<RankTraining> trainings(static_cast<size_t>(processes));
    run_ranks(processes, [&](int rank) {
      Process process(rank, processes, place);
      RankTraining& result = trainings[static_cast<size_t>(rank)];
      Engine engine(model, process.devices, config, {{config.batch_size, config.batch_size - 1}, {}});
      for (int step = 0; step < kSteps; ++step) {
        engine.set_learning_rate(0.05 / (step + 1));
        const int64_t samples = step == 4 ? config.batch_size - 1 : config.batch_size;
        engine.train_step(part_of(random_batch(model, samples, static_cast<uint32_t>(step), 0.1), engine));
        if (step == 1 || step == 6) engine.parameters().verify();
      }
      for (const StepResult& step : engine.take_step_results(true)) {
        result.losses.push_back(step.loss_sum);
        result.norms.push_back(step.gradient_norm);
        result.skipped += step.skipped ? 1 : 0;
      }
      engine.finish();
      engine.parameters().verify();
      result.parameters = engine.parameters().values();
      result.counts = engine.graph_counts();
      result.state = engine.facts().cuda_graphs;
      process.process_group->close();
    });
    return trainings;
  }

  /// Returns how many steps were skipped.
  static int expect_same_bits(const Model& model, const EngineConfig& config, int processes = 2) {
    const std::vector<RankTraining> issued = train(model, config, false, processes),
                                    replayed = train(model, config, true, processes);
    for (size_t rank = 0; rank < issued.size(); ++rank) {
      SCOPED_TRACE("rank " + std::to_string(rank));
      EXPECT_EQ(issued[rank].counts.launched, 0);
      EXPECT_EQ(replayed[rank].state, "after two steps of a shape");
      // Two steps of the full size are issued, and the only one of the other size.
      EXPECT_EQ(replayed[rank].counts.launched, (kSteps - 3) * config.accumulate) << replayed[rank].counts.str();
      EXPECT_TRUE(same_bits(replayed[rank].parameters, issued[rank].parameters));
      EXPECT_TRUE(same_bits(replayed[rank].losses, issued[rank].losses));
      EXPECT_TRUE(same_bits(replayed[rank].norms, issued[rank].norms));
    }
    return issued[0].skipped;
  }
};

TEST_F(CudaGraphProcesses, ReplayTheBitsOfEveryModelAndPrecision) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (uint32_t seed = 0; seed < 3; ++seed) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + ", model " + std::to_string(seed));
      const Model model = random_model(seed);
      expect_same_bits(model, with(small_config(model, 6), dtype, seed == 0 ? "sgd" : seed == 1 ? "adam" : "adamw"));
    }
  }
}

TEST_F(CudaGraphProcesses, ReplayEachMicroBatchOfAStep) {
  const Model model = random_model(1);
  EngineConfig config = with(small_config(model, 12), DType::f16, "adamw");
  config.accumulate = 3;
  config.precision.clip_norm = 0.1;
  config.ema_decay = 0.9;
  expect_same_bits(model, config);
}

TEST_F(CudaGraphProcesses, ReplayShardedStates) {
  const Model model = random_model(1), with_batch_norm = tiny_resnet();
  for (const char* mode : {"zero1", "zero2", "zero3"}) {
    SCOPED_TRACE(mode);
    EngineConfig config = with(small_config(model, 12), DType::f16, "adamw");
    config.scheme = scheme_preset(mode);
    config.accumulate = 2;
    config.bucket_bytes = config.first_bucket_bytes = 512;
    expect_same_bits(model, config);
    config = with(small_config(with_batch_norm, 3), DType::f32, "sgd");
    config.scheme = scheme_preset(mode);
    expect_same_bits(with_batch_norm, config, 4);
  }
}

TEST_F(CudaGraphProcesses, ReplayARankWithoutSamples) {
  // Three samples for four ranks in each micro-batch: the last rank sums zeros.
  const Model model = random_model(1);
  for (const int accumulate : {1, 2}) {
    EngineConfig config = with(small_config(model, 3 * accumulate), DType::f32, "adamw");
    config.accumulate = accumulate;
    expect_same_bits(model, config, 4);
  }
}

TEST_F(CudaGraphProcesses, ReplayBatchNorm) {
  const Model model = tiny_resnet();
  for (const BatchStatistics statistics : {BatchStatistics::exact, BatchStatistics::local}) {
    EngineConfig config = with(small_config(model, 6), DType::f32, "sgd");
    config.batch_statistics = statistics;
    expect_same_bits(model, config);
  }
  expect_same_bits(model, with(small_config(model, 3), DType::f32, "sgd"), 4);  // also in a rank without samples
}

TEST_F(CudaGraphProcesses, ReplayGradientsIn16Bits) {
  const Model model = random_model(2);
  EngineConfig config = with(small_config(model, 6), DType::f16, "adamw");
  config.precision.reduce_dtype = DType::f16;
  expect_same_bits(model, config);
}

TEST_F(CudaGraphProcesses, ReplayTheSumsOfSquaresOfNamedModels) {
  const Model model = make_model("mlp", {.image_size = 32});
  EngineConfig config = with(small_config(model, 4), DType::f32, "sgd");
  config.workspace_bytes = int64_t{32} << 20;
  config.bucket_bytes = int64_t{5} << 20;
  expect_same_bits(model, config);
}

TEST_F(CudaGraphProcesses, SkipTheStepsThatIssuedOnesSkip) {
  const Model model = random_model(4);
  EngineConfig config = with(small_config(model, 6), DType::f16, "sgd");
  config.precision.loss_scaling.scale = 0x1p120;  // overflows until it has fallen
  config.precision.loss_scaling.constants.backoff_factor = 0x1p-24;
  EXPECT_GE(expect_same_bits(model, config), 3);
}

TEST_F(CudaGraphProcesses, LaunchEachMicroBatchOnceAndIssueNoCollective) {
  const Model model = random_model(1);
  const RendezvousPlace place;
  run_ranks(2, [&](int rank) {
    Process process(rank, 2, place);
    const EngineConfig config = with(small_config(model, 6), DType::f32, "adamw");
    Engine engine(model, process.devices, config, {{6}, {}});
    const HostBatch batch = part_of(random_batch(model, 6, 1, 0), engine);
    for (int step = 0; step < 4; ++step) engine.train_step(batch);
    engine.take_step_results(true);
    process.process_group->gather("the end of the captures", "");
    if (rank == 0) standins::take_call_counts();
    process.process_group->gather("the beginning of the replays", "");
    for (int step = 0; step < 6; ++step) engine.train_step(batch);
    engine.take_step_results(true);
    process.process_group->gather("the end of the replays", "");
    if (rank == 0) {
      const standins::CallCounts counts = standins::take_call_counts();  // of both processes
      EXPECT_EQ(counts.graph_launches, 12);
      EXPECT_EQ(counts.collectives, 0);
      EXPECT_LE(counts.launches + counts.products, 12);  // the images become the input outside the graph
      EXPECT_EQ(counts.waits, 24);
    }
    process.process_group->gather("the counts", "");
    EXPECT_EQ(engine.graph_counts().launched, 8);
    engine.finish();
    process.process_group->close();
  });
}

TEST_F(CudaGraphProcesses, KeepTheSpansOfBothStreams) {
  const Model model = random_model(1);
  const RendezvousPlace place;
  run_ranks(2, [&](int rank) {
    Process process(rank, 2, place);
    const EngineConfig config = with(small_config(model, 6), DType::f32, "adamw");
    Engine engine(model, process.devices, config, {{6}, {}});
    const HostBatch batch = part_of(random_batch(model, 6, 1, 0), engine);
    for (int step = 0; step < 9; ++step) engine.train_step(batch);
    engine.take_step_results(true);
    EXPECT_EQ(engine.graph_counts().launched, 7);
    process.devices.synchronize();
    Device& device = process.devices[0];
    for (ExecContext* ctx : {&device.compute(), &device.communication()}) {
      std::map<int64_t, std::vector<std::string>> spans;
      for (const SpanRecord& span : ctx->stream().take_spans()) {
        if (span.info.phase == Phase::setup) continue;
        spans[span.info.step].push_back(std::string(phase_name(span.info.phase)) + " " + span.info.layer);
        EXPECT_LE(span.begin_ns, span.end_ns);
      }
      EXPECT_GT(spans[1].size(), 3U);
      for (int step = 1; step < 9; ++step)
        EXPECT_EQ(spans[step], spans[1]) << ctx->stream().name() << ", step " << step;
    }
    engine.finish();
    process.process_group->close();
  });
}

TEST_F(CudaGraphProcesses, IssueWhileAllRecordTheMemory) {
  const Model model = random_model(1);
  const RendezvousPlace place;
  run_ranks(2, [&](int rank) {
    Process process(rank, 2, place);
    const EngineConfig config = with(small_config(model, 6), DType::f32, "adamw");
    Engine engine(model, process.devices, config, {{6}, {}});
    const HostBatch batch = part_of(random_batch(model, 6, 1, 0), engine);
    for (int step = 0; step < 12; ++step) {
      if (step == 1 || step == 3 || step == 6 || step == 8)
        process.devices[0].pool().record_history(step == 1 || step == 6);
      engine.train_step(batch);
    }
    EXPECT_EQ(engine.graph_counts().str(),
              "7 micro-batches as graphs, 5 issued: 1 first of their shape, 4 while the memory was recorded");
    engine.finish();
    process.process_group->close();
  });
}

TEST_F(CudaGraphProcesses, ReplayTheSameGraphsWhenOneEvaluatesAlone) {
  const Model model = random_model(1);
  std::vector<std::vector<float>> parameters;
  for (const bool cuda_graph : {false, true}) {
    const RendezvousPlace place;
    std::vector<std::vector<float>> of_ranks(2);
    run_ranks(2, [&](int rank) {
      Process process(rank, 2, place);
      EngineConfig config = with(small_config(model, 6), DType::f32, "adamw");
      config.ema_decay = 0.9;
      config.cuda_graph = cuda_graph;
      Engine engine(model, process.devices, config, {{6}, {4}});
      const HostBatch held_out = part_of(random_batch(model, 4, 77, 0), engine);
      for (int step = 0; step < 16; ++step) {
        // The number of evaluations decides whether they leave the slots as they were.
        const int evaluations = step < 5 ? 0 : step % 4;
        for (int i = 0; rank == 1 && i < evaluations; ++i) engine.evaluate(held_out);
        if (step == 9) {
          const Engine::AverageScope averages(engine);
          engine.evaluate(held_out);
        }
        if (step == 11) engine.checkpointer().state();
        engine.train_step(part_of(random_batch(model, 6, static_cast<uint32_t>(step), 0), engine));
      }
      engine.take_step_results(true);
      EXPECT_EQ(engine.graph_counts().launched, cuda_graph ? 14 : 0) << engine.graph_counts().str();
      of_ranks[static_cast<size_t>(rank)] = engine.parameters().values();
      engine.finish();
      process.process_group->close();
    });
    EXPECT_EQ(of_ranks[0], of_ranks[1]);
    parameters.push_back(of_ranks[0]);
  }
  EXPECT_TRUE(same_bits(parameters[0], parameters[1]));
}

TEST_F(CudaGraphProcesses, KeepNoGraphWhereTheBlocksOfOneRankMoved) {
  const Model model = random_model(1);
  const RendezvousPlace place;
  std::vector<std::vector<float>> parameters(2);
  run_ranks(2, [&](int rank) {
    Process process(rank, 2, place);
    const EngineConfig config = with(small_config(model, 6), DType::f32, "adamw");
    Engine engine(model, process.devices, config, {{6}, {64}});  // the slab has more room than a step needs
    const HostBatch batch = part_of(random_batch(model, 6, 1, 0), engine);
    for (int step = 0; step < 8; ++step) {
      Tensor other;
      if (rank == 1 && step == 1)
        other = process.devices[0].compute().allocate({1}, DType::f32, Category::activations, "of the caller");
      engine.train_step(batch);
    }
    engine.take_step_results(true);
    // Step 2 is captured and launched on both ranks, and its graph is kept on neither: steps 2 and 4 are captured, 6 is
    // replayed.
    EXPECT_EQ(engine.graph_counts().launched, 6);
    parameters[static_cast<size_t>(rank)] = engine.parameters().values();
    engine.finish();
    process.process_group->close();
  });
  EXPECT_EQ(parameters[0], parameters[1]);
}

TEST_F(CudaGraphProcesses, ReplayOnAllRanksOrOnNone) {
  const Model model = random_model(1);
  const auto states = [&](const std::function<void(int, DeviceGroupOptions&, EngineConfig&)>& change) {
    std::vector<std::string> texts(2);
    const RendezvousPlace place;
    run_ranks(2, [&](int rank) {
      EngineConfig config = small_config(model, 6);
      const Process::Change change_devices = [&](DeviceGroupOptions& options) { change(rank, options, config); };
      Process process(rank, 2, place, kPatientMs, change_devices);
      Engine engine(model, process.devices, config, {{6}, {}});
      texts[static_cast<size_t>(rank)] = engine.facts().cuda_graphs;
      engine.finish();
      process.process_group->close();
    });
    return texts;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(states([](int, DeviceGroupOptions&, EngineConfig&) {}), Texts(2, "after two steps of a shape"));
  EXPECT_EQ(states([](int rank, DeviceGroupOptions& options, EngineConfig&) { options.check_order = rank == 1; }),
            (Texts{"off: on rank 1, the order of operations is checked", "off: the order of operations is checked"}));
  EXPECT_EQ(states([](int rank, DeviceGroupOptions& options, EngineConfig& config) {
              config.cuda_graph = rank == 1;
              if (rank == 1) options.trace = TraceLevel::operation;
            }),
            (Texts{"off: EngineConfig::cuda_graph is off", "off: every operation is traced"}));
  const std::string several =
      "several GPUs of one process train together; with one process for each GPU steps can be replayed";
  EXPECT_EQ(states([](int rank, DeviceGroupOptions& options, EngineConfig&) {
              if (rank == 0) options.devices.push_back({Backend::cuda, 2});
              if (rank == 0) standins::be_process_of({0, 2});
            }),
            (Texts{"off: " + several, "off: on rank 0, " + several}));
}

}  // namespace
}  // namespace vitrine::test
