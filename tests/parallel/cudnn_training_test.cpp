// SPDX-License-Identifier: Apache-2.0
// Training whose convolutions are cuDNN's, on its stand-in: plans, graphs, the workspace, and the timed choice among
// engines.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "nn/tuned_plans_file.h"
#include "tests/parallel/autotune_choice.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

using standins::ConvolutionEngine;
using Engines = std::vector<ConvolutionEngine>;
using Fault = ConvolutionEngine::Fault;

constexpr int64_t kScratch = int64_t{1} << 20;

/// Two configurations of engine 2, which differ in a knob.
Engines engines_with_times(double first_ms, double second_ms, double third_ms) {
  return {{.index = 1, .simulated_ms = first_ms},
          {.index = 2, .knobs = {{2, 5}, {18, 0}}, .workspace_bytes = kScratch, .simulated_ms = second_ms},
          {.index = 2, .knobs = {{2, 6}, {18, 0}}, .workspace_bytes = kScratch, .simulated_ms = third_ms}};
}

class CudnnTraining : public AutotuneChoice {
 protected:
  EngineConfig config(bool autotune, DType dtype = DType::f32, const TunedPlans* known = nullptr) const {
    EngineConfig config = tuned_config(lenet_, known);
    config.autotune.enabled = autotune;
    config.precision.compute = dtype;
    return config;
  }
  /// Two convolutions with a bias.
  const Model lenet_ = make_model("lenet5", {.image_size = 12});
};

std::vector<TunedPlan> cudnn_plans(const TunedPlans& plans) {
  std::vector<TunedPlan> found;
  for (const TunedPlan& plan : plans.plans) {
    if (plan.operation.starts_with("cudnn ")) found.push_back(plan);
  }
  return found;
}

/// Fails unless there are plans of cuDNN's and each is `text`.
void expect_plans(const Outcome& run, const std::string& text) {
  const std::vector<TunedPlan> plans = cudnn_plans(run.plans);
  EXPECT_GE(plans.size(), 5U) << "two convolutions, of which the first has no gradient of its input";
  for (const TunedPlan& plan : plans) EXPECT_EQ(plan.plan, text) << plan.operation;
  EXPECT_EQ(run.untuned, std::vector<std::string>());
}

TEST_F(CudnnTraining, EveryConvolutionRunsInCudnn) {
  standins::set_convolution_engines(engines_with_times(0, 0, 0));
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const Outcome run = train_tuned(lenet_, config(false, dtype), {0, 1});
    EXPECT_TRUE(run.peaks_as_planned);
    EXPECT_TRUE(run.replicas_equal);
    EXPECT_FALSE(run.convolutions.empty());
    for (const Conv2dChoice& choice : run.convolutions) {
      EXPECT_TRUE(choice.implementation.starts_with("cuDNN")) << choice.operation << ": " << choice.reason.str();
    }
  }
}

TEST_F(CudnnTraining, AgreesWithOurOwnConvolution) {
  const Outcome ours = train_tuned(lenet_, config(false));
  for (const Conv2dChoice& choice : ours.convolutions) EXPECT_EQ(choice.implementation, "im2col + cuBLASLt");
  standins::set_convolution_engines(engines_with_times(0, 0, 0));
  const Outcome run = train_tuned(lenet_, config(false));
  EXPECT_LT(relative_difference(run.parameters, ours.parameters), 1e-5);
  EXPECT_NE(run.parameters, ours.parameters) << "another order of the sums";
}

TEST_F(CudnnTraining, GraphsReplayTheBitsOfIssuedSteps) {
  standins::set_convolution_engines(engines_with_times(900, 300, 100));
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const bool autotune : {false, true}) {
      EngineConfig settings = config(autotune, dtype);
      settings.accumulate = dtype == DType::f32 ? 1 : 2;  // the second gradient is added to the first
      settings.cuda_graph = false;
      const Outcome issued = train_tuned(lenet_, settings);
      settings.cuda_graph = true;
      const Outcome replayed = train_tuned(lenet_, settings);
      EXPECT_EQ(issued.graph_launches, 0);
      EXPECT_GT(replayed.graph_launches, 0);
      EXPECT_EQ(replayed.parameters, issued.parameters);
    }
  }
}

TEST_F(CudnnTraining, ThePlanReservesTheWorkspaceOfTheFirstEngine) {
  constexpr int64_t kLarge = int64_t{40} << 20;
  standins::set_convolution_engines({{.index = 1, .workspace_bytes = kLarge}, {.index = 2}});
  EngineConfig settings = config(false);
  settings.workspace_bytes = {};
  DeviceGroup group(group_of({0}));
  Engine engine(lenet_, group, settings, {{settings.batch_size}, {}});
  EXPECT_EQ(engine.facts().plans[0].workspace.unknown, "");
  EXPECT_EQ(engine.facts().plans[0].workspace.bytes, kLarge);
  EXPECT_TRUE(engine.facts().plans[0].workspace.shortages.empty());
  engine.train_step(random_batch(lenet_, settings.batch_size, 1, 0.1).view());
  engine.finish();
  for (const Conv2dChoice& choice : conv2d_choices(group[0].compute())) EXPECT_EQ(choice.implementation, "cuDNN");
  EXPECT_EQ(group[0].pool().statistics().peak_bytes, engine.facts().plans[0].peak_bytes);
}

