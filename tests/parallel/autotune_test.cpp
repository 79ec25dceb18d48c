// SPDX-License-Identifier: Apache-2.0
// Timed choice among the plans of convolutions and products, whatever the GPU's libraries propose.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "nn/parallel/plan/memory_plan.h"
#include "nn/tuned_plans_file.h"
#include "runtime/error.h"
#include "tests/parallel/autotune_training.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

class AutotuneTest : public ::testing::Test {
 protected:
  const Model model_ = random_model(1);
};

TEST_F(AutotuneTest, EveryOperationOfTheRunIsTuned) {
  for (uint32_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    const Model model = random_model(seed);
    EngineConfig config = tuned_config(model);
    config.accumulate = seed % 2 == 0 ? 1 : 2;
    config.precision.compute = seed % 3 == 0 ? DType::f32 : has_bf16() ? DType::bf16 : DType::f16;
    const Outcome run = train_tuned(model, config);
    EXPECT_FALSE(run.plans.plans.empty());
    EXPECT_EQ(run.untuned, std::vector<std::string>());
  }
}

TEST_F(AutotuneTest, TheMeasuredPeakIsThePlannedOneAndStaysThatOfARunWithoutSearch) {
  const EngineConfig config = tuned_config(model_);
  EXPECT_TRUE(train_tuned(model_, config).peaks_as_planned);
  DeviceGroup group(group_of({0}));
  EXPECT_EQ(plan_memory(model_, group, untuned_config(model_), {{6}, {}})[0].peak_bytes,
            plan_memory(model_, group, config, {{6}, {}})[0].peak_bytes);
}

TEST_F(AutotuneTest, StoredPlansAreNotTimedAndGiveTheSameBits) {
  const Outcome first = train_tuned(model_, tuned_config(model_));
  EXPECT_EQ(first.report.timed, static_cast<int>(first.plans.plans.size()));
  const TunedPlans stored = parse_tuned_plans("test", tuned_plans_json(first.plans, 1));
  EXPECT_EQ(stored, first.plans);
  const Outcome again = train_tuned(model_, tuned_config(model_, &stored));
  EXPECT_EQ(again.plans, first.plans);
  EXPECT_EQ(again.report.timed, 0);
  EXPECT_EQ(again.report.reused, static_cast<int>(stored.plans.size()));
  EXPECT_TRUE(again.report.warnings.empty());
  EXPECT_EQ(again.parameters, first.parameters);
}

TEST_F(AutotuneTest, AnOperationWithoutAStoredPlanIsTimed) {
  const TunedPlans all = train_tuned(model_, tuned_config(model_)).plans;
  TunedPlans stored = all;
  stored.plans.pop_back();
  const Outcome run = train_tuned(model_, tuned_config(model_, &stored));
  EXPECT_EQ(run.report.timed, 1);
  ASSERT_EQ(run.report.warnings.size(), 1U);
  expect_contains(run.report.warnings[0], "1 of ");
  ASSERT_EQ(run.plans.plans.size(), all.plans.size());
  for (const TunedPlan& plan : stored.plans) EXPECT_EQ(*run.plans.find(plan.operation), plan);
}

TEST_F(AutotuneTest, PlansOfOtherConditionsAreTimedAgainWithAWarning) {
  const TunedPlans stored = train_tuned(model_, tuned_config(model_)).plans;
  const auto expect_timed = [&](const TunedPlans& known, const char* what) {
    const Outcome run = train_tuned(model_, tuned_config(model_, &known));
    ASSERT_EQ(run.report.warnings.size(), 1U) << what;
    expect_contains(run.report.warnings[0], what, "timed again");
    EXPECT_EQ(run.report.reused, 0);
    EXPECT_EQ(run.report.timed, static_cast<int>(stored.plans.size()));
  };
  TunedPlans known = stored;
  known.device = "Another GPU";
  expect_timed(known, "the GPU Another GPU, now ");
  known = stored;
  known.workspace_bytes += 256;
  expect_timed(known, "the workspace in bytes");
  known = stored;
  known.tf32 = true;
  expect_timed(known, "TF32");
}

TEST_F(AutotuneTest, OutOfTimeStepsHaveTheBitsOfTheLibrarysChoice) {
  EngineConfig config = tuned_config(model_);
  config.autotune.most_seconds = 1e-9;
  const Outcome run = train_tuned(model_, config);
  EXPECT_EQ(run.report.timed, 0);
  ASSERT_FALSE(run.plans.plans.empty());
  ASSERT_EQ(run.report.warnings.size(), run.plans.plans.size());
  expect_contains(run.report.warnings[0], "time ran out");
  EXPECT_EQ(run.untuned, std::vector<std::string>());
  EXPECT_EQ(run.parameters, train_tuned(model_, untuned_config(model_)).parameters);
}

TEST_F(AutotuneTest, GraphsReplayTheBitsOfIssuedSteps) {
  const Outcome first = train_tuned(model_, tuned_config(model_));
  EngineConfig config = tuned_config(model_, &first.plans);
  config.cuda_graph = false;
  const Outcome issued = train_tuned(model_, config);
  EXPECT_GT(first.graph_launches, 0);
  EXPECT_EQ(issued.graph_launches, 0);
  EXPECT_EQ(first.parameters, issued.parameters);
}

TEST_F(AutotuneTest, AnEngineWithoutItUsesTheLibrarysChoiceAgain) {
  DeviceGroup group(group_of({0}));
  const Outcome before = train_on(group, model_, untuned_config(model_));
  train_on(group, model_, tuned_config(model_));
  EXPECT_EQ(train_on(group, model_, untuned_config(model_)).parameters, before.parameters);
}

TEST_F(AutotuneTest, CpuDevicesAreRefused) {
  DeviceGroupOptions options;
  options.devices = {{Backend::cpu, 0}};
  DeviceGroup group(options);
  expect_contains(error_of<ConfigError>([&] {
                    const Engine engine(model_, group, tuned_config(model_), {{6}, {}});
                  }),
                  "nothing to time on CPU devices");
}

TEST_F(AutotuneTest, AStoredChoiceOfAnotherFormatIsRefused) {
  EXPECT_THROW(parse_tuned_plans("plans.json", "{}"), DataError);
  EXPECT_THROW(parse_tuned_plans("plans.json", "no JSON"), DataError);
  std::string text = tuned_plans_json({});
  text.replace(text.find("plans 1"), 7, "plans 9");
  expect_contains(error_of<DataError>([&] { parse_tuned_plans("plans.json", text); }),
                  "plans.json: the format of the plans is 'vitrine plans 9'");
}

}  // namespace
}  // namespace vitrine::test
