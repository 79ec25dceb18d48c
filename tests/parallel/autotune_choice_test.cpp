// SPDX-License-Identifier: Apache-2.0
// Timed choice among the algorithms of the stand-ins' products, which differ in their simulated times and in their
// bits.
#include "tests/parallel/autotune_choice.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "nn/tuned_plans_file.h"
#include "runtime/error.h"
#include "tests/parallel/cuda_processes.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

/// Lets the tests of autotune_test.cpp choose between two algorithms, and checks at the end of the program, which is
/// that of a test under ctest, that all objects of CUDA have been destroyed.
class OffersTwoAlgorithms final : public ::testing::Environment {
  void SetUp() override { standins::set_product_algorithms({{2}, {1}}); }
  void TearDown() override { EXPECT_EQ(standins::live_objects(), 0); }
};
::testing::Environment* const kOffersTwoAlgorithms = ::testing::AddGlobalTestEnvironment(new OffersTwoAlgorithms);

/// Records of events with a time while an engine is constructed.
int64_t timed_records(const Model& model, const EngineConfig& config) {
  DeviceGroup group(group_of({0}));
  standins::take_call_counts();
  const Engine engine(model, group, config, tuned_workload(config));
  return standins::take_call_counts().timed_records;
}

/// The algorithms that the plans name: "algorithm 2 ..." is 2.
std::vector<int> algorithms_of(const TunedPlans& plans) {
  std::vector<int> algorithms;
  for (const TunedPlan& plan : plans.plans)
    algorithms.push_back(std::stoi(plan.plan.substr(std::string("algorithm ").size())));
  return algorithms;
}

TEST_F(AutotuneChoice, TakesTheFastestAlgorithm) {
  standins::set_product_algorithms({{900}, {300}, {100}, {700}});
  const Outcome run = train_tuned(model_, tuned_config(model_));
  ASSERT_FALSE(run.plans.plans.empty());
  for (const TunedPlan& plan : run.plans.plans) {
    EXPECT_EQ(plan.plan.substr(0, 12), "algorithm 2 ") << plan.operation;
    EXPECT_EQ(plan.candidates, 4);
    EXPECT_NEAR(plan.microseconds, 100e3, 50e3);
    EXPECT_NEAR(plan.first_microseconds, 900e3, 50e3);
  }
  EXPECT_EQ(run.report.timed, static_cast<int>(run.plans.plans.size()));
  EXPECT_EQ(run.report.reused, 0);
  EXPECT_TRUE(run.report.warnings.empty());
  // The last algorithm takes over twice the best time, so only its first run is timed.
  const int64_t events = 3 * (2 + kTimedRuns) + 2;
  EXPECT_EQ(timed_records(model_, tuned_config(model_)) - timed_records(model_, untuned_config(model_)),
            events * std::ssize(run.plans.plans));
}

TEST_F(AutotuneChoice, TheSearchLeavesNothingBeyondWhatTheFirstStepsCreate) {
  standins::set_product_algorithms({{2}, {1}, {0, true}});
  struct Left {
    int64_t bytes_at_start = 0, bytes = 0, objects = 0;
  };
  const auto train_two_steps = [&](bool autotune) {
    DeviceGroup group(group_of({0}));
    const EngineConfig config = autotune ? tuned_config(model_) : untuned_config(model_);
    Engine engine(model_, group, config, {{config.batch_size}, {}});
    Left left{standins::allocated_bytes(0)};
    for (uint32_t step = 0; step < 2; ++step)
      engine.train_step(random_batch(model_, config.batch_size, step, 0.1, config.image_dtype).view());
    engine.finish();
    left.bytes = standins::allocated_bytes(0);
    left.objects = standins::live_objects();
    return left;
  };
  const Left plain = train_two_steps(false), tuned = train_two_steps(true);
  EXPECT_EQ(tuned.bytes_at_start, plain.bytes_at_start);
  EXPECT_EQ(tuned.bytes, plain.bytes);
  EXPECT_EQ(tuned.objects, plain.objects);
}

TEST_F(AutotuneChoice, AStoredChoiceIsTakenWithoutTimingAndGivesTheSameBits) {
  standins::set_product_algorithms({{900}, {300}, {100}});
  const Outcome first = train_tuned(model_, tuned_config(model_));
  const TunedPlans stored = parse_tuned_plans("test", tuned_plans_json(first.plans, 1));
  EXPECT_EQ(stored, first.plans);
  // Now another algorithm is faster, and would be chosen.
  standins::set_product_algorithms({{100}, {300}, {900}});
  const Outcome again = train_tuned(model_, tuned_config(model_, &stored));
  EXPECT_EQ(again.plans, first.plans);
  EXPECT_EQ(again.report.timed, 0);
  EXPECT_EQ(again.report.reused, static_cast<int>(stored.plans.size()));
  EXPECT_EQ(timed_records(model_, tuned_config(model_, &stored)), timed_records(model_, untuned_config(model_)));
  EXPECT_TRUE(again.report.warnings.empty());
  EXPECT_EQ(again.parameters, first.parameters);
  const Outcome other = train_tuned(model_, tuned_config(model_));
  EXPECT_EQ(algorithms_of(other.plans), std::vector<int>(other.plans.plans.size(), 0));
  EXPECT_NE(other.parameters, first.parameters) << "the algorithms of the stand-in must differ in their bits";
}

