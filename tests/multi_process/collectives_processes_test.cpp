// SPDX-License-Identifier: Apache-2.0
#include "tests/multi_process/mpirun.h"

namespace vitrine::test {
namespace {

/// How many devices each process has.
class CollectivesOfProcesses : public MpirunTest, public ::testing::WithParamInterface<std::vector<int>> {};

TEST_P(CollectivesOfProcesses, EveryOneIsRightToTheBit) {
  std::vector<Command> commands;
  for (const int devices : GetParam()) commands.push_back({VITRINE_COLLECTIVES_WORKER, std::to_string(devices)});
  const ChildResult result = mpirun(commands);
  EXPECT_EQ(result.exit_code, 0) << result.error;
}

INSTANTIATE_TEST_SUITE_P(Counts, CollectivesOfProcesses,
                         ::testing::Values(std::vector{1, 1}, std::vector{1, 1, 1, 1}, std::vector{2, 2}, std::vector{2, 2, 2}, std::vector{1, 3, 2}),
                         device_counts_label);

}  // namespace
}  // namespace vitrine::test
