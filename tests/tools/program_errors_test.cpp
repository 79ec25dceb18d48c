// SPDX-License-Identifier: Apache-2.0
#include <filesystem>

#include <gtest/gtest.h>

#include "tests/tools/run_vitrine.h"

namespace vitrine::test {
namespace {

/// Runs a command line that must fail: nothing on stdout, a sentence on stderr.
void expect_failure(const std::vector<std::string>& arguments, int exit_code, const std::string& part) {
  const ChildResult result = run_vitrine(arguments);
  EXPECT_EQ(result.exit_code, exit_code) << result.error;
  EXPECT_EQ(result.output, "");
  EXPECT_NE(result.error.find(part), std::string::npos) << result.error;
}

TEST(ProgramErrors, UsageErrorsExitWithStatus2) {
  expect_failure({}, 2, "subcommand");
  expect_failure({"train", "--epoch", "3"}, 2, "did you mean --epochs?");
  expect_failure({"train", "--epochs", "1", "--steps", "2"}, 2, "--epochs and --steps");
  expect_failure({"train", "--data", "imagenet:x"}, 2, "imagenet");
  expect_failure({"train", "--devices", "cpu:x"}, 2, "cpu:x");
  expect_failure({"train", "--devices", "cpu:0-1", "--split", "1,2,3"}, 2, "3 weights but there are 2 devices");
  expect_failure({"train", "--devices", "cpu:0-1", "--mode", "balanced"}, 2, "--split gpu0=N");
  expect_failure({"train", "--devices", "cpu:0-1", "--mode", "dp", "--output-device", "cpu:2"}, 2, "cpu:0, cpu:1");
  expect_failure({"train", "--devices", "cpu:0-1", "--data", "synthetic:50", "--threads-per-device", "1,1,1"}, 2,
                 "3 values for 2 devices");
  expect_failure({"train", "--devices", "meta:0", "--data", "synthetic:50"}, 2, "meta");
  expect_failure({"train", "--data", "synthetic:50", "--drop-last"}, 2, "lower --batch-size");
  expect_failure({"eval"}, 2, "--weights");
}

/// The data, which would be opened next, does not exist.
TEST(ProgramErrors, OneCycleWithoutMomentumIsRefusedBeforeAnyWork) {
  const std::vector<std::string> one_cycle = {"train",  "--lr-schedule",        "one-cycle",
                                              "--data", "cifar10:/nonexistent", "--optimizer"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), one_cycle.begin(), one_cycle.end());
    return more;
  };
  expect_failure(with({"sgd"}), 2, "sgd does not have without --momentum; give one, for example --momentum 0.9");
  expect_failure(with({"sgd", "--momentum", "0"}), 2, "--momentum 0.9");
  expect_failure(with({"sgd", "--momentum", "0.9"}), 1, "/nonexistent");
  expect_failure(with({"adamw"}), 1, "/nonexistent");
}

TEST(ProgramErrors, AnInstructionSetThatIsNotThereIsNamed) {
  const ChildResult result = ChildProcess(vitrine_command({"train", "--data", "synthetic:50"}),
                                          ChildProcess::Streams::pipes, {"VITRINE_ISA=mmx"})
                                 .wait();
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.output, "");
  EXPECT_NE(result.error.find("VITRINE_ISA is 'mmx', but this build on this processor has only "), std::string::npos)
      << result.error;
}

TEST(ProgramErrors, FailuresExitWithStatus1) {
  expect_failure({"train", "--data", "cifar10:/nonexistent"}, 1, "/nonexistent");
  expect_failure({"train", "--devices", "cuda:4000", "--data", "synthetic:50"}, 1, "cuda:4000: ");
  expect_failure({"train", "--data", "synthetic:50", "--init-weights", "/nonexistent.safetensors"}, 1,
                 "vitrine: --init-weights /nonexistent.safetensors: it cannot be opened");
  expect_failure({"eval", "--data", "synthetic:50", "--weights", "/nonexistent.safetensors"}, 1,
                 "vitrine: --weights /nonexistent.safetensors: it cannot be opened");
  expect_failure({"train", "--devices", "cpu:0", "--data", "synthetic:100", "--device-memory", "64KiB"}, 1, "cpu:0");
}

