// SPDX-License-Identifier: Apache-2.0
// Steps with collectives that are replayed as CUDA graphs, over the stand-ins: each process is a thread with its own process group, one GPU and an
// engine. Replayed steps have the bits of issued ones, and a process that dies, is late or would do something else than the others is named.
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "nn/parallel/process_part.h"
#include "runtime/comm/communicator.h"
#include "runtime/copy.h"
#include "runtime/error.h"
#include "tests/parallel/random_model.h"
#include "tests/runtime/processes.h"
#include "tests/standins/controls.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

constexpr int kSteps = 10;
constexpr int64_t kImpatientMs = 3000;

/// One of the processes, from its rendezvous to its end.
struct Process {
  using Change = std::function<void(DeviceGroupOptions&)>;
  Process(int rank, int size, const RendezvousPlace& place, int64_t timeout_ms = kPatientMs, const Change& change = {})
      : process_group(std::make_shared<ProcessGroup>(process_options(rank, size, place.init(), timeout_ms))), devices(options(rank, change)) {
    standins::be_process_of({rank});
  }
  DeviceGroupOptions options(int rank, const Change& change) const {
    DeviceGroupOptions options;
    options.devices = {{Backend::cuda, rank}};
    options.memory_bytes = {int64_t{256} << 20};
    options.process_group = process_group;
    if (change) change(options);
    return options;
  }

  std::shared_ptr<ProcessGroup> process_group;
  DeviceGroup devices;
  Tensor kept;  // of the caller
};

/// Rows of `whole` in the ranges.
template <class T>
void take_rows(const T* from, int64_t row, const std::vector<RowRange>& rows, std::vector<T>& to) {
  for (const RowRange& r : rows) to.insert(to.end(), from + r.begin * row, from + r.end * row);
}

/// This process's rows of a batch of u8 images that all processes know.
HostBatch part_of(const OwnedBatch& whole, const EngineConfig& config, const DeviceGroup& devices) {
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

/// What one rank finds.
struct Training {
  std::vector<float> parameters;
  std::vector<double> losses, norms;
  int skipped = 0;
  GraphCounts counts;
  std::string state;
};

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

EngineConfig with(EngineConfig config, DType dtype, const std::string& optimizer) {
  config.optimizer =
      optimizer == "sgd" ? make_optimizer_config("sgd", 0.05, 0.9, false, 1e-3) : make_optimizer_config(optimizer, 0.05, {}, false, {});
  config.precision.compute = dtype;
  if (dtype == DType::f16) config.precision.loss_scaling.kind = LossScaling::Kind::dynamic;
  return config;
}

class CudaGraphProcesses : public ::testing::Test {
 protected:
  CudaGraphProcesses() {
    {
      DeviceGroupOptions options;
      options.devices = {{Backend::cuda, 0}};
      options.memory_bytes = {int64_t{1} << 20};
      const DeviceGroup warm_up(options);
    }
    standins::reset();
    check_.emplace();
  }
  ~CudaGraphProcesses() override {
    check_.reset();
    EXPECT_EQ(standins::live_objects(), 0);
    EXPECT_EQ(standins::communicators_ended_before_graphs(), 0);
    standins::reset();
  }

  /// Trains with another learning rate and other data in each step, one step with fewer samples, and evaluates in between.
  static std::vector<Training> train(const Model& model, EngineConfig config, bool cuda_graph, int processes) {
    config.cuda_graph = cuda_graph;
    const RendezvousPlace place;
    std::vector<Training> trainings(static_cast<size_t>(processes));
    run_ranks(processes, [&](int rank) {
      Process process(rank, processes, place);
      Training& result = trainings[static_cast<size_t>(rank)];
      Engine engine(model, process.devices, config, {{config.batch_size, config.batch_size - 1}, {}});
      for (int step = 0; step < kSteps; ++step) {
        engine.set_learning_rate(0.05 / (step + 1));
        const int64_t samples = step == 4 ? config.batch_size - 1 : config.batch_size;
        engine.train_step(part_of(random_batch(model, samples, static_cast<uint32_t>(step), 0.1), config, process.devices));
      }
      for (const StepResult& step : engine.take_step_results(true)) {
        result.losses.push_back(step.loss_sum);
        result.norms.push_back(step.gradient_norm);
        result.skipped += step.skipped ? 1 : 0;
      }
      engine.finish();
      engine.verify_replicas();
      result.parameters = engine.parameters();
      result.counts = engine.graph_counts();
      result.state = engine.cuda_graphs();
      process.process_group->close();
    });
    return trainings;
  }

  /// Returns how many steps were skipped.
  static int expect_same_bits(const Model& model, const EngineConfig& config, int processes = 2) {
    const std::vector<Training> issued = train(model, config, false, processes), replayed = train(model, config, true, processes);
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

 private:
  std::optional<LeavesNothingBehind> check_;
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

/// Left out under sanitizers, where it takes minutes.
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
    const HostBatch batch = part_of(random_batch(model, 6, 1, 0), config, process.devices);
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
    const HostBatch batch = part_of(random_batch(model, 6, 1, 0), config, process.devices);
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
      for (int step = 1; step < 9; ++step) EXPECT_EQ(spans[step], spans[1]) << ctx->stream().name() << ", step " << step;
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
    const HostBatch batch = part_of(random_batch(model, 6, 1, 0), config, process.devices);
    for (int step = 0; step < 12; ++step) {
      if (step == 1 || step == 3 || step == 6 || step == 8) process.devices[0].pool().record_history(step == 1 || step == 6);
      engine.train_step(batch);
    }
    EXPECT_EQ(engine.graph_counts().str(), "7 micro-batches as graphs, 5 issued: 1 first of their shape, 4 while the memory was recorded");
    engine.finish();
    process.process_group->close();
  });
}

