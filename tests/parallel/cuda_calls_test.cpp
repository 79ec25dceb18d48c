// SPDX-License-Identifier: Apache-2.0
// What the host issues in a step: launches, copies, records of events and all calls of CUDA, counted by the stand-ins.
#include <iostream>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/parallel/random_model.h"
#include "tests/standins/controls.h"

namespace vitrine::test {
namespace {

// small-cnn has two convolutions, and its input has no gradient. Without cuDNN each pass takes a kernel and a product,
// and in f32 the gradient of the input is cleared first.
constexpr int64_t kConvolutionPasses = 5;

/// The calls of a training step of small-cnn once the first ones have passed and, with `cuda_graph`, its graph is
/// captured, without those that wait for its results.
standins::CallCounts calls_of_a_step(DType dtype, TraceLevel trace, bool cuda_graph) {
  const Model model = make_model("small-cnn", {.image_size = 16});
  DeviceGroupOptions options = test_group(1, false);
  options.trace = trace;
  DeviceGroup group(options);
  EngineConfig config = small_config(model, 4);
  config.cuda_graph = cuda_graph;
  config.workspace_bytes = int64_t{32} << 20;  // a convolution is one product
  config.optimizer = make_optimizer_config("adamw", {}, {}, false, {});
  config.precision.compute = dtype;
  if (dtype == DType::f16) config.precision.loss_scaling.kind = LossScaling::Kind::dynamic;
  Engine engine(model, group, config, {{4}, {}});
  const OwnedBatch batch = random_batch(model, 4, 1, 0);
  standins::CallCounts counts;
  for (int step = 0; step < 6; ++step) {
    standins::take_call_counts();
    engine.train_step(batch.view());
    counts = standins::take_call_counts();
    engine.take_step_results(true);
  }
  return counts;
}

/// Launches on a GPU with cuDNN: kernels, and calls of libraries. A rounded gradient of weights takes another one.
int64_t launches_of(const standins::CallCounts& counts) {
  return counts.launches + counts.products - kConvolutionPasses;
}

/// The figures that were counted, which must not grow, and the launches that the step is to reach.
struct Figures {
  DType dtype;
  int64_t launches, target_launches, records, calls, replayed_calls;
};
const Figures kFigures[] = {
    {DType::f32, 21, 21, 28, 77, 36}, {DType::bf16, 21, 21, 30, 76, 36}, {DType::f16, 22, 22, 32, 78, 36}};

class CudaCalls : public ::testing::TestWithParam<Figures> {
 protected:
  ~CudaCalls() override { standins::reset(); }
};

TEST_P(CudaCalls, OfAStepDoNotGrow) {
  const Figures& figures = GetParam();
  const standins::CallCounts untraced = calls_of_a_step(figures.dtype, TraceLevel::off, false),
                             traced = calls_of_a_step(figures.dtype, TraceLevel::phase, false);
  std::cout << fmt::format(
      "small-cnn {}, one step: {} launches (at most {}, target {}), {} copies, {} fills, {} waits, {} records without "
      "time; {} records with time at "
      "the default trace level, {} without trace; {} calls of CUDA, {} without trace\n",
      dtype_name(figures.dtype), launches_of(untraced), figures.launches, figures.target_launches, untraced.copies,
      untraced.fills, untraced.waits, untraced.records, traced.timed_records, untraced.timed_records, traced.all,
      untraced.all);
  EXPECT_LE(launches_of(untraced), figures.launches);
  EXPECT_EQ(launches_of(traced), launches_of(untraced));
  EXPECT_EQ(untraced.timed_records, 0);
  EXPECT_LE(traced.timed_records, figures.records);
  EXPECT_LE(untraced.all, figures.calls);
}

TEST_P(CudaCalls, OfAStepWithCudnnHaveOneForEachPassOfAConvolution) {
  if (!standins::has_cudnn()) GTEST_SKIP() << "no stand-in for cuDNN";
  const Figures& figures = GetParam();
  standins::set_convolution_engines({{.index = 1}});
  const standins::CallCounts counts = calls_of_a_step(figures.dtype, TraceLevel::off, false);
  const int64_t rounded_gradients = figures.dtype == DType::f32 ? 0 : 2;
  EXPECT_EQ(counts.convolutions, kConvolutionPasses);
  EXPECT_LE(counts.launches + counts.products + counts.convolutions, figures.launches + rounded_gradients);
}

TEST_P(CudaCalls, OfAReplayedStepAreOneGraphLaunch) {
  const Figures& figures = GetParam();
  const standins::CallCounts untraced = calls_of_a_step(figures.dtype, TraceLevel::off, true),
                             traced = calls_of_a_step(figures.dtype, TraceLevel::phase, true);
  std::cout << fmt::format(
      "small-cnn {}, one step as a graph: {} graph launch, {} other, {} copies, {} fills; {} calls of CUDA, {} at the "
      "default trace level\n",
      dtype_name(figures.dtype), untraced.graph_launches, untraced.launches, untraced.copies, untraced.fills,
      untraced.all, traced.all);
  EXPECT_EQ(untraced.graph_launches, 1);
  EXPECT_EQ(traced.graph_launches, 1);
  EXPECT_EQ(untraced.launches + untraced.products,
            1);  // resize_normalize: images become the input as soon as they are there
  EXPECT_LE(untraced.all, figures.replayed_calls);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaCalls, ::testing::ValuesIn(kFigures),
                         [](const auto& param) { return std::string(dtype_name(param.param.dtype)); });

/// By whether steps are replayed as CUDA graphs.
class CudaEvents : public ::testing::TestWithParam<bool> {
 protected:
  ~CudaEvents() override { standins::reset(); }
};

TEST_P(CudaEvents, AreNotCreatedOnceTheFirstStepsHavePassed) {
  const Model model = random_model(1);
  DeviceGroupOptions options = test_group(1, false);
  options.trace = TraceLevel::phase;
  DeviceGroup group(options);
  EngineConfig config = small_config(model, 4);
  config.cuda_graph = GetParam();
  Engine engine(model, group, config, {{4}, {}});
  const OwnedBatch batch = random_batch(model, 4, 1, 0);
  // A capture, of which there is one for each staging slot, creates two.
  const int first_steps = GetParam() ? 4 : 2;
  // No span is ever taken, and two steps are in flight.
  for (int step = 0; step < 100; ++step) {
    standins::take_call_counts();
    engine.train_step(batch.view());
    const standins::CallCounts counts = standins::take_call_counts();
    if (step <= first_steps)
      std::cout << fmt::format("step {}: {} events created, {} records with time\n", step, counts.created_events,
                               counts.timed_records);
    if (step == 0) {
      EXPECT_GT(counts.created_events, 0);
    }
    if (step < first_steps) continue;
    EXPECT_EQ(counts.created_events, 0) << "step " << step;
    EXPECT_LE(counts.timed_records, 24) << "step " << step;  // 16, and two for each wait that found work to wait for
  }
  engine.take_step_results(true);
}

INSTANTIATE_TEST_SUITE_P(Steps, CudaEvents, ::testing::Bool(),
                         [](const auto& param) { return std::string(param.param ? "replayed" : "issued"); });

}  // namespace
}  // namespace vitrine::test
