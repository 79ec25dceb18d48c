// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include <fmt/format.h>

#include "tests/multi_process/mpirun.h"
#include "tests/support/paths.h"

namespace vitrine::test::collectives_processes_test {
namespace {

/// Number of devices of each process.
class CollectivesOfProcesses : public MpirunTest, public ::testing::WithParamInterface<std::vector<int>> {};

TEST_P(CollectivesOfProcesses, AreCorrectToTheBit) {
  std::vector<Command> commands;
  for (const int devices : GetParam())
    commands.push_back({test::program_path("collectives_worker"), std::to_string(devices)});
  const ChildResult result = mpirun(commands);
  EXPECT_EQ(result.exit_code, 0) << result.error;
}

INSTANTIATE_TEST_SUITE_P(Counts, CollectivesOfProcesses,
                         ::testing::Values(std::vector{1, 1}, std::vector{2, 2}, std::vector{1, 3, 2}),
                         device_counts_label);

/// Number of processes, and up to how many exchange directly; more of them use the tree.
class Exchange : public MpirunTest, public ::testing::WithParamInterface<std::pair<int, int>> {};

TEST_P(Exchange, SumsAreCorrectAndHaveTheSameBitsOnAllRanks) {
  const auto [processes, largest_direct] = GetParam();
  const ChildResult result = mpirun(processes, {test::program_path("exchange_worker"), std::to_string(largest_direct)});
  EXPECT_EQ(result.exit_code, 0) << result.error;
}

INSTANTIATE_TEST_SUITE_P(Sizes, Exchange,
                         ::testing::Values(std::pair{3, 16}, std::pair{3, 1}, std::pair{5, 1}, std::pair{18, 16},
                                           std::pair{100, 16}),
                         [](const auto& test) {
                           return fmt::format("Of{}{}", test.param.first,
                                              test.param.first > test.param.second ? "AlongATree" : "Directly");
                         });

}  // namespace
}  // namespace vitrine::test::collectives_processes_test