TEST_F(AutotuneChoice, OnlyOperationsWithoutAStoredPlanAreTimed) {
  standins::set_product_algorithms({{900}, {100}});
  TunedPlans stored = train_tuned(model_, tuned_config(model_)).plans;
  const TunedPlan removed = stored.plans.back();
  stored.plans.pop_back();
  standins::set_product_algorithms({{100}, {900}});
  const Outcome run = train_tuned(model_, tuned_config(model_, &stored));
  EXPECT_EQ(run.report.timed, 1);
  ASSERT_EQ(run.report.warnings.size(), 1U);
  expect_contains(run.report.warnings[0], "1 of ");
  std::vector<int> expected(stored.plans.size(), 1);
  expected.push_back(0);
  EXPECT_EQ(algorithms_of(run.plans), expected);
  EXPECT_EQ(run.plans.plans.back().operation, removed.operation);
}

TEST_F(AutotuneChoice, PlansOfOtherConditionsAreTimedAgainWithAWarning) {
  standins::set_product_algorithms({{900}, {100}});
  const TunedPlans stored = train_tuned(model_, tuned_config(model_)).plans;
  standins::set_product_algorithms({{100}, {900}});
  const auto expect_timed = [&](const TunedPlans& known, const char* what) {
    const Outcome run = train_tuned(model_, tuned_config(model_, &known));
    ASSERT_EQ(run.report.warnings.size(), 1U) << what;
    expect_contains(run.report.warnings[0], what, "timed again");
    EXPECT_EQ(run.report.reused, 0);
    EXPECT_EQ(algorithms_of(run.plans), std::vector<int>(run.plans.plans.size(), 0));
  };
  TunedPlans known = stored;
  known.device = "Another GPU";
  expect_timed(known, "the GPU Another GPU, now Imitated GPU");
  known = stored;
  known.workspace_bytes += 256;
  expect_timed(known, "the workspace in bytes");
  known = stored;
  known.tf32 = true;
  expect_timed(known, "TF32");
  standins::set_cublaslt_version(130999);
  expect_timed(stored, "cuBLASLt 13.9.99");
}

TEST_F(AutotuneChoice, APlanThatTheLibraryRefusesIsTimedAgainWithAWarning) {
  standins::set_product_algorithms({{900}, {700}, {100}});
  const TunedPlans stored = train_tuned(model_, tuned_config(model_)).plans;
  standins::set_product_algorithms({{900}, {100}});  // number 2 does not exist any more
  const Outcome run = train_tuned(model_, tuned_config(model_, &stored));
  EXPECT_EQ(run.report.reused, 0);
  ASSERT_GE(run.report.warnings.size(), stored.plans.size());
  expect_contains(run.report.warnings[0], "refuses the stored plan");
  EXPECT_EQ(algorithms_of(run.plans), std::vector<int>(run.plans.plans.size(), 1));
}

TEST_F(AutotuneChoice, AlgorithmsThatFailAreSkipped) {
  standins::set_product_algorithms({{1, true}, {500}, {10, true}, {200}});
  const Outcome run = train_tuned(model_, tuned_config(model_));
  EXPECT_EQ(algorithms_of(run.plans), std::vector<int>(run.plans.plans.size(), 3));
  EXPECT_EQ(run.report.failed_candidates, 2 * static_cast<int>(run.plans.plans.size()));
  for (const TunedPlan& plan : run.plans.plans)
    EXPECT_EQ(plan.first_microseconds, 0) << "the library's own choice failed";
}

TEST_F(AutotuneChoice, OutOfTimeTheLibrarysChoiceIsRecorded) {
  standins::set_product_algorithms({{900}, {100}});
  EngineConfig config = tuned_config(model_);
  config.autotune.most_seconds = 1e-9;
  const Outcome run = train_tuned(model_, config);
  EXPECT_EQ(run.report.timed, 0);
  EXPECT_EQ(algorithms_of(run.plans), std::vector<int>(run.plans.plans.size(), 0));
  ASSERT_EQ(run.report.warnings.size(), run.plans.plans.size());
  ASSERT_FALSE(run.plans.plans.empty());
  expect_contains(run.report.warnings[0], "time ran out");
  EXPECT_EQ(run.untuned, std::vector<std::string>());
}

