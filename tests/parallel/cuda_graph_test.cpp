// SPDX-License-Identifier: Apache-2.0
// Steps that are replayed as CUDA graphs compute the bits of steps that are issued.
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "nn/layers/activations.h"
#include "nn/parallel/engine_setup.h"
#include "runtime/error.h"
#include "runtime/trace/phase_table.h"
#include "tests/parallel/graph_training.h"

namespace vitrine::test {
namespace {

TEST(CudaGraph, ReplaysTheBitsOfEveryModelAndPrecision) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    if (dtype == DType::bf16 && !has_bf16()) continue;
    for (uint32_t seed = 0; seed < 6; ++seed) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + ", model " + std::to_string(seed));
      const Model model = random_model(seed);
      expect_same_bits(model, with(small_config(model, 6), dtype,
                                   seed % 3 == 0   ? "sgd"
                                   : seed % 3 == 1 ? "adam"
                                                   : "adamw"));
    }
  }
}

TEST(CudaGraph, ReplaysBatchNorm) {
  const Model model = tiny_resnet();
  expect_same_bits(model, with(small_config(model, 6), DType::f32, "sgd"));
}

TEST(CudaGraph, ReplaysEachMicroBatchOfAStep) {
  const Model model = random_model(1);
  EngineConfig config = with(small_config(model, 6), DType::f16, "adamw");
  config.accumulate = 3;
  config.precision.clip_norm = 0.1;
  config.ema_decay = 0.9;
  expect_same_bits(model, config);
}

TEST(CudaGraph, ReplaysImagesInAForm) {
  const Model model = random_model(1);
  EngineConfig config = with(small_config(model, 6), DType::f16, "adamw");
  config.accumulate = 2;
  config.input_packing = InputPacking::on;
  ASSERT_TRUE(input_form(model, DeviceGroup(test_group(1, false)), config));
  expect_same_bits(model, config);
}

/// Images come from the device by other indices, and change by other random numbers, in each epoch.
TEST(CudaGraph, ReplaysImagesThatTheDeviceHolds) {
  const Model model = random_model(1);
  for (const int accumulate : {1, 2, 3}) {
    SCOPED_TRACE(accumulate);
    EngineConfig config = with(small_config(model, 6), accumulate == 2 ? DType::f16 : DType::f32, "adamw");
    config.accumulate = accumulate;
    config.resident_images = random_images(model, 20);
    if (accumulate > 1) config.augmentation = {true, 2, 3};
    expect_same_bits(model, config);
  }
}

TEST(CudaGraph, ReplaysImagesThatChangeAtRandom) {
  const Model model = random_model(2);
  EngineConfig config = with(small_config(model, 6), DType::f32, "sgd");
  config.augmentation = {true, 2, 3};
  expect_same_bits(model, config);
}

TEST(CudaGraph, ReplaysWithSegmentsThatAreRecomputed) {
  const Model model = random_model(2);
  EngineConfig config = with(small_config(model, 6), DType::f32, "adam");
  config.recompute_segments = 2;
  expect_same_bits(model, config);
}

TEST(CudaGraph, ReplaysEveryScheme) {
  const Model model = random_model(3);
  for (const LossAt loss_at : {LossAt::parallel, LossAt::gathered}) {
    for (const ReducerKind reduce : {ReducerKind::allreduce, ReducerKind::gpu0}) {
      EngineConfig config = with(small_config(model, 6), DType::f32, "adamw");
      config.scheme.loss_at = loss_at;
      config.scheme.reduce = reduce;
      expect_same_bits(model, config);
    }
  }
}

TEST(CudaGraph, SkipsTheStepsThatIssuedOnesSkip) {
  const Model model = random_model(4);
  EngineConfig config = with(small_config(model, 6), DType::f16, "sgd");
  config.precision.loss_scaling.scale = 0x1p120;  // overflows until it has fallen
  config.precision.loss_scaling.constants.backoff_factor = 0x1p-24;
  EXPECT_GE(expect_same_bits(model, config), 3);
}

TEST(CudaGraph, KeepsTheSpansOfPhases) {
  const Model model = random_model(1);
  DeviceGroup group(test_group(1, false));
  EngineConfig config = with(small_config(model, 4), DType::f32, "adamw");
  config.accumulate = 2;
  Engine engine(model, group, config, {{4}, {}});
  const OwnedBatch batch = random_batch(model, 4, 1, 0);
  for (int step = 0; step < 9; ++step) engine.train_step(batch.view());
  engine.take_step_results(true);
  EXPECT_GT(engine.graph_counts().launched, 10);
  std::vector<std::vector<std::string>> phases(9);
  int64_t end_of_last = 0;
  group.synchronize();
  for (const SpanRecord& span : group[0].compute().stream().take_spans()) {
    if (span.info.phase == Phase::setup) continue;
    ASSERT_LT(span.info.step, 9);
    phases[static_cast<size_t>(span.info.step)].emplace_back(phase_name(span.info.phase));
    EXPECT_LE(span.begin_ns, span.end_ns);
    if (span.depth > 0 || span.info.phase == Phase::step) continue;
    EXPECT_GE(span.begin_ns, end_of_last - 2000) << span.info.step << " " << phase_name(span.info.phase);
    end_of_last = span.end_ns;
  }
  for (int step = 1; step < 9; ++step) EXPECT_EQ(phases[static_cast<size_t>(step)], phases[1]) << step;
}

