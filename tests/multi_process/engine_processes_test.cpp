// SPDX-License-Identifier: Apache-2.0
// Several processes train like one device.
#include <cmath>

#include "tests/multi_process/engine_case.h"
#include "tests/multi_process/mpirun.h"
#include "tests/multi_process/worker.h"
#include "tests/parallel/random_model.h"
#include "tests/support/paths.h"

namespace vitrine::test::engine_processes_test {
namespace {

/// Number of devices of each process.
using Processes = std::vector<int>;

class EngineProcesses : public MpirunTest, public ::testing::WithParamInterface<Processes> {
 protected:
  /// Trains all cases in separate processes; returns their results in the order of engine_cases().
  static std::vector<EngineResult> train(const Processes& devices) {
    const TempFolder folder;
    std::vector<Command> commands;
    for (const int count : devices)
      commands.push_back({test::program_path("engine_worker"), std::to_string(count), folder.str()});
    const ChildResult result = mpirun(commands);
    EXPECT_EQ(result.exit_code, 0) << result.error;
    std::vector<EngineResult> results;
    for (const EngineCase& c : engine_cases()) results.push_back(load_result(folder.path(c.name)));
    return results;
  }
};

EngineResult train_here(const EngineCase& engine_case, int devices) {
  DeviceGroup group(worker_group(nullptr, devices));
  return run_engine_case(engine_case, group);
}

/// The results of all cases, in the order of engine_cases(); every count of processes is compared with them.
const std::vector<EngineResult>& of_one_device() {
  static const std::vector<EngineResult> results = [] {
    std::vector<EngineResult> all;
    for (const EngineCase& c : engine_cases()) all.push_back(train_here(c, 1));
    return all;
  }();
  return results;
}

const Processes kTrainedTwice = {1, 2};

TEST_P(EngineProcesses, TrainLikeOneDevice) {
  const std::vector<EngineResult> results = train(GetParam());
  const std::vector<EngineResult> again = GetParam() == kTrainedTwice ? train(GetParam()) : results;
  const std::vector<EngineCase> cases = engine_cases();
  for (size_t i = 0; i < cases.size(); ++i) {
    const EngineCase& c = cases[i];
    const EngineResult& one = of_one_device()[i];
    ASSERT_EQ(results[i].parameters.size(), one.parameters.size()) << c.name << " left no result";
    ASSERT_EQ(results[i].states.size(), one.states.size()) << c.name;
    EXPECT_LE(relative_difference(results[i].parameters, one.parameters), c.tolerance) << c.name;
    EXPECT_LE(relative_difference(results[i].states, one.states),
              c.state_tolerance > 0.0 ? c.state_tolerance : c.tolerance)
        << c.name;
    EXPECT_TRUE(results[i] == again[i]) << "not the same bits: " << c.name;
    ASSERT_EQ(results[i].losses.size(), one.losses.size()) << c.name;
    for (size_t step = 0; step < one.losses.size(); ++step) {
      EXPECT_NEAR(results[i].losses[step], one.losses[step], c.tolerance * std::abs(one.losses[step]))
          << c.name << ", step " << step;
    }
    EXPECT_NEAR(results[i].evaluation[0], one.evaluation[0], c.tolerance * one.evaluation[0]) << c.name;
    EXPECT_EQ(results[i].evaluation[1], one.evaluation[1]) << c.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Counts, EngineProcesses, ::testing::Values(kTrainedTwice, Processes{2, 2}),
                         device_counts_label);

using EngineSums = EngineProcesses;

TEST_F(EngineSums, ProcessesWithOneDeviceHaveTheBitsOfOneProcessWithAsManyDevices) {
  const std::vector<EngineResult> results = train({1, 1, 1, 1});
  const std::vector<EngineCase> cases = engine_cases();
  for (size_t i = 0; i < cases.size(); ++i) {
    const EngineResult together = train_here(cases[i], 4);
    EXPECT_EQ(results[i].parameters, together.parameters) << cases[i].name;
    EXPECT_EQ(results[i].states, together.states) << cases[i].name;
    EXPECT_EQ(results[i].losses, together.losses) << cases[i].name;
  }
}

TEST(EngineCases, OneOverflowsAndContinues) {
  for (const EngineCase& c : engine_cases()) {
    if (c.name != "fp16_overflow") continue;
    EngineCase without = c;
    without.precision.loss_scaling.scale = 1024;
    EXPECT_NE(train_here(c, 1).parameters, train_here(without, 1).parameters) << "its first step was not skipped";
  }
}

}  // namespace
}  // namespace vitrine::test::engine_processes_test
