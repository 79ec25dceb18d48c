// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "tests/multi_process/mpirun.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test {
namespace {

using Json = nlohmann::json;

class Processes : public MpirunTest {};

TEST_F(Processes, RankZeroPrintsForAll) {
  const ChildResult result = mpirun(4, vitrine_command({"train", "--model", "mlp", "--data", "synthetic:200", "--devices", "cpu:0",
                                                        "--threads-per-device", "1", "--batch-size", "32", "--steps", "3", "--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(result.output.find('\n'), result.output.size() - 1) << "stdout holds more than one line";
  EXPECT_EQ(Json::parse(result.output)["step_losses"].size(), 3U);
}

}  // namespace
}  // namespace vitrine::test
