// SPDX-License-Identifier: Apache-2.0
// Steps that are replayed as CUDA graphs compute the bits of steps that are issued.
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "nn/layers/relu.h"
#include "runtime/error.h"
#include "tests/parallel/random_model.h"
#include "tests/standins/controls.h"

namespace vitrine::test {
namespace {

struct Training {
  std::vector<float> parameters;
  std::vector<double> losses, norms;
  int64_t launches = 0;
  int skipped = 0;
};

constexpr int kSteps = 10;

/// Trains with another learning rate and other data in each step, and evaluates in between.
Training train(const Model& model, EngineConfig config, bool cuda_graph, int devices = 1) {
  DeviceGroup group(test_group(devices, false));
  config.cuda_graph = cuda_graph;
  Engine engine(model, group, config, {{config.batch_size, config.batch_size - 1}, {2}});
  const OwnedBatch held_out = random_batch(model, 2, 77, 0.0, config.image_dtype);
  Training result;
  for (int step = 0; step < kSteps; ++step) {
    engine.set_learning_rate(0.05 / (step + 1));
    if (step == 6) engine.set_momentum(0.5);
    const int64_t samples = step == 4 ? config.batch_size - 1 : config.batch_size;
    engine.train_step(random_batch(model, samples, static_cast<uint32_t>(step), 0.1, config.image_dtype).view());
    if (step == 5) engine.evaluate(held_out.view());
  }
  for (const StepResult& step : engine.take_step_results(true)) {
    result.losses.push_back(step.loss_sum);
    result.norms.push_back(step.gradient_norm);
    result.skipped += step.skipped ? 1 : 0;
  }
  engine.finish();
  result.parameters = engine.parameters();
  result.launches = engine.graph_counts().launched;
  return result;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// Returns how many steps were skipped.
int expect_same_bits(const Model& model, const EngineConfig& config) {
  const Training issued = train(model, config, false), replayed = train(model, config, true);
  EXPECT_EQ(issued.launches, 0);
  // Two steps of the full size are issued, and the only one of the other size.
  EXPECT_EQ(replayed.launches, (kSteps - 3) * config.accumulate);
  EXPECT_TRUE(same_bits(replayed.parameters, issued.parameters));
  EXPECT_TRUE(same_bits(replayed.losses, issued.losses));
  EXPECT_TRUE(same_bits(replayed.norms, issued.norms));
  return issued.skipped;
}

EngineConfig with(EngineConfig config, DType dtype, const std::string& optimizer) {
  config.optimizer =
      optimizer == "sgd" ? make_optimizer_config("sgd", 0.05, 0.9, false, 1e-3) : make_optimizer_config(optimizer, 0.05, {}, false, {});
  config.precision.compute = dtype;
  if (dtype == DType::f16) config.precision.loss_scaling.kind = LossScaling::Kind::dynamic;
  return config;
}

class CudaGraph : public ::testing::Test {
 protected:
  ~CudaGraph() override { standins::reset(); }
};

TEST_F(CudaGraph, ReplaysTheBitsOfEveryModelAndPrecision) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (uint32_t seed = 0; seed < 6; ++seed) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + ", model " + std::to_string(seed));
      const Model model = random_model(seed);
      expect_same_bits(model, with(small_config(model, 6), dtype, seed % 3 == 0 ? "sgd" : seed % 3 == 1 ? "adam" : "adamw"));
    }
  }
}

/// Left out under sanitizers, where they take minutes.
TEST_F(CudaGraph, ReplaysNamedModels) {
  for (const char* name : {"small-cnn", "mlp"}) {
    for (const DType dtype : {DType::f32, DType::f16}) {
      SCOPED_TRACE(std::string(name) + " " + dtype_name(dtype));
      const Model model = make_model(name, {.image_size = 32});
      EngineConfig config = with(small_config(model, 4), dtype, "adamw");
      config.workspace_bytes = int64_t{32} << 20;
      expect_same_bits(model, config);
    }
  }
}

TEST_F(CudaGraph, ReplaysBatchNorm) {
  const Model model = tiny_resnet();
  expect_same_bits(model, with(small_config(model, 6), DType::f32, "sgd"));
}

TEST_F(CudaGraph, ReplaysEachMicroBatchOfAStep) {
  const Model model = random_model(1);
  EngineConfig config = with(small_config(model, 6), DType::f16, "adamw");
  config.accumulate = 3;
  config.precision.clip_norm = 0.1;
  config.ema_decay = 0.9;
  expect_same_bits(model, config);
}

