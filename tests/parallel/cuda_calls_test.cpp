// SPDX-License-Identifier: Apache-2.0
// What the host issues in a step: launches, copies, records of events and all calls of CUDA, counted by the stand-ins.
#include <iostream>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/parallel/graph_training.h"
#include "tests/standins/controls.h"

namespace vitrine::test {
namespace {

// small-cnn has two convolutions, and its input has no gradient. Without cuDNN each pass takes a kernel and a product,
// and in f32 the gradient of the input is cleared first.
constexpr int64_t kConvolutionPasses = 5;

/// How a step is issued: part by part, as a graph, or as a graph that takes its images from those that the GPU holds.
enum class IssuedAs { issued, replayed, resident };

/// The calls of a training step of small-cnn once the first ones have passed and, in a graph, the step is captured,
/// without those that wait for its results.
standins::CallCounts calls_of_a_step(DType dtype, TraceLevel trace, IssuedAs steps) {
  const Model model = make_model("small-cnn", {.image_size = 16});
  DeviceGroupOptions options = test_group(1, false);
  options.trace = trace;
  DeviceGroup group(options);
  EngineConfig config = small_config(model, 4);
  config.cuda_graph = steps != IssuedAs::issued;
  if (steps == IssuedAs::resident) config.resident_images = random_images(model, 20);
  config.workspace_bytes = int64_t{32} << 20;  // a convolution is one product
  config.optimizer = make_optimizer_config("adamw", {}, {}, false, {});
  compute_in(config, dtype);
  Engine engine(model, group, config, {{4}, {}});
  const HostBatch batch = batch_of(model, config, 4, 1);
  standins::CallCounts counts;
  for (int step = 0; step < 6; ++step) {
    standins::take_call_counts();
    engine.train_step(batch);
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
    {DType::f32, 21, 21, 28, 77, 14}, {DType::bf16, 21, 21, 30, 76, 14}, {DType::f16, 21, 21, 30, 76, 14}};

class CudaCalls : public ::testing::TestWithParam<Figures> {
 protected:
  ~CudaCalls() override { standins::reset(); }
};

TEST_P(CudaCalls, OfAStepDoNotGrow) {
  const Figures& figures = GetParam();
  const standins::CallCounts untraced = calls_of_a_step(figures.dtype, TraceLevel::off, IssuedAs::issued),
                             traced = calls_of_a_step(figures.dtype, TraceLevel::phase, IssuedAs::issued);
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
  const standins::CallCounts counts = calls_of_a_step(figures.dtype, TraceLevel::off, IssuedAs::issued);
  const int64_t rounded_gradients = figures.dtype == DType::f32 ? 0 : 2;
  EXPECT_EQ(counts.convolutions, kConvolutionPasses);
  EXPECT_LE(counts.launches + counts.products + counts.convolutions, figures.launches + rounded_gradients);
}

TEST_P(CudaCalls, OfAReplayedStepAreOneGraphLaunchAndTheTransferOfItsBatch) {
  const Figures& figures = GetParam();
  const standins::CallCounts untraced = calls_of_a_step(figures.dtype, TraceLevel::off, IssuedAs::replayed),
                             traced = calls_of_a_step(figures.dtype, TraceLevel::phase, IssuedAs::replayed);
  std::cout << fmt::format(
      "small-cnn {}, one step as a graph: {} graph launch, {} other, {} copies, {} fills; {} calls of CUDA, {} at the "
      "default trace level\n",
      dtype_name(figures.dtype), untraced.graph_launches, untraced.launches, untraced.copies, untraced.fills,
      untraced.all, traced.all);
  EXPECT_EQ(untraced.graph_launches, 1);
  EXPECT_EQ(traced.graph_launches, 1);
  EXPECT_EQ(untraced.launches + untraced.products, 0);
  EXPECT_EQ(untraced.copies, 2);  // images and labels
  EXPECT_LE(untraced.all, figures.replayed_calls);
}

TEST_P(CudaCalls, OfAReplayedStepWhoseImagesTheDeviceHoldsAreOneGraphLaunch) {
  const standins::CallCounts counts = calls_of_a_step(GetParam().dtype, TraceLevel::off, IssuedAs::resident),
                             traced = calls_of_a_step(GetParam().dtype, TraceLevel::phase, IssuedAs::resident);
  std::cout << fmt::format(
      "small-cnn {}, one step as a graph, images on the device: {} graph launch, {} other calls; "
      "{} records with time at the default trace level\n",
      dtype_name(GetParam().dtype), counts.graph_launches, counts.all - counts.queries - 1, traced.timed_records);
  EXPECT_EQ(counts.graph_launches, 1);
  EXPECT_EQ(counts.all - counts.queries, 1);
  EXPECT_EQ(traced.all - traced.queries - traced.timed_records, 1);
}

/// With two steps in flight, what waits for results makes no copy and no launch either.
TEST(CudaCallsOfTraining, AreOneGraphLaunchForEachStep) {
  const Model model = random_model(1);
  DeviceGroupOptions options = test_group(1, false);
  options.trace = TraceLevel::off;
  DeviceGroup group(options);
  EngineConfig config = small_config(model, 4);
  config.resident_images = random_images(model, 20);
  Engine engine(model, group, config, {{4}, {}});
  constexpr int kFirst = 4, kSteps = 50;
  for (int step = 8; step < 8 + kFirst + kSteps; ++step) {
    if (step == 8 + kFirst) standins::take_call_counts();
    engine.train_step(batch_of(model, config, 4, step));
  }
  EXPECT_EQ(engine.take_step_results(true).size(), size_t{kFirst + kSteps});
  const standins::CallCounts counts = standins::take_call_counts();
  EXPECT_EQ(counts.graph_launches, kSteps);
  EXPECT_EQ(counts.launches + counts.copies + counts.fills + counts.waits + counts.timed_records, 0);
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
  // A capture, of which there is one for even and one for odd steps, creates two.
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