TEST(ProgramErrors, ValuesThatDependOnDataAndModelAreNamedByTheirFlags) {
  expect_failure({"train", "--model", "mlp", "--image-size", "8", "--data", "synthetic:50", "--augment", "crop:40"}, 2,
                 "vitrine: --augment crop:40: crop:40 is more than the ");
  expect_failure(
      {"train", "--model", "mlp", "--image-size", "8", "--data", "synthetic:50", "--param-group", "x*:lr=0.1"}, 2,
      "vitrine: --param-group: no parameter matches 'x*'; the parameters are ");
}

TEST(ProgramErrors, MissingGpusHaveOneExitStatusHoweverTheyAreNamed) {
  if (run_vitrine({"info", "--json"}).output.find("\"cuda:0\"") != std::string::npos) GTEST_SKIP() << "there is a GPU";
  for (const std::string command : {"train", "compare", "collectives", "eval"}) {
    std::vector<ChildResult> results;
    for (const char* devices : {"cuda:0", "cuda:all", "cuda:0-1"}) {
      std::vector<std::string> arguments = {command, "--devices", devices};
      if (command == "eval") arguments.insert(arguments.end(), {"--weights", "w.safetensors"});
      results.push_back(run_vitrine(arguments));
      EXPECT_EQ(results.back().exit_code, 1) << results.back().error;
    }
    const auto reason = [](const ChildResult& result) { return result.error.substr(result.error.find(": ", 9)); };
    for (const ChildResult& result : results) EXPECT_EQ(reason(result), reason(results[0])) << command;
  }
}

TEST(ProgramErrors, SizesBeyondAPlanHaveRemedies) {
  expect_failure({"plan", "--image-size", "20000", "--no-eval"}, 1, "the most that a plan can represent");
  expect_failure({"train", "--image-size", "20000", "--steps", "1", "--no-eval"}, 1, "--image-size");
}

TEST(ProgramErrors, MoreCpuDevicesThanAProcessCanHaveAreRefusedAtOnce) {
  for (const char* command : {"train", "plan", "compare", "collectives"}) {
    expect_failure({command, "--devices", "cpu:0-3000"}, 2,
                   "3001 CPU devices, but a process has at most 64; use fewer, or start several processes with mpirun");
  }
}

TEST(ProgramErrors, AnEmptyValueIsRefused) {
  for (const char* option : {"--save", "--report", "--init-weights", "--log", "--tensorboard", "--checkpoint-dir"}) {
    expect_failure({"train", option, "", "--steps", "1"}, 2, std::string(option) + ": the value is empty");
  }
}

TEST(ProgramErrors, AFileThatHoldsNoWeightsIsNamedWithItsOption) {
  expect_failure({"train", "--data", "synthetic:50", "--init-weights", "/etc/passwd"}, 1,
                 "vitrine: --init-weights /etc/passwd, offset 0: ");
  expect_failure({"eval", "--data", "synthetic:50", "--weights", "/etc/passwd"}, 1,
                 "vitrine: --weights /etc/passwd, offset 0: ");
}

TEST(ProgramErrors, AFolderIsNotAFileOfWeights) {
  expect_failure({"train", "--init-weights", "/proc/self/fd", "--steps", "1"}, 1, "/proc/self/fd");
}

TEST(ProgramErrors, UnwritableFilesAreReportedBeforeTraining) {
  const std::string folder = std::filesystem::temp_directory_path().string();
  expect_failure({"train", "--data", "synthetic:100", "--save", "/nonexistent/w.safetensors"}, 1,
                 "--save /nonexistent/w.safetensors");
  expect_failure({"train", "--data", "synthetic:100", "--save", folder}, 1, "it is a folder");
  expect_failure({"train", "--data", "synthetic:100", "--trace", "/nonexistent/t.json"}, 1, "--trace");
  expect_failure({"train", "--data", "synthetic:100", "--report", "/nonexistent/r.html"}, 1,
                 "--report /nonexistent/r.html");
  expect_failure({"train", "--data", "synthetic:100", "--memory-history", "/nonexistent/m.pickle"}, 1,
                 "--memory-history");
  expect_failure({"compare", "--data", "synthetic:100", "--report", "/nonexistent/r.html"}, 1,
                 "--report /nonexistent/r.html");
}

}  // namespace
}  // namespace vitrine::test
