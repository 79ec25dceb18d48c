// SPDX-License-Identifier: Apache-2.0
// Checkpoints of several processes: rank 0 writes, all continue.
#include <csignal>

#include <nlohmann/json.hpp>

#include "nn/checkpoint.h"
#include "tests/multi_process/mpirun.h"
#include "tests/support/expect_contains.h"
#include "tests/support/paths.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test::program_checkpoints_test {
namespace {

class ProcessCheckpoints : public MpirunTest {
 protected:
  /// Two processes that train and save in the folder `name`.
  Command training(const std::string& name, const Command& more) const {
    Command command = words(
        "train --model mlp --image-size 8 --data synthetic:195 --threads-per-device 1 --seed 3 --batch-size 20 "
        "--checkpoint-dir {} --optimizer adam --lr 0.0005 --resume auto",
        path(name));
    command.insert(command.end(), more.begin(), more.end());
    return mpirun_command(2, vitrine_command(command));
  }
  ChildResult run(const std::string& name, const Command& more) const {
    return ChildProcess(training(name, more), ChildProcess::Streams::pipes, mpirun_environment()).wait();
  }
  std::string path(const std::string& name) const { return folder_.path(name); }
  void expect_same(const std::string& a, const std::string& b, int64_t step) const {
    for (const char* file : {"/model.safetensors", "/optimizer.safetensors"}) {
      const std::string name = "/" + checkpoint_name(step) + file;
      EXPECT_TRUE(content(path(a) + name) == content(path(b) + name)) << a << name << " differs from that of " << b;
    }
  }

 private:
  TempFolder folder_;
};

TEST_F(ProcessCheckpoints, ARunContinuesWithTheSameBits) {
  ASSERT_EQ(run("whole", words("--epochs 3 --checkpoint-every 7")).exit_code, 0);
  ASSERT_EQ(run("parts", words("--steps 14 --no-eval --checkpoint-every 7")).exit_code, 0);
  expect_same("parts", "whole", 14);
  const ChildResult result = run("parts", words("--epochs 3 --checkpoint-every 1 --verify-replicas 1"));
  EXPECT_EQ(result.exit_code, 0) << result.error;
  expect_contains(result.error, "continuing from " + path("parts") + "/step-00000014: step 14, epoch 2, batch 4 of 10");
  expect_same("parts", "whole", 30);
}

// With --exact the bits do not depend on the mode.
TEST_F(ProcessCheckpoints, ShardedStatesHaveTheBitsOfDdp) {
  for (const char* steps : {"14", "20"}) {
    for (const char* mode : {"ddp", "zero1", "zero2", "zero3"}) {
      const ChildResult result = run(mode, words("--mode {} --exact --steps {} --no-eval --ema 0.9 --hashes {}", mode,
                                                 steps, path(mode) + ".jsonl"));
      ASSERT_EQ(result.exit_code, 0) << result.error;
    }
    for (const char* mode : {"zero1", "zero2", "zero3"}) {
      EXPECT_EQ(content(path(mode) + ".jsonl"), content(path("ddp.jsonl"))) << mode << ", until step " << steps;
      expect_same(mode, "ddp", std::stoi(steps));
    }
  }
}

TEST_F(ProcessCheckpoints, SigtermToOneSavesAndEndsAll) {
  ChildProcess child(training("run", words("--epochs 1000000")), ChildProcess::Streams::pipes, mpirun_environment());
  ASSERT_TRUE(child.wait_for("epoch 2/"));
  kill(process_of_rank(child.pid(), 1), SIGTERM);
  const ChildResult result = child.wait();
  EXPECT_EQ(result.exit_code, 143) << result.error;
  const NamedCheckpoint newest = list_checkpoints(path("run")).back();
  EXPECT_NO_THROW(read_checkpoint(newest.path));
  const std::string more = std::to_string(newest.step + 3);
  ASSERT_EQ(run("run", words("--steps {} --no-eval", more)).exit_code, 0);
  ASSERT_EQ(run("whole", words("--steps {} --no-eval", more)).exit_code, 0);
  expect_same("run", "whole", newest.step + 3);
}

// The documented loop around mpirun; one process is killed in its first round.
TEST_F(ProcessCheckpoints, AShellLoopFinishesARunWhoseProcessIsKilled) {
  const Command last = words("--epochs 15 --checkpoint-every 1 --keep-last 2 --no-eval");
  const std::string named = "echo $$ > \"" + path("pid") + "\"; exec \"$@\"";  // by its process id
  Command command =
      words("bash {} {} bash -c {} bash", test::source_path("docs/examples/restart.sh"), path("run"), named);
  for (const std::string& word : training("run", last)) command.push_back(word);
  std::vector<std::string> environment = mpirun_environment();
  environment.emplace_back("RESTART_PAUSE=0");
  ChildProcess child(command, ChildProcess::Streams::pipes, environment);
  ASSERT_TRUE(child.wait_for("epoch 2/"));
  kill(process_of_rank(std::stoi(content(path("pid"))), 1), SIGKILL);
  const ChildResult result = child.wait();
  EXPECT_EQ(result.exit_code, 0) << result.error;
  const size_t restart = result.error.find("starting it again from " + path("run") + "/step-");
  EXPECT_NE(restart, std::string::npos) << result.error;
  EXPECT_EQ(result.error.find("starting it again", restart + 1), std::string::npos) << result.error;
  expect_contains(result.error, "continuing from ");
  ASSERT_EQ(run("whole", last).exit_code, 0);
  expect_same("run", "whole", 150);
}

TEST_F(ProcessCheckpoints, ARefusalEndsAllProcesses) {
  ASSERT_EQ(run("run", words("--epochs 1")).exit_code, 0);
  const ChildResult result = run("run", words("--epochs 2 --seed 1"));
  EXPECT_NE(result.exit_code, 0);
  expect_contains(result.error, "--seed is 1, in the checkpoint 3");
}

}  // namespace
}  // namespace vitrine::test::program_checkpoints_test
