// SPDX-License-Identifier: Apache-2.0
// Saving takes longer than any deadline, and no weights are lost.
#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

#include "tests/multi_process/mpirun.h"
#include "tests/support/expect_contains.h"
#include "tests/support/paths.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test::program_saving_test {
namespace {

namespace fs = std::filesystem;

class ProcessSaving : public MpirunTest {
 protected:
  /// Three processes that train and save on a disk that needs `seconds` for each flush.
  Command training(int seconds, const Command& more) const {
    Command command = words(
        "env {} ASAN_OPTIONS=verify_asan_link_order=0 {} {} train --model mlp --data synthetic:200 "
        "--threads-per-device 1 --save {}",
        "LD_PRELOAD=" VITRINE_SLOW_DISK, "VITRINE_SLOW_DISK_SECONDS=" + std::to_string(seconds),
        test::program_path("vitrine"), weights());
    command.insert(command.end(), more.begin(), more.end());
    return mpirun_command(3, command);
  }
  std::string weights() const { return folder_.path("w.safetensors"); }
  /// mpirun may return before the file is complete.
  void wait_for_weights() const {
    for (int i = 0; i < 600 && !fs::exists(weights()); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  /// Checks that the folder contains the file and nothing else.
  void expect_weights() const {
    ASSERT_TRUE(fs::exists(weights()));
    const ChildResult result = run_vitrine(words("eval --model mlp --data synthetic:200 --weights {}", weights()));
    EXPECT_EQ(result.exit_code, 0) << result.error;
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 1);
  }

 private:
  TempFolder folder_;
};

TEST_F(ProcessSaving, AFailureShowsWhateverTheParentIgnores) {
  const ChildResult result = mpirun(2, words("env --ignore-signal=CHLD {} train --model mlp --data synthetic:64 "
                                             "--threads-per-device 1 --steps 1 --no-eval --save /dev/full",
                                             test::program_path("vitrine")));
  EXPECT_EQ(result.exit_code, 1);
  expect_contains(result.error, "--save /dev/full: cannot be written");
}

TEST_F(ProcessSaving, MayTakeLongerThanTheTimeout) {
  ChildProcess child(training(7, words("--steps 4 --no-eval --timeout 5 --verify-replicas 4")),
                     ChildProcess::Streams::pipes, mpirun_environment());
  const ChildResult result = child.wait();
  EXPECT_EQ(result.exit_code, 0) << result.error;
  expect_contains(result.output, "The weights are in");
  expect_contains(result.error, "warning: --save " + weights() + ": nothing was written for 5 s");
  expect_weights();
}

// The weights are saved before anything else can fail at the end of a run: here the comparison of replicas, whose other
// process has exited.
TEST_F(ProcessSaving, SurvivesTheDeathOfAnotherProcess) {
  ChildProcess child(training(9, words("--steps 4 --no-eval --timeout 5 --verify-replicas 4")),
                     ChildProcess::Streams::pipes, mpirun_environment());
  ASSERT_TRUE(child.wait_for("nothing was written for 5 s"));
  kill(process_of_rank(child.pid(), 1), SIGKILL);
  EXPECT_NE(child.wait().exit_code, 0);
  wait_for_weights();
  expect_weights();
}

// mpirun ends the other processes with signals, and so does the failed process group after 2 s: the weights are saved
// nevertheless.
TEST_F(ProcessSaving, CompletesAfterAFailure) {
  ChildProcess child(training(6, words("--epochs 1000000")), ChildProcess::Streams::pipes, mpirun_environment());
  ASSERT_TRUE(child.wait_for("epoch 2/"));
  kill(process_of_rank(child.pid(), 1), SIGKILL);
  const ChildResult result = child.wait();
  EXPECT_NE(result.exit_code, 0);
  wait_for_weights();
  expect_weights();
}

}  // namespace
}  // namespace vitrine::test::program_saving_test
