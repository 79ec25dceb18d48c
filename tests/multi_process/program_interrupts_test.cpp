// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include <nlohmann/json.hpp>

#include "tests/multi_process/mpirun.h"
#include "tests/support/expect_contains.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test::program_interrupts_test {
namespace {

using Json = nlohmann::json;

class ProcessInterrupts : public MpirunTest {
 protected:
  /// Training until it is interrupted.
  Command endless() const {
    return vitrine_command(
        words("train --model mlp --data synthetic:200 --threads-per-device 1 --epochs 1000000000 --json --save {}",
              weights()));
  }
  std::string weights() const { return folder_.path("w.safetensors"); }
  void expect_weights() const {
    ASSERT_TRUE(std::filesystem::exists(weights()));
    const ChildResult result = run_vitrine(words("eval --model mlp --data synthetic:200 --weights {}", weights()));
    EXPECT_EQ(result.exit_code, 0) << result.error;
  }

  std::string said(const char* rank) const {
    std::ifstream file(folder_.path("err.") + rank);  // may not exist yet
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  void wait_for_epoch_2() const {
    for (int tries = 0; tries < 600 && said("0").find("epoch 2/") == std::string::npos; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    ASSERT_NE(said("0").find("epoch 2/"), std::string::npos) << said("0");
  }

  TempFolder folder_;
};

TEST_F(ProcessInterrupts, ASignalToOneProcessEndsAllAfterTheSameStep) {
  for (const int rank : {0, 2}) {
    ChildProcess child(mpirun_command(3, with_output_in(folder_.str(), endless())), ChildProcess::Streams::pipes,
                       mpirun_environment());
    wait_for_epoch_2();
    kill(process_of_rank(child.pid(), rank), SIGTERM);
    const ChildResult result = child.wait();
    EXPECT_EQ(result.exit_code, 143) << result.error;
    const Json json = Json::parse(content(folder_.path("out.0")));
    EXPECT_TRUE(json["interrupted"].get<bool>());
    EXPECT_GE(json["step_losses"].size(), 6U);
    EXPECT_EQ(json["devices"].size(), 3U);
    expect_weights();
    for (const auto& file : std::filesystem::directory_iterator(folder_.path())) std::filesystem::remove(file);
  }
}

TEST_F(ProcessInterrupts, BeforeTheFirstStepASignalEndsAllAndIsNamed) {
  for (const int rank : {0, 2}) {
    ChildProcess child(
        mpirun_command(
            3, vitrine_command(words(
                   "train --model alexnet --optimizer sgd --data synthetic:30 --batch-size 3 --threads-per-device 1"))),
        ChildProcess::Streams::pipes, mpirun_environment());
    ASSERT_TRUE(child.wait_for("3 processes on 1 host"));  // the engines are constructed next
    kill(process_of_rank(child.pid(), rank), SIGTERM);
    const ChildResult result = child.wait();
    // mpirun's status is that of the process whose end it sees first: of the signal, or of one that misses its peer.
    EXPECT_TRUE(result.exit_code == 143 || result.exit_code == 1) << result.exit_code << result.error;
    expect_contains(result.error, "vitrine: rank " + std::to_string(rank) + " (pid ",
                    "failed: it was asked to stop by SIGTERM before its first step");
    expect_lacks(result.error, "stopping after the current step", "died");
  }
}

TEST_F(ProcessInterrupts, WeightsAreSavedWhenMpirunIsInterrupted) {
  Command command = mpirun_command(3, with_output_in(folder_.str(), endless()));
  if (ChildProcess({command[0], "--version"}).wait().output.find("(Open MPI) 4.") == std::string::npos) {
    GTEST_SKIP() << "this mpirun sends SIGKILL half a second after SIGINT, whatever its settings";
  }
  // Seconds that mpirun waits before it sends SIGTERM, and again before SIGKILL.
  command.insert(command.begin() + 1, {"--mca", "odls_base_sigkill_timeout", "2"});
  ChildProcess child(command, ChildProcess::Streams::pipes, mpirun_environment());
  wait_for_epoch_2();
  child.send_signal(SIGINT);
  EXPECT_NE(child.wait().exit_code, 0);
  std::string all;
  for (const char* rank : {"0", "1", "2"}) all += said(rank);
  expect_contains(all, "stopping after the current step");
  expect_lacks(all, "died", "failed");
  expect_weights();
}

}  // namespace
}  // namespace vitrine::test::program_interrupts_test