TEST_F(CudaGraph, ReplaysImagesInAForm) {
  const Model model = random_model(1);
  EngineConfig config = with(small_config(model, 6), DType::f16, "adamw");
  config.accumulate = 2;
  config.input_packing = InputPacking::on;
  ASSERT_TRUE(Engine::input_form(model, DeviceGroup(test_group(1, false)), config));
  expect_same_bits(model, config);
}

TEST_F(CudaGraph, ReplaysWithSegmentsThatAreRecomputed) {
  const Model model = random_model(2);
  EngineConfig config = with(small_config(model, 6), DType::f32, "adam");
  config.recompute_segments = 2;
  expect_same_bits(model, config);
}

TEST_F(CudaGraph, ReplaysEveryScheme) {
  const Model model = random_model(3);
  for (const LossAt loss_at : {LossAt::parallel, LossAt::gathered}) {
    for (const Reduce reduce : {Reduce::allreduce, Reduce::gpu0}) {
      EngineConfig config = with(small_config(model, 6), DType::f32, "adamw");
      config.scheme.loss_at = loss_at;
      config.scheme.reduce = reduce;
      expect_same_bits(model, config);
    }
  }
}

TEST_F(CudaGraph, SkipsTheStepsThatIssuedOnesSkip) {
  const Model model = random_model(4);
  EngineConfig config = with(small_config(model, 6), DType::f16, "sgd");
  config.precision.loss_scaling.scale = 0x1p120;  // overflows until it has fallen
  config.precision.loss_scaling.constants.backoff_factor = 0x1p-24;
  EXPECT_GE(expect_same_bits(model, config), 3);
}

TEST_F(CudaGraph, IsLaunchedOncePerStep) {
  const Model model = random_model(1);
  DeviceGroup group(test_group(1, false));
  EngineConfig config = with(small_config(model, 4), DType::f32, "adamw");
  Engine engine(model, group, config, {{4}, {}});
  const OwnedBatch batch = random_batch(model, 4, 1, 0);
  for (int step = 0; step < 8; ++step) {
    engine.take_step_results(true);
    standins::take_call_counts();
    engine.train_step(batch.view());
    const standins::CallCounts counts = standins::take_call_counts();
    EXPECT_EQ(counts.graph_launches, step < 2 ? 0 : 1) << step;
    if (step < 4) continue;
    EXPECT_LE(counts.launches + counts.products, 1) << step;  // the images become the input outside the graph
    EXPECT_EQ(counts.waits, 2) << step;
  }
  engine.take_step_results(true);
}

TEST_F(CudaGraph, KeepsTheSpansOfPhases) {
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

TEST_F(CudaGraph, IsNotLaunchedWhereOtherMemoryIsInUse) {
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
      if (occupies && step == 6) other = group[0].compute().allocate({1}, DType::f32, Category::activations, "of the caller");
      engine.train_step(batch.view());
      if (step < 4) continue;
      EXPECT_EQ(engine.graph_counts().launched - before, other ? 0 : 1) << step;
    }
    engine.take_step_results(true);
    parameters.push_back(engine.parameters());
  }
  EXPECT_EQ(parameters[0], parameters[1]);
}

TEST_F(CudaGraph, CountsWhatIsReplayedAndWhatIsIssued) {
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
  EXPECT_EQ(counts.str(), "6 micro-batches as graphs, 6 issued: 2 first of their shape, 3 while the memory was recorded, 1 because memory had moved");
}

TEST_F(CudaGraph, IsForTheWorkAfterOneStage) {
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

TEST_F(CudaGraph, IsOffForAReason) {
  const Model model = random_model(1);
  const auto reason = [&](const Model& m, const DeviceGroupOptions& options, const auto& change) {
    DeviceGroup group(options);
    EngineConfig config = small_config(m, 4);
    change(config);
    return Engine(m, group, config, {{4}, {}}).cuda_graphs();
  };
  const auto nothing = [](EngineConfig&) {};
  DeviceGroupOptions traced = test_group(1, false);
  traced.trace = TraceLevel::operation;
  EXPECT_EQ(reason(model, test_group(1, false), nothing), "after two steps of a shape");
  EXPECT_EQ(reason(model, test_group(1, true), nothing), "off: the order of operations is checked");
  EXPECT_EQ(reason(model, test_group(2, false), nothing),
            "off: several GPUs of one process train together; with one process for each GPU steps can be replayed");
  EXPECT_EQ(reason(model, traced, nothing), "off: every operation is traced");
  EXPECT_EQ(reason(model, test_group(1, false), [](EngineConfig& config) { config.cuda_graph = false; }), "off: EngineConfig::cuda_graph is off");
  EXPECT_EQ(reason(planted_model(std::make_unique<CustomRelu>()), test_group(1, false), nothing),
            "off: layer 'planted' cannot be replayed (Layer::can_be_replayed)");
}

}  // namespace
}  // namespace vitrine::test
