// SPDX-License-Identifier: Apache-2.0
// Results that cannot be written are an error, and nothing else is lost.
#include <filesystem>
#include <fstream>
#include <limits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/expect_contains.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test {
namespace {

namespace fs = std::filesystem;

class Output : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path(name); }
  std::string text(const std::string& name) const { return content(path(name)); }

  /// Runs a line of the shell in the test's folder. $V is the program, $TRAIN a short training that saves
  /// w.safetensors.
  ChildResult shell(const std::string& line) const {
    const std::string setup = "cd '" + folder_.str() + "'; V='" + test::program_path("vitrine") +
                              "'; TRAIN=\"$V train --model mlp --data synthetic:200 --threads-per-device 1 --steps 3 "
                              "--no-eval --save w.safetensors\"; ";
    return ChildProcess(words("bash -c {}", setup + line)).wait();
  }
  void expect_weights() const {
    EXPECT_EQ(run_vitrine(words("eval --model mlp --data synthetic:200 --weights {}", path("w.safetensors"))).exit_code,
              0);
    for (const auto& entry : fs::directory_iterator(folder_.path()))
      EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
  }

  const TempFolder folder_;
};

TEST_F(Output, AClosedPipeLosesNothingElse) {
  const ChildResult result = shell("$TRAIN --report r.html | head -n 1; exit ${PIPESTATUS[0]}");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.error.find("Broken pipe"), std::string::npos) << result.error;
  expect_weights();
  expect_contains(text("r.html"), "</html>");
}

TEST_F(Output, AReaderThatHasEnoughEndsACommandThatOnlyPrints) {
  const ChildResult result = shell("exec 3> >(:); wait $!; $V man >&3 || $V plan --model mlp --data synthetic:200 >&3");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.error, "");
}

/// oneDNN prints what ONEDNN_VERBOSE asks for on stdout, NCCL what NCCL_DEBUG does.
TEST_F(Output, LinesOfLibrariesAreNotAmongResults) {
  const ChildResult result = shell("ONEDNN_VERBOSE=1 DNNL_VERBOSE=1 $TRAIN --json");
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_TRUE(nlohmann::json::accept(result.output)) << result.output;
  expect_contains(result.error, "_verbose,");
}

TEST_F(Output, AFullDiskAtStdoutIsAnError) {
  for (const char* command : {"$TRAIN --json > /dev/full", "$TRAIN > /dev/full", "$V --help > /dev/full",
                              "$V info > /dev/full", "$V plan --model mlp --data synthetic:200 --json > /dev/full"}) {
    const ChildResult result = shell(command);
    EXPECT_EQ(result.exit_code, 1) << command;
    expect_contains(result.error, "the results could not be written to stdout: No space left on device");
  }
  expect_weights();
}

TEST_F(Output, AClosedStdoutIsAnErrorAndIsNotReplacedByAFile) {
  const ChildResult result = shell("$TRAIN --json >&-");
  EXPECT_EQ(result.exit_code, 1);
  expect_contains(result.error, "the results could not be written to stdout: Bad file descriptor");
  expect_weights();
}

TEST_F(Output, AFullDiskAtStderrLosesNothing) {
  const ChildResult result = shell("$TRAIN --json 2> /dev/full");
  EXPECT_EQ(result.exit_code, 0);
  expect_contains(result.output, "\"step_losses\"");
  expect_weights();
}

TEST_F(Output, AReportCanBeWrittenToAPipe) {
  const ChildResult result = shell("$TRAIN --report /dev/stdout | cat; exit ${PIPESTATUS[0]}");
  EXPECT_EQ(result.exit_code, 0) << result.error;
  expect_contains(result.output, "</html>", "Where the memory went");
  // In a file, the program's output before and after the report is kept.
  const ChildResult to_file = shell("$TRAIN --report /dev/stdout > all.txt");
  EXPECT_EQ(to_file.exit_code, 0) << to_file.error;
  const std::string all = text("all.txt");
  EXPECT_LT(all.find("train loss"), all.find("<!DOCTYPE html>"));
  EXPECT_LT(all.find("</html>"), all.rfind("cpu:0 peaks at"));
  expect_contains(all, "The weights are in");
}

