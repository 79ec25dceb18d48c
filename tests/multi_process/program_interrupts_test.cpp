// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "tests/multi_process/mpirun.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test {
namespace {

using Json = nlohmann::json;

class ProcessInterrupts : public MpirunTest {
 protected:
  /// mpirun with three processes that train until they are interrupted.
  Command endless() const {
    return mpirun_command(3, vitrine_command({"train", "--model", "mlp", "--data", "synthetic:200", "--threads-per-device", "1", "--epochs",
                                              "1000000000", "--json", "--save", weights()}));
  }
  std::string weights() const { return folder_.path("w.safetensors"); }
  void expect_weights() const {
    ASSERT_TRUE(std::filesystem::exists(weights()));
    const ChildResult result = run_vitrine({"eval", "--model", "mlp", "--data", "synthetic:200", "--weights", weights()});
    EXPECT_EQ(result.exit_code, 0) << result.error;
  }

 private:
  TempFolder folder_;
};

TEST_F(ProcessInterrupts, ASignalToOneProcessEndsAllAfterTheSameStep) {
  for (const int rank : {0, 2}) {
    ChildProcess child(endless(), ChildProcess::Streams::pipes, mpirun_environment());
    ASSERT_TRUE(child.wait_for("epoch 2/"));
    kill(process_of_rank(child.pid(), rank), SIGTERM);
    const ChildResult result = child.wait();
    EXPECT_EQ(result.exit_code, 143) << result.error;
    const Json json = Json::parse(result.output);
    EXPECT_TRUE(json["interrupted"].get<bool>());
    EXPECT_GE(json["step_losses"].size(), 6U);
    EXPECT_EQ(json["devices"].size(), 3U);
    expect_weights();
    std::filesystem::remove(weights());
  }
}

TEST_F(ProcessInterrupts, WeightsAreSavedWhenMpirunIsInterrupted) {
  // Seconds that mpirun waits before it sends SIGTERM, and again before SIGKILL.
  Command command = endless();
  command.insert(command.begin() + 1, {"--mca", "odls_base_sigkill_timeout", "2"});
  ChildProcess child(command, ChildProcess::Streams::pipes, mpirun_environment());
  ASSERT_TRUE(child.wait_for("epoch 2/"));
  child.send_signal(SIGINT);
  const ChildResult result = child.wait();
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.error.find("ending after the current step"), std::string::npos) << result.error;
  EXPECT_EQ(result.error.find("died"), std::string::npos) << result.error;
  EXPECT_EQ(result.error.find("failed"), std::string::npos) << result.error;
  expect_weights();
}

}  // namespace
}  // namespace vitrine::test