TEST_F(AutotuneChoice, AnEngineWithoutItUsesTheLibrarysChoiceAgain) {
  standins::set_product_algorithms({{900}, {100}});
  const EngineConfig plain = untuned_config(model_);
  const Outcome before = train_tuned(model_, plain);
  DeviceGroup group(group_of({0}));
  const Outcome tuned = train_on(group, model_, tuned_config(model_));
  EXPECT_NE(tuned.parameters, before.parameters);
  EXPECT_EQ(train_on(group, model_, plain).parameters, before.parameters);
}

TEST_F(AutotuneChoice, AllDevicesUseTheSamePlans) {
  standins::set_product_algorithms({{900}, {100}});
  const Outcome run = train_tuned(model_, tuned_config(model_), {0, 1, 2});
  EXPECT_TRUE(run.replicas_equal);
  EXPECT_TRUE(run.peaks_as_planned);
  EXPECT_EQ(run.untuned, std::vector<std::string>());
  const Outcome again = train_tuned(model_, tuned_config(model_, &run.plans), {0, 1, 2});
  EXPECT_EQ(again.report.timed, 0);
  EXPECT_EQ(again.parameters, run.parameters);
}

TEST_F(AutotuneChoice, DevicesOfSeveralKindsAreRefused) {
  standins::configure({.other_kind = 1});
  const std::string text = error_of<ConfigError>([&] { train_tuned(model_, tuned_config(model_), {0, 1}); });
  expect_contains(text, "device 1 is Other imitated GPU", "GPUs of one kind");
}

/// Each process is a thread with its own GPUs.
class AutotuneProcesses : public AutotuneChoice {
 protected:
  /// `known` of each rank, or null. Every process sees the same fastest algorithm.
  std::vector<Outcome> train_apart(const std::vector<std::vector<int>>& gpus,
                                   const std::vector<const TunedPlans*>& known) {
    std::vector<Outcome> runs(gpus.size());
    const RendezvousPlace place;
    run_ranks(static_cast<int>(gpus.size()), [&](int rank) {
      const auto r = static_cast<size_t>(rank);
      Process process(rank, static_cast<int>(gpus.size()), place, kPatientMs,
                      [&](DeviceGroupOptions& options) { options = group_of(gpus[r]); });
      {
        DeviceGroup& group = process.devices;
        const int64_t batch = 12;
        Engine engine(model_, group, tuned_config(model_, known[r], batch), {{batch}, {}});
        for (uint32_t step = 0; step < 5; ++step)
          engine.train_step(part_of(random_batch(model_, batch, step, 0.2), engine));
        engine.finish();
        runs[r].parameters = engine.parameters().values();
        runs[r].plans = *engine.facts().tuned_plans;
        runs[r].report = engine.facts().autotune;
        for (int d = 0; d < group.size(); ++d) {
          for (std::string& operation : untuned_operations(group[d].compute()))
            runs[r].untuned.push_back(std::move(operation));
        }
      }
      process.process_group->close();
    });
    return runs;
  }
};

TEST_F(AutotuneProcesses, AllTakeTheChoiceOfRank0) {
  standins::set_product_algorithms({{900}, {300}, {100}});
  const std::vector<std::vector<int>> gpus{{0}, {1, 2}};
  const std::vector<Outcome> first = train_apart(gpus, {nullptr, nullptr});
  EXPECT_EQ(algorithms_of(first[0].plans), std::vector<int>(first[0].plans.plans.size(), 2));
  EXPECT_EQ(first[1].plans, first[0].plans);
  EXPECT_EQ(first[1].report.timed, 0);
  EXPECT_EQ(first[1].parameters, first[0].parameters);
  for (const Outcome& run : first) EXPECT_EQ(run.untuned, std::vector<std::string>());
  // Rank 1 comes with another choice than rank 0.
  TunedPlans other = first[0].plans;
  standins::set_product_algorithms({{100}, {300}, {900}});
  other.plans = train_apart(gpus, {nullptr, nullptr})[0].plans.plans;
  EXPECT_EQ(algorithms_of(other), std::vector<int>(other.plans.size(), 0));
  const std::vector<Outcome> again = train_apart(gpus, {&first[0].plans, &other});
  EXPECT_EQ(again[0].plans, first[0].plans);
  EXPECT_EQ(again[1].plans, first[0].plans);
  EXPECT_EQ(again[0].report.timed, 0);
  EXPECT_EQ(again[0].parameters, first[0].parameters);
}

TEST_F(AutotuneProcesses, ARankWithAnotherKindOfGpuIsNamedByAll) {
  standins::configure({.other_kind = 2});
  const RendezvousPlace place;
  run_ranks(2, [&](int rank) {
    Process process(rank, 2, place, kPatientMs,
                    [rank](DeviceGroupOptions& options) { options = group_of({rank * 2}); });
    expect_contains(error_of<ConfigError>([&] {
                      const Engine engine(model_, process.devices, tuned_config(model_, nullptr, 12), {{12}, {}});
                    }),
                    "rank 1, device 0 is Other imitated GPU");
    process.process_group->close();
  });
}

}  // namespace
}  // namespace vitrine::test