TEST_F(Output, APipeThatNobodyReadsIsRefusedBeforeTheRun) {
  const ChildResult refused =
      shell("mkfifo weights; $V train --model mlp --data synthetic:200 --steps 1000000 --save weights");
  EXPECT_EQ(refused.exit_code, 1);
  expect_contains(refused.error, "--save weights: nobody reads this pipe; start its reader first");
  const ChildResult read = shell(  // descriptor 4 waits until cat reads
      "cat weights > copy & exec 4> weights; $V train --model mlp --data synthetic:200 --steps 3 --no-eval --save "
      "weights; "
      "status=$?; exec 4>&-; wait; exit $status");
  EXPECT_EQ(read.exit_code, 0) << read.error;
  EXPECT_GT(fs::file_size(path("copy")), 1000U);
}

TEST_F(Output, AnUnwritableFileLosesNothingElse) {
  const ChildResult result = shell("$TRAIN --report /dev/full --trace /dev/full --memory-history m.json");
  EXPECT_EQ(result.exit_code, 1);
  expect_contains(result.error, "--trace /dev/full: cannot be written (No space left on device)",
                  "--report /dev/full: cannot be written (No space left on device)");
  expect_contains(result.output, "cpu:0 peaks at");
  expect_lacks(result.output, "The report is in");
  EXPECT_GT(fs::file_size(path("m.json")), 100U);
  expect_weights();

  const ChildResult unsaved = shell(
      "$V train --model mlp --data synthetic:200 --threads-per-device 1 --steps 3 --no-eval --save /dev/full --report "
      "r.html");
  EXPECT_EQ(unsaved.exit_code, 1);
  expect_contains(unsaved.error, "--save /dev/full: cannot be written");
  expect_contains(unsaved.output, "cpu:0 peaks at");
  expect_lacks(unsaved.output, "The weights are in");
  expect_contains(text("r.html"), "</html>");
}

/// A limit on file sizes, which the weights do not reach, stands for a disk that becomes full during the run.
TEST_F(Output, AFullDiskForTensorboardLosesNothingElse) {
  const std::string train =
      "$V train --model lenet5 --image-size 12 --data synthetic:8 --batch-size 8 --threads-per-device 1 --epochs 200 "
      "--no-eval "
      "--save w.safetensors --tensorboard logs";
  const ChildResult result = shell("ulimit -f 72; " + train);
  EXPECT_EQ(result.exit_code, 1);
  expect_contains(result.error, "--tensorboard logs: logs/events.out.tfevents.", "cannot be written (File too large)");
  // It is said when it happens, and at the end.
  const size_t said = result.error.find("vitrine: warning: --tensorboard logs: ");
  EXPECT_LT(said, result.error.find("vitrine: --tensorboard logs: ")) << result.error;
  expect_contains(result.error, "Training goes on without it");
  expect_contains(result.output, "epoch 200/200", "cpu:0 peaks at", "The weights are in");
  const ChildResult weights =
      run_vitrine(words("eval --model lenet5 --image-size 12 --data synthetic:8 --weights {}", path("w.safetensors")));
  EXPECT_EQ(weights.exit_code, 0) << weights.error;

  const ChildResult full_before = shell("rm w.safetensors; ulimit -f 0; " + train);
  EXPECT_EQ(full_before.exit_code, 1);
  expect_contains(full_before.error, "--tensorboard logs: logs/events.out.tfevents.");
  EXPECT_EQ(full_before.output.find("epoch 1/"), std::string::npos) << "reported before training\n"
                                                                    << full_before.output;
}

TEST_F(Output, NonFiniteWeightsAreRefused) {
  ASSERT_EQ(shell("$TRAIN").exit_code, 0);
  // The file's last value, of the parameter that comes last by name.
  std::fstream file(path("w.safetensors"), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-static_cast<std::streamoff>(sizeof(float)), std::ios::end);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  file.write(reinterpret_cast<const char*>(&nan), sizeof nan);
  file.close();
  const ChildResult refused = shell("$V eval --model mlp --data synthetic:200 --weights w.safetensors");
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_TRUE(refused.output.empty()) << refused.output;
  expect_contains(refused.error, ".weight is nan at index (", "--allow-non-finite");
  EXPECT_EQ(shell("$V eval --model mlp --data synthetic:200 --weights w.safetensors --allow-non-finite").exit_code, 0);
}

}  // namespace
}  // namespace vitrine::test
