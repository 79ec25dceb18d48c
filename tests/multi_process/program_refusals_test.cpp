// SPDX-License-Identifier: Apache-2.0
// Refusals for several processes, and messages for inconsistent launcher variables.
#include <algorithm>

#include "tests/multi_process/mpirun.h"
#include "tests/support/expect_contains.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test::program_refusals_test {
namespace {

const Command kJob = words("train --model mlp --data synthetic:100 --threads-per-device 1 --steps 2");

Command job(const Command& more) {
  Command all = vitrine_command(kJob);
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

void expect_usage_error(const ChildResult& result, const std::vector<std::string>& parts) {
  EXPECT_EQ(result.exit_code, 2) << result.error;
  EXPECT_EQ(result.output, "");
  for (const std::string& part : parts)
    EXPECT_NE(result.error.find(part), std::string::npos) << part << " is not in\n" << result.error;
}

class ProcessRefusals : public MpirunTest {};

TEST_F(ProcessRefusals, DifferingOptionsAreNamedWithTheRank) {
  expect_usage_error(
      mpirun({job(words("--precision fp16")),
              job(words("--precision fp16 --batch-size 32 --clip-norm 2 --loss-scale-growth-interval 7"))}),
      {"rank 1 has --batch-size 32, where rank 0 has 64", "rank 1 has --clip-norm 2, where rank 0 has none",
       "rank 1 has --loss-scale-growth-interval 7, where rank 0 has 2000"});
  expect_usage_error(
      mpirun({job({}), job(words("--no-shuffle --init-weights w.safetensors --no-eval"))}),
      {"rank 1 has --shuffle off, where rank 0 has on", "rank 1 has --init-weights, where rank 0 has none",
       "rank 1 has --no-eval, where rank 0 has none"});
}

// Each rank would compute its leaves with other instructions: a hash that no machine alone has.
TEST_F(ProcessRefusals, ExactModeNeedsOneInstructionSet) {
  Command other = words("env ONEDNN_MAX_CPU_ISA=SSE41");
  const Command exact = job(words("--exact"));
  other.insert(other.end(), exact.begin(), exact.end());
  expect_usage_error(mpirun({exact, other}), {"rank 1 has arithmetic of CPU devices oneDNN ", "(SSE41; f32)"});
}

// Before the first step, not when a rank waits for the other one at the end.
TEST_F(ProcessRefusals, DifferingSchedulesAndOutputsAreFoundBeforeTheFirstStep) {
  expect_usage_error(mpirun({job(words("--lr-schedule cosine")), job(words("--save w.safetensors --warmup-steps 1"))}),
                     {"rank 1 has --lr-schedule constant, where rank 0 has cosine",
                      "rank 1 has --warmup-steps 1, where rank 0 has 0", "rank 1 has --save, where rank 0 has none"});
}

TEST_F(ProcessRefusals, TheRankThatDiffersFromMostIsNamed) {
  expect_usage_error(mpirun({job(words("--lr 0.5")), job({}), job({})}),
                     {"rank 0 has --lr 0.5, where ranks 1, 2 have 0.001"});
}

TEST_F(ProcessRefusals, SchemesForOneProcessAreRefusedOnce) {
  const std::vector<Command> schemes = {words("--mode dp"), words("--mode balanced --split gpu0=4"),
                                        words("--mode criterion"), words("--reduce device0")};
  for (const Command& scheme : schemes) {
    const ChildResult result = mpirun(3, job(scheme));
    const std::string reason = ": it needs a single process";
    expect_usage_error(result, {scheme[0] + " " + scheme[1] + reason, "use --mode ddp"});
    EXPECT_EQ(result.error.find(reason), result.error.rfind(reason)) << result.error;
  }
}

TEST_F(ProcessRefusals, BalancingByTimeNeedsOneProcess) {
  expect_usage_error(mpirun(2, job(words("--split auto --balance time"))),
                     {"--balance time: it measures devices of one process"});
}

TEST_F(ProcessRefusals, CompareNeedsOneProcess) {
  expect_usage_error(mpirun(2, vitrine_command(words("compare --data synthetic:100"))),
                     {"compare: it runs in one process, but 2 were started"});
}

/// In one process with the environment of a launcher.
ChildResult launched(const Command& arguments, const std::vector<std::string>& environment) {
  return ChildProcess(job(arguments), ChildProcess::Streams::pipes, environment).wait();
}

const std::vector<std::string> kTorchrun = {
    "RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29511"};

TEST(LauncherEnvironment, NamesMissingVariables) {
  for (const std::string name : {"WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    std::vector<std::string> environment = kTorchrun;
    // The name without a value removes the variable.
    std::ranges::replace_if(
        environment, [&](const std::string& entry) { return entry.rfind(name + "=", 0) == 0; }, name);
    expect_usage_error(launched({}, environment), {name});
  }
  expect_usage_error(launched({}, {"OMPI_COMM_WORLD_RANK=0"}), {"OMPI_COMM_WORLD_SIZE"});
  expect_usage_error(launched(words("--rank 1"), {}), words("--world-size"));
}

TEST(LauncherEnvironment, CpuDevicesNeedMpi) {
  expect_usage_error(launched(words("--devices cpu:0"), kTorchrun),
                     {"reduce over MPI", "were started by torchrun", "mpirun -np 2 vitrine"});
  expect_usage_error(launched(words("--devices cpu:0 --rank 0 --world-size 3 --rendezvous file:/tmp/nowhere"), {}),
                     {"these use --rendezvous", "mpirun -np 3 vitrine"});
}

TEST(LauncherEnvironment, RendezvousIsAnAddressOrAFile) {
  expect_usage_error(launched(words("--rendezvous tcp://127.0.0.1:29512"), {}),
                     {"--rendezvous tcp://127.0.0.1:29512: there is only one process"});
  expect_usage_error(launched(words("--rendezvous file:/tmp/nowhere"), {}),
                     {"--rendezvous file:/tmp/nowhere: there is only one process"});
  const ChildResult result = launched(words("--init-weights /nonexistent/tcp.safetensors"), {});
  EXPECT_EQ(result.exit_code, 1) << result.error;
  expect_contains(result.error, "/nonexistent/tcp.safetensors");
}

TEST(LauncherEnvironment, AcceptsBothSpellingsOfTheLocalRank) {
  for (const char* option : {"--local_rank=0", "--local-rank=0"}) {
    const ChildResult result = launched({option, "--devices", "cpu:0"}, {});
    EXPECT_EQ(result.exit_code, 0) << option << ": " << result.error;
  }
}

}  // namespace
}  // namespace vitrine::test::program_refusals_test