TEST_F(CudnnTraining, Tf32IsUsedOnlyIfAllowed) {
  standins::set_convolution_engines({{.index = 1, .tensor_cores = true}, {.index = 1}});
  std::vector<float> parameters[2];
  for (const bool tf32 : {false, true}) {
    DeviceGroupOptions options = group_of({0});
    options.tf32 = tf32;
    DeviceGroup group(options);
    parameters[tf32 ? 1 : 0] = train_on(group, lenet_, config(false)).parameters;
  }
  const double difference = relative_difference(parameters[1], parameters[0]);
  EXPECT_GT(difference, 1e-6);
  EXPECT_LT(difference, 1e-2);
}

TEST_F(CudnnTraining, TakesTheFastestEngine) {
  standins::set_convolution_engines(engines_with_times(900, 300, 100));
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Outcome run = train_tuned(lenet_, config(true, dtype));
    expect_plans(run, "engine 2 knobs 2=6,18=0");
    for (const TunedPlan& plan : cudnn_plans(run.plans)) {
      EXPECT_EQ(plan.candidates, 3);
      EXPECT_NEAR(plan.microseconds, 100e3, 50e3);
      EXPECT_NEAR(plan.first_microseconds, 900e3, 50e3);
    }
    EXPECT_TRUE(run.peaks_as_planned);
    EXPECT_TRUE(run.report.warnings.empty());
    EXPECT_EQ(run.report.timed, std::ssize(run.plans.plans));
  }
}

TEST_F(CudnnTraining, AStoredChoiceIsTakenWithoutTimingAndGivesTheSameBits) {
  standins::set_convolution_engines(engines_with_times(900, 300, 100));
  const Outcome first = train_tuned(lenet_, config(true));
  const TunedPlans stored = parse_tuned_plans("test", tuned_plans_json(first.plans, 1));
  EXPECT_EQ(stored, first.plans);
  // Now another engine is faster, and would be chosen.
  standins::set_convolution_engines(engines_with_times(100, 300, 900));
  const Outcome again = train_tuned(lenet_, config(true, DType::f32, &stored));
  EXPECT_EQ(again.plans, first.plans);
  EXPECT_EQ(again.report.timed, 0);
  EXPECT_EQ(again.report.reused, std::ssize(stored.plans));
  EXPECT_EQ(again.parameters, first.parameters);
  const Outcome other = train_tuned(lenet_, config(true));
  expect_plans(other, "engine 1 knobs ");
  EXPECT_NE(other.parameters, first.parameters) << "the engines of the stand-in must differ in their bits";
}

TEST_F(CudnnTraining, AStoredPlanThatCudnnRefusesIsTimedAgainWithAWarning) {
  standins::set_convolution_engines(engines_with_times(900, 300, 100));
  const TunedPlans stored = train_tuned(lenet_, config(true)).plans;
  Engines fewer = engines_with_times(900, 300, 100);
  fewer.pop_back();
  standins::set_convolution_engines(fewer);
  const Outcome run = train_tuned(lenet_, config(true, DType::f32, &stored));
  expect_plans(run, "engine 2 knobs 2=5,18=0");
  ASSERT_FALSE(run.report.warnings.empty());
  expect_contains(run.report.warnings[0], "cuDNN refuses the stored plan, so it was timed again");
}

TEST_F(CudnnTraining, PlansOfAnotherCudnnAreTimedAgainWithAWarning) {
  standins::set_convolution_engines(engines_with_times(900, 300, 100));
  const TunedPlans stored = train_tuned(lenet_, config(true)).plans;
  standins::set_cudnn_version(91234);
  const Outcome run = train_tuned(lenet_, config(true, DType::f32, &stored));
  EXPECT_EQ(run.report.reused, 0);
  ASSERT_EQ(run.report.warnings.size(), 1U);
  expect_contains(run.report.warnings[0], "cuDNN 9.12.34");
}

TEST_F(CudnnTraining, EnginesThatFailAreSkipped) {
  standins::set_convolution_engines({{.index = 1, .fault = Fault::at_execution},
                                     {.index = 2, .simulated_ms = 500},
                                     {.index = 3, .fault = Fault::at_finalization},
                                     {.index = 4, .simulated_ms = 200}});
  const Outcome run = train_tuned(lenet_, config(true));
  expect_plans(run, "engine 4 knobs ");
  EXPECT_EQ(run.report.failed_candidates, std::ssize(cudnn_plans(run.plans)));
  for (const TunedPlan& plan : cudnn_plans(run.plans))
    EXPECT_EQ(plan.first_microseconds, 0) << "the library's own choice failed";
}

TEST_F(CudnnTraining, WithoutAnAllowedEngineTheSearchTakesOurOwnConvolution) {
  standins::set_convolution_engines({{.index = 1, .deterministic = false}});
  const Outcome run = train_tuned(lenet_, config(true));
  EXPECT_TRUE(cudnn_plans(run.plans).empty());
  EXPECT_EQ(run.untuned, std::vector<std::string>()) << "nothing runs by a choice of cuDNN's";
  for (const Conv2dChoice& choice : run.convolutions) EXPECT_EQ(choice.implementation, "im2col + cuBLASLt");
}

TEST_F(CudnnTraining, OutOfTimeTheLibrarysChoiceIsRecorded) {
  standins::set_convolution_engines(engines_with_times(900, 300, 100));
  EngineConfig settings = config(true);
  settings.autotune.most_seconds = 1e-9;
  const Outcome run = train_tuned(lenet_, settings);
  EXPECT_EQ(run.report.timed, 0);
  expect_plans(run, "engine 1 knobs ");
}

}  // namespace
}  // namespace vitrine::test