TEST_F(CudaGraphProcesses, KeepNoGraphWhereTheBlocksOfOneRankMoved) {
  const Model model = random_model(1);
  const RendezvousPlace place;
  std::vector<std::vector<float>> parameters(2);
  run_ranks(2, [&](int rank) {
    Process process(rank, 2, place);
    const EngineConfig config = with(small_config(model, 6), DType::f32, "adamw");
    Engine engine(model, process.devices, config, {{6}, {64}});  // the slab has more room than a step needs
    const HostBatch batch = part_of(random_batch(model, 6, 1, 0), config, process.devices);
    for (int step = 0; step < 8; ++step) {
      Tensor other;
      if (rank == 1 && step == 1) other = process.devices[0].compute().allocate({1}, DType::f32, Category::activations, "of the caller");
      engine.train_step(batch);
    }
    engine.take_step_results(true);
    // Step 2 is captured and launched on both ranks, and its graph is kept on neither: steps 2 and 4 are captured, 6 is replayed.
    EXPECT_EQ(engine.graph_counts().launched, 6);
    parameters[static_cast<size_t>(rank)] = engine.parameters();
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
      texts[static_cast<size_t>(rank)] = engine.cuda_graphs();
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
  const std::string several = "several GPUs of one process train together; with one process for each GPU steps can be replayed";
  EXPECT_EQ(states([](int rank, DeviceGroupOptions& options, EngineConfig&) {
              if (rank == 0) options.devices.push_back({Backend::cuda, 2});
              if (rank == 0) standins::be_process_of({0, 2});
            }),
            (Texts{"off: " + several, "off: on rank 0, " + several}));
}

/// Three processes that replay steps until one of them misbehaves.
class CudaGraphFault : public CudaGraphProcesses {
 protected:
  static constexpr int kProcesses = 3;

  /// `culprit` calls misbehave before the eighth step; it returns false to leave without close(). Returns the error of the others, which must be one.
  std::string verdict_when(int culprit, const std::function<bool(Process&)>& misbehave, int64_t timeout_ms = kPatientMs) {
    const RendezvousPlace place;
    std::vector<std::string> verdicts(kProcesses);
    const Model model = random_model(1);
    run_ranks(kProcesses, [&](int rank) {
      Process process(rank, kProcesses, place, timeout_ms);
      const EngineConfig config = small_config(model, 6);
      Engine engine(model, process.devices, config, {{6}, {64}});
      const HostBatch batch = part_of(random_batch(model, 6, 1, 0), config, process.devices);
      const auto train = [&] {
        for (int step = 0; step < 100000; ++step) {
          if (step == 7) {
            engine.take_step_results(true);
            EXPECT_EQ(engine.graph_counts().launched, 5);
            if (rank == culprit && !misbehave(process)) return false;
          }
          engine.train_step(batch);
        }
        return true;
      };
      try {
        if (train()) ADD_FAILURE() << "rank " << rank << " was not stopped";
      } catch (const CommError& error) {
        verdicts[static_cast<size_t>(rank)] = error.what();
        EXPECT_EQ(process.process_group->failure(), error.what());
        EXPECT_THROW(engine.train_step(batch), CommError);
      } catch (const Error& error) {
        EXPECT_EQ(rank, culprit) << error.what();
        own_error_ = error.what();
      }
    });
    std::set<std::string> reported(verdicts.begin(), verdicts.end());
    reported.erase("");
    EXPECT_EQ(reported.size(), 1U) << (reported.empty() ? "no rank reported the failure" : *reported.begin() + "\n" + *reported.rbegin());
    for (int rank = 0; rank < kProcesses; ++rank) EXPECT_TRUE(rank == culprit || !verdicts[static_cast<size_t>(rank)].empty()) << rank;
    return reported.empty() ? std::string() : *reported.begin();
  }

  std::string own_error_;  // of the culprit
};

TEST_F(CudaGraphFault, ADeadProcessIsNamed) {
  const std::string verdict = verdict_when(2, [](Process&) { return false; });
  expect_contains(verdict, "rank 2 (pid ");
  expect_contains(verdict, ") died: its connection closed unexpectedly; its last known was collective ");
  expect_contains(verdict, "all_reduce of bucket ");
  expect_contains(verdict, "phase reduce, step 6, in a CUDA graph)");
  expect_contains(verdict, "; others have reached collective ");
}

TEST_F(CudaGraphFault, ALateProcessIsNamed) {
  const std::string verdict = verdict_when(
      1,
      [](Process& process) {
        while (process.process_group->failure().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return true;
      },
      kImpatientMs);
  expect_contains(verdict, "rank 1 (pid ");
  expect_contains(verdict, ") is late: others have begun collective ");
  expect_contains(verdict, "and it has not; its last known was collective ");
  expect_contains(verdict, "step 6, in a CUDA graph)");
}

TEST_F(CudaGraphFault, AnErrorInNcclIsReported) {
  const std::string verdict = verdict_when(1, [](Process&) {
    standins::break_nccl(1);
    return true;
  });
  expect_contains(verdict, "rank 1 (pid ");
  expect_contains(verdict, "rank 1 (cuda:1): NCCL reports ");
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
  expect_contains(verdict, "rank 1 (pid ");
  expect_contains(verdict, "failed: ");
  expect_contains(verdict, "memory of cuda:1 has moved since this micro-batch was captured as a CUDA graph, which all ranks launch together");
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
  expect_contains(verdict, "rank 1 (pid ");
  expect_contains(verdict, ") is late: others have begun collective ");
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
      const HostBatch batch = part_of(random_batch(model, 6, 1, 0), config, process.devices);
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

TEST_F(CudaGraphProcesses, ARankThatIssuesWhatAnotherLaunchesIsNamed) {
  const RendezvousPlace place;
  std::vector<std::string> verdicts(2);
  run_ranks(2, [&](int rank) {
    Process process(rank, 2, place);
    auto communicators = make_communicators(process.devices);
    Communicator& communicator = *communicators[0];
    ASSERT_TRUE(communicator.can_capture());
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
    communicator.begin_capture();
    all_reduce();
    const std::unique_ptr<CapturedCollectives> collectives = communicator.end_capture();
    std::unique_ptr<CapturedWork> work = compute.end_capture();
    EXPECT_THROW(
        {
          if (rank == 0) {
            communicator.begin_launch(*collectives, 5);
            compute.launch(*work, 5);
          } else {
            ctx.set_step(5);
            all_reduce();
          }
          while (process.process_group->failure().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
          process.devices.synchronize();
          communicator.begin_launch(*collectives, 6);
        },
        CommError);
    verdicts[static_cast<size_t>(rank)] = process.process_group->failure();
    work.reset();
  });
  expect_contains(
      verdicts[0],
      "began collective 1 (all_reduce of bucket 0, 32 bytes, phase reduce, step 5), where rank 0 began collective 1 (all_reduce of bucket "
      "0, 32 bytes, phase reduce, step 5, in a CUDA graph)");
  EXPECT_EQ(verdicts[0], verdicts[1]);
}

}  // namespace
}  // namespace vitrine::test
