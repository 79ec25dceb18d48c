// SPDX-License-Identifier: Apache-2.0
// `vitrine lesson` as a user calls it.
#include <fstream>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/data/temp_folder.h"
#include "tests/support/expect_contains.h"
#include "tests/support/text.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test {
namespace {

TEST(LessonCommand, ListsTheLessons) {
  const ChildResult listed = run_vitrine({"lesson"});
  EXPECT_EQ(listed.exit_code, 0) << listed.error;
  expect_contains(listed.output, "vitrine lesson 1  Why does GPU 0 fill first?", "vitrine lesson 8  ");
}

TEST(LessonCommand, RunsTheCommandBetweenQuestionAndExercise) {
  const ChildResult lesson = run_vitrine({"lesson", "1"});
  EXPECT_EQ(lesson.exit_code, 0) << lesson.error;
  const size_t begin = lesson.output.find("$ vitrine plan "), end = lesson.output.find("\n", begin);
  ASSERT_NE(begin, std::string::npos) << lesson.output;
  std::vector<std::string> arguments;
  std::string word;
  for (const char c : lesson.output.substr(begin + 10, end - begin - 10) + " ") {
    if (c == ' ') {
      arguments.push_back(word);
      word.clear();
    } else {
      word += c;
    }
  }
  const size_t printed = lesson.output.find(run_vitrine(arguments).output, end);
  ASSERT_NE(printed, std::string::npos) << "the output is that of the command";
  EXPECT_LT(lesson.output.find("half empty"), begin) << "the question comes first";
  EXPECT_NE(lesson.output.find("What to look at", printed), std::string::npos);
  EXPECT_NE(lesson.output.find("Exercise", printed), std::string::npos);
  expect_lacks(lesson.output, "```");
}

TEST(LessonCommand, PrintsTheAnswerOnly) {
  const ChildResult answer = run_vitrine(words("lesson 2 --answer"));
  EXPECT_EQ(answer.exit_code, 0) << answer.error;
  expect_contains(answer.output, "Exercise", "--split 4,6,6");
  expect_lacks(answer.output, "What to look at");
}

TEST(LessonCommand, RunsTheCommandOfTheAnswer) {
  const ChildResult answer = run_vitrine({"lesson", "1", "--answer"}),
                    run = run_vitrine({"lesson", "1", "--answer", "--run"});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  for (const ChildResult& printed : {answer, run}) {
    EXPECT_LT(printed.output.find("$ for mode in criterion ddp"), printed.output.find("criterion: 32 samples"));
    EXPECT_EQ(count_of(printed.output, "criterion: 32 samples"), 1U) << printed.output;
  }
  expect_contains(run.output, "\nddp: 32 samples", "optimizer's state");
  EXPECT_EQ(run_vitrine({"lesson", "1", "--run"}).exit_code, 2) << "without --answer there is nothing else to run";
}

TEST(LessonCommand, KeepsCommandsAndTheirOutputWhole) {
  const ChildResult answer =
      ChildProcess(vitrine_command(words("lesson 4 --answer")), ChildProcess::Streams::pipes, {"COLUMNS=60"}).wait();
  EXPECT_EQ(answer.exit_code, 0) << answer.error;
  expect_contains(answer.output,
                  "    $ vitrine plan --model resnet50 --devices cuda:0 --device-memory 3GiB --batch-size 64 "
                  "--recompute-segments auto --no-eval\n");
}

TEST(LessonCommand, RefusesToStartOpenMpiAsRoot) {
  if (geteuid() != 0) GTEST_SKIP() << "for root only";
  const TempFolder folder;
  const std::string launcher = folder.str() + "/mpirun";
  std::ofstream(launcher) << "#!/bin/sh\ntest \"$1\" = --version && echo 'mpirun (Open MPI) 4.1.4' && exit 0\nexit 1\n";
  ASSERT_EQ(chmod(launcher.c_str(), 0755), 0);
  const ChildResult refused = ChildProcess(vitrine_command({"lesson", "8"}), ChildProcess::Streams::pipes,
                                           {"PATH=" + folder.str() + ":/usr/bin:/bin", "OMPI_ALLOW_RUN_AS_ROOT",
                                            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"})
                                  .wait();
  EXPECT_NE(refused.exit_code, 0);
  expect_contains(refused.error, "lesson 8 starts processes with Open MPI's mpirun, which refuses to run as root");
  expect_lacks(refused.output, "What to look at");
}

TEST(LessonCommand, RefusesOtherNumbers) {
  const ChildResult refused = run_vitrine({"lesson", "11"});
  EXPECT_EQ(refused.exit_code, 2);
  expect_contains(refused.error, "from 1 to 10");
  EXPECT_EQ(run_vitrine(words("lesson --answer")).exit_code, 2);
}

}  // namespace
}  // namespace vitrine::test