TEST(CudaGraph, MovesTheBytesOfIssuedSteps) {
  const Model model = random_model(1);
  const auto bytes_of = [&](EngineConfig config, bool cuda_graph) {
    DeviceGroup group(test_group(1, false));
    config.cuda_graph = cuda_graph;
    Engine engine(model, group, config, {{4}, {}});
    for (int step = 10; step < 16; ++step) engine.train_step(batch_of(model, config, 4, step));
    engine.take_step_results(true);
    group.synchronize();
    std::map<Phase, int64_t> bytes;
    for (ExecContext* ctx : {&group[0].compute(), &group[0].copy()}) {
      for (const SpanRecord& span : ctx->stream().take_spans()) {
        if (span.bytes > 0 && span.info.phase != Phase::setup) bytes[span.info.phase] += span.bytes;
      }
    }
    return bytes;
  };
  for (const int64_t held : {0, 20}) {
    EngineConfig config = small_config(model, 4);
    if (held > 0) config.resident_images = random_images(model, held);
    const std::map<Phase, int64_t> issued = bytes_of(config, false);
    EXPECT_GT(issued.at(Phase::stage), 0);
    EXPECT_EQ(bytes_of(config, true), issued) << held;
  }
}

TEST(CudaGraph, IsNotLaunchedWhereOtherMemoryIsInUse) {
  const Model model = random_model(1);
  const EngineConfig config = with(small_config(model, 4), DType::f32, "adamw");
  std::vector<std::vector<float>> parameters;
  for (const bool occupies : {false, true}) {
    DeviceGroup group(test_group(1, false));
    Engine engine(model, group, config, {{4}, {64}});  // the slab has more room than a step needs
    const OwnedBatch batch = random_batch(model, 4, 1, 0);
    for (int step = 0; step < 8; ++step) {
      Tensor other;
      const int64_t before = engine.graph_counts().launched;
      if (occupies && step == 6)
        other = group[0].compute().allocate({1}, DType::f32, Category::activations, "of the caller");
      engine.train_step(batch.view());
      if (step < 4) continue;
      EXPECT_EQ(engine.graph_counts().launched - before, other ? 0 : 1) << step;
    }
    engine.take_step_results(true);
    parameters.push_back(engine.parameters().values());
  }
  EXPECT_EQ(parameters[0], parameters[1]);
}

TEST(CudaGraph, CountsWhatIsReplayedAndWhatIsIssued) {
  const Model model = random_model(1);
  DeviceGroup group(test_group(1, false));
  Engine engine(model, group, with(small_config(model, 4), DType::f32, "adamw"), {{4}, {64}});
  const OwnedBatch batch = random_batch(model, 4, 1, 0);
  EXPECT_EQ(engine.graph_counts().str(), "");
  for (int step = 0; step < 12; ++step) {
    if (step == 4 || step == 7) group[0].pool().record_history(step == 4);
    Tensor other;
    if (step == 9) other = group[0].compute().allocate({1}, DType::f32, Category::activations, "of the caller");
    engine.train_step(batch.view());
  }
  engine.take_step_results(true);
  const GraphCounts counts = engine.graph_counts();
  EXPECT_EQ(counts.first_uses, 2);
  EXPECT_EQ(counts.recorded, 3);
  EXPECT_EQ(counts.moved, 1);
  EXPECT_EQ(counts.launched, 6);
  EXPECT_EQ(engine.graph_counts().launched, 6);
  EXPECT_EQ(counts.str(),
            "6 micro-batches as graphs, 6 issued: 2 first of their shape, 3 while the memory was recorded, 1 because "
            "memory had moved");
}

TEST(CudaGraph, IsForTheWorkAfterOneStage) {
  const Model model = random_model(1);
  for (const bool twice : {false, true}) {
    EngineConfig config = small_config(model, 4);
    config.step = [twice](Engine& engine, const HostBatch& batch) {
      const auto work = [&] {
        engine.forward();
        engine.loss();
        engine.backward_and_reduce(true);
      };
      if (twice) engine.stage(batch, engine.micro_batches()[0]);
      if (twice) engine.replay_or_issue(work);
      engine.replay_or_issue(work);
    };
    DeviceGroup group(test_group(1, false));
    EXPECT_THROW(Engine(model, group, config, {{4}, {}}), OrderError);
  }
}

/// A layer that does not say that it can be replayed.
class CustomRelu final : public Layer {
 public:
  std::string describe() const override { return "custom relu"; }
  Shape output_shape(const Shape& x) const override { return x; }
  Saved forward(const ForwardCall& call) const override { return relu_.forward(call); }
  void backward(const BackwardCall& call) const override { relu_.backward(call); }

 private:
  ReLU relu_;
};

TEST(CudaGraph, IsOffForAReason) {
  const Model model = random_model(1);
  const auto reason = [&](const Model& m, const DeviceGroupOptions& options, const auto& change) {
    DeviceGroup group(options);
    EngineConfig config = small_config(m, 4);
    change(config);
    return Engine(m, group, config, {{4}, {}}).facts().cuda_graphs;
  };
  const auto nothing = [](EngineConfig&) {};
  DeviceGroupOptions traced = test_group(1, false);
  traced.trace = TraceLevel::operation;
  EXPECT_EQ(reason(model, test_group(1, false), nothing), "after two steps of a shape");
  EXPECT_EQ(reason(model, test_group(1, true), nothing), "off: the order of operations is checked");
  EXPECT_EQ(reason(model, test_group(2, false), nothing),
            "off: several GPUs of one process train together; with one process for each GPU steps can be replayed");
  EXPECT_EQ(reason(model, traced, nothing), "off: every operation is traced");
  EXPECT_EQ(reason(model, test_group(1, false), [](EngineConfig& config) { config.cuda_graph = false; }),
            "off: EngineConfig::cuda_graph is off");
  EXPECT_EQ(reason(planted_model(std::make_unique<CustomRelu>()), test_group(1, false), nothing),
            "off: layer 'planted' cannot be replayed (Layer::can_be_replayed)");
}

}  // namespace
}  // namespace vitrine::test
