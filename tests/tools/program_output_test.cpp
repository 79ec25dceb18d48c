// SPDX-License-Identifier: Apache-2.0
// Warnings, progress, and the text that the program prints to terminals and files.
#include <csignal>
#include <filesystem>
#include <thread>

#include <gtest/gtest.h>

#include "tests/data/temp_folder.h"
#include "tests/support/expect_contains.h"
#include "tests/support/paths.h"
#include "tests/support/text.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test {
namespace {

const Arguments kQuick = words("--model mlp --data synthetic:200 --threads-per-device 1 --steps 12 --no-eval");

/// The part of `text` from `title` on.
std::string from(const std::string& text, const std::string& title) {
  const size_t begin = text.find(title);
  EXPECT_NE(begin, std::string::npos) << title << "\n" << text;
  return begin == std::string::npos ? std::string() : text.substr(begin);
}

TEST(ProgramWarnings, ReportABatchLargerThanTheTrainingSet) {
  for (const char* command : {"train", "plan", "compare"}) {
    Arguments arguments = {command,        "--model", "mlp",     "--data", "synthetic:100",
                           "--batch-size", "4000",    "--steps", "2"};
    if (command != std::string("compare")) arguments.emplace_back("--no-eval");
    const ChildResult result = run_vitrine(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.error;
    EXPECT_EQ(count_of(result.error, "warning: --batch-size 4000: the training set has 100 images"), 1U)
        << result.error;
  }
  const ChildResult enough = run_vitrine(words("plan --model mlp --data synthetic:100 --batch-size 100"));
  EXPECT_EQ(enough.error, "");
}

/// IDX files of 8 x 8 images, with these labels for training; all pixels are 0, or they vary.
void write_idx(const std::filesystem::path& folder, const Bytes& labels, bool constant = false) {
  const auto size = static_cast<uint8_t>(labels.size());
  Bytes images{0, 0, 8, 3, 0, 0, 0, size, 0, 0, 0, 8, 0, 0, 0, 8}, label_file{0, 0, 8, 1, 0, 0, 0, size};
  for (size_t i = 0; i < labels.size() * 64; ++i) images.push_back(constant ? 0 : static_cast<uint8_t>(i * 7));
  label_file.insert(label_file.end(), labels.begin(), labels.end());
  for (const std::string part : {"train", "t10k"}) {
    write_file(folder / (part + "-images-idx3-ubyte"), images);
    write_file(folder / (part + "-labels-idx1-ubyte"), label_file);
  }
}

TEST(ProgramWarnings, ReportClassesWithoutSamples) {
  Bytes letters, sorted, mixed;
  for (uint8_t i = 0; i < 52; ++i) {
    letters.push_back(static_cast<uint8_t>(1 + i % 26));
    sorted.push_back(i / 26);
    mixed.push_back(i % 2);
  }
  struct Case {
    Bytes labels;
    const char* flags;
    const char* warning;  // empty: none
  };
  for (const Case& c : {
           Case{letters, "", "idx train: 1 of 27 classes has no sample: 0; if the labels start at 1, subtract 1"},
           {Bytes(52, 255), "",
            "idx train: 255 of 256 classes have no sample: 0, 1, 2, 3, 4, 5, 6, 7 and 247 more; if the labels start"},
           {sorted, "--limit-samples 20",
            "--limit-samples 20: the first images of idx train are sorted by class and have 1 of 2 classes; shuffle "},
           {sorted, "--limit-samples 27", ""},
           {mixed, "--limit-samples 20", ""},
           {mixed, "--limit-samples 1", ""},
       }) {
    const TempFolder folder;
    write_idx(folder.path(), c.labels);
    const ChildResult result =
        run_vitrine(with(words("plan --model mlp --data {} --batch-size 1", "idx:" + folder.str()), words(c.flags)));
    EXPECT_EQ(result.exit_code, 0) << result.error;
    if (*c.warning == '\0') {
      EXPECT_EQ(result.error, "") << c.flags;
    } else {
      EXPECT_EQ(count_of(result.error, std::string("vitrine: warning: ") + c.warning), 1U) << result.error;
    }
  }
}

TEST(ProgramData, ConstantImagesTrainWithAnotherNormalization) {
  const TempFolder folder;
  write_idx(folder.path(), Bytes{0, 1, 0, 1}, true);
  const Arguments train = words("train --model mlp --batch-size 2 --steps 1 --data {}", "idx:" + folder.str());
  const ChildResult refused = run_vitrine(train);
  EXPECT_EQ(refused.exit_code, 1);
  expect_contains(refused.error, "check the images, or set the normalization with --normalize\n");
  for (const char* normalize : {"none", "0.1/0.3"}) {
    const ChildResult trained = run_vitrine(with(train, words("--normalize {}", normalize)));
    EXPECT_EQ(trained.exit_code, 0) << trained.error;
  }
}

TEST(ProgramData, AValSplitIsPartOfTheRun) {
  const TempFolder folder;
  const auto run = [&](const char* split, const char* more) {
    return run_vitrine(with(words("train --model mlp --image-size 8 --data synthetic:50 --batch-size 10 --val-split {} "
                                  "--checkpoint-dir {}",
                                  split, folder.str() + "/run"),
                            words(more)));
  };
  const ChildResult first = run("0.2", "--epochs 1");
  EXPECT_EQ(first.exit_code, 0) << first.error;
  expect_contains(first.output, "synthetic train: 40 images 32x32x3, test set: 10");
  expect_contains(first.output, ", 0.2 of the images held out");
  EXPECT_EQ(run("0.2", "--epochs 2 --resume auto").exit_code, 0);
  const ChildResult other = run("0.1", "--epochs 2 --resume auto");
  EXPECT_EQ(other.exit_code, 2);
  expect_contains(other.error, "--val-split is 0.1, in the checkpoint 0.2");
}

TEST(ProgramWarnings, ReportADeviceWithoutSamples) {
  for (const char* command : {"train", "plan", "compare"}) {
    const ChildResult result = run_vitrine(
        with({command}, words("--model mlp --data synthetic:100 --steps 2 --devices cpu:0-1 --batch-size 1")));
    EXPECT_EQ(count_of(result.error, "warning: a device gets no samples: the batch of 1 is split as 1+0"), 1U)
        << command << result.error;
  }
  const ChildResult given = run_vitrine(words("plan --model mlp --devices cpu:0-1 --batch-size 64 --split gpu0=64"));
  expect_contains(given.error, "warning: a device gets no samples: the batch of 64 is split as 64+0");
}

TEST(ProgramWarnings, ReportDevicesThatShareCoresOnce) {
  const std::string all_cores = std::to_string(std::thread::hardware_concurrency());
  const ChildResult result = run_vitrine(with(with({"compare"}, words("--model mlp --data synthetic:200 --steps 2")),
                                              words("--devices cpu:0-1 --threads-per-device {}", all_cores)));
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(count_of(result.error, "slow each other down"), 1U) << result.error;
}

TEST(ProgramProgress, IsLoggedEveryNthStepInAFile) {
  const ChildResult result = run_vitrine(with(with({"train"}, kQuick), words("--batch-size 32 --log-every 5")));
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(count_of(result.error, " step "), 2U) << result.error;  // seven batches an epoch
  expect_contains(result.error, "step 5/7  loss ", "step 5/5  loss ");
  expect_lacks(result.error, "\033");
}

TEST(ProgramProgress, AnInterruptedEpochIsNotShownAsComplete) {
  ChildProcess child(vitrine_command(words(
      "train --model mlp --data synthetic:5000 --batch-size 1 --threads-per-device 1 --epochs 3 --log-every 10")));
  ASSERT_TRUE(child.wait_for("step 20/"));
  child.send_signal(SIGINT);
  const ChildResult result = child.wait();
  EXPECT_EQ(result.exit_code, 130) << result.error;
  const std::string line = from(result.output, "epoch 1/3");
  expect_contains(line.substr(0, line.find('\n')), "(interrupted after ", " of 5000 steps)");
}

TEST(ProgramText, HasNoEscapesOnDumbTerminalsAndUnderLaunchers) {
  const Arguments command = vitrine_command(with(with({"train"}, kQuick), words("--devices cpu:0")));
  const auto output = [](const Arguments& arguments, const Arguments& environment) {
    return ChildProcess(arguments, ChildProcess::Streams::terminal, environment).wait().output;
  };
  expect_contains(output(command, {"TERM=xterm"}), "\033");
  expect_lacks(output(command, {"TERM=dumb"}), "\033");
  expect_lacks(output(vitrine_command({"info"}), {"TERM=xterm", "OMPI_COMM_WORLD_RANK=0"}), "\033");
}

TEST(ProgramText, FitsTheWidthWithManyDevices) {
  const Arguments devices = words("--devices cpu:0-15 --device-memory 64MiB");
  for (const std::string width : {"60", "100"}) {
    const auto output = [&](const Arguments& arguments) {
      const ChildResult result =
          ChildProcess(vitrine_command(arguments), ChildProcess::Streams::pipes, {"COLUMNS=" + width}).wait();
      EXPECT_EQ(result.exit_code, 0) << result.error;
      return result.output;
    };
    const std::string trained = output(with(with({"train", "--details"}, kQuick), devices));
    expect_contains(trained, "cpu:0 to cpu:15", "Where the time went");
    EXPECT_LE(longest_line(trained), std::stoul(width)) << trained;
    const std::string planned = output(with(with(words("plan --mode dp"), words("--model mlp")), devices));
    expect_contains(planned, "cpu:1 to cpu:15", "What each device needs");
    EXPECT_LE(longest_line(planned), std::stoul(width)) << planned;
    const std::string collectives = output(words("collectives all_reduce --devices cpu:0-15 -b 8 -e 64 -n 2 -w 1"));
    expect_contains(collectives, "\nall_reduce");
    EXPECT_LE(longest_line(collectives), std::stoul(width)) << collectives;
    EXPECT_LE(longest_line(output({"lesson"})), std::stoul(width));
  }
}

TEST(ProgramText, TablesAreWholeInPipes) {
  const auto output = [](const Arguments& arguments) {
    return ChildProcess(vitrine_command(arguments), ChildProcess::Streams::pipes, {"COLUMNS"}).wait().output;
  };
  const std::string collectives = output(words("collectives all_reduce --devices cpu:0-1 -b 8 -e 8 -n 2 -w 1"));
  const std::string header = from(collectives, "size B").substr(0, from(collectives, "size B").find('\n'));
  expect_contains(header, "median");
  EXPECT_TRUE(header.ends_with("in place: time us  busbw GB/s  #wrong")) << header;
  // So are values to be copied.
  const std::string frontier = output(words("plan --model resnet50 --image-size 64 --frontier"));
  const std::string rows = from(frontier, "fullest device"),
                    last = rows.substr(0, rows.find("\nEach row is the fastest"));
  EXPECT_TRUE(rows.substr(0, rows.find('\n')).ends_with("  --recompute")) << frontier;
  EXPECT_GT(last.size() - last.rfind('\n'), 120U) << frontier;
  EXPECT_EQ(last.find("\n\n"), std::string::npos) << frontier;
}

TEST(ProgramText, CompletionOffersFlagsAndTheirWords) {
  const auto offered = [](const std::string& line) {
    const std::string script = "source <(\"$0\" completion bash); COMP_WORDS=(" + line +
                               "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _vitrine; echo \" ${COMPREPLY[*]} \"";
    const ChildResult result = ChildProcess({"bash", "-c", script, vitrine_command({}).front()}).wait();
    EXPECT_EQ(result.error, "");
    return result.output;
  };
  EXPECT_EQ(offered("vitrine comp"), " completion compare \n");
  EXPECT_EQ(offered("vitrine help co"), " completion compare collectives \n");
  EXPECT_EQ(offered("vitrine train --mode c"), " criterion \n");
  EXPECT_EQ(offered("vitrine train --mode = d"), " ddp dp \n");
  EXPECT_EQ(offered("vitrine train --log"), " --log --log-every \n");
  EXPECT_EQ(offered("vitrine train --save ''"), "  \n") << "bash offers files";
  EXPECT_EQ(offered("vitrine collectives all_"), " all_reduce all_gather \n");
}

TEST(ProgramText, TheManualPageHasNoWarnings) {
  if (std::system("command -v groff >/dev/null") != 0) GTEST_SKIP() << "groff is missing";
  const ChildResult page =
      ChildProcess({"sh", "-c", "\"$0\" man | groff -man -ww -Tascii -P-cbu", vitrine_command({}).front()}).wait();
  EXPECT_EQ(page.error, "");
  for (const char* part : {"NAME", "vitrine - ", "--gpu0-bsz N", "EXIT STATUS"}) expect_contains(page.output, part);
}

TEST(ProgramText, OneStepSaysWhyNothingIsTimed) {
  const auto output = [](const char* steps) {
    return run_vitrine(words("train --model mlp --image-size 8 --steps {} --no-eval", steps)).output;
  };
  expect_contains(output("1"), "the first step is not timed; --steps 2 or more");
  expect_lacks(output("2"), "is not timed");
}

TEST(ProgramText, AnEpochShowsItsTimeAndALoweredRateAndTheEndSaysWhatWasWritten) {
  const TempFolder folder;
  const auto in_folder = [&](const char* name) { return folder.str() + "/" + name; };
  const ChildResult result = run_vitrine(
      words("train --model mlp --image-size 8 --data synthetic:64 --epochs 2 --no-eval --lr-schedule step "
            "--lr-step-size 1 --save {} --trace {} --memory-history {} --log {} --tensorboard {} --report {}",
            in_folder("w.safetensors"), in_folder("t.json"), in_folder("m.json"), in_folder("l.csv"), in_folder("tb"),
            in_folder("r.html")));
  EXPECT_EQ(result.exit_code, 0) << result.error;
  const std::string epochs = from(result.output, "epoch 1/2");
  const std::string first = epochs.substr(0, epochs.find('\n'));
  expect_contains(first, " samples/s in 0.");
  EXPECT_TRUE(first.ends_with(" s  lr 0.001, lowered to 0.0001")) << first;
  const std::string second = from(epochs, "epoch 2/2");
  EXPECT_TRUE(second.substr(0, second.find('\n')).ends_with(" s  lr 0.0001")) << second;
  for (const std::string& part :
       {"\n\nThe weights are in " + in_folder("w.safetensors"), "The trace is in " + in_folder("t.json"),
        "The memory history is in " + in_folder("m.json"), "The log is in " + in_folder("l.csv"),
        "TensorBoard reads " + in_folder("tb"), "The report is in " + in_folder("r.html")}) {
    expect_contains(result.output, part + "\n");
  }
}

TEST(ProgramRemedies, NameASchemeThatFits) {
  const Arguments run = words("plan --model wide-head --devices cuda:0-3 --batch-size 64 --device-memory 1536MiB");
  const ChildResult gathered = run_vitrine(with(run, words("--mode dp")));
  EXPECT_EQ(gathered.exit_code, 1);
  expect_contains(gathered.output, "--mode criterion");
  EXPECT_EQ(run_vitrine(with(run, words("--mode dp --mode criterion"))).exit_code, 0) << "the remedy helps";
}

TEST(ProgramOutput, OneImageIsSingular) {
  const ChildResult result =
      run_vitrine(words("train --model mlp --image-size 8 --data synthetic:1 --steps 1 --no-eval"));
  EXPECT_EQ(result.exit_code, 0) << result.error;
  expect_contains(result.error, "the training set has 1 image, so every step has 1 sample, and");
  expect_contains(result.output, "synthetic train: 1 image 32x32x3");
}

TEST(ProgramPlan, NamesTheLimitOfMemoryThatWasNotGiven) {
  const char* const line = "ulimit -v 1500000; exec \"$0\" plan --model alexnet --batch-size 8 --devices cpu:0";
  const ChildResult result = ChildProcess({"sh", "-c", line, test::program_path("vitrine")}).wait();
  expect_contains(result.output, "Use a machine with more memory, raise RLIMIT_AS (ulimit -v), or choose a smaller");
}

TEST(ProgramPlan, RefusesAnAddressSpaceInWhichLibrariesCrash) {
  const char* const line = "ulimit -v 200000; exec \"$0\" plan --model small-cnn --devices cpu:0-1 --batch-size max";
  const ChildResult result = ChildProcess({"sh", "-c", line, test::program_path("vitrine")}).wait();
  EXPECT_EQ(result.exit_code, 1);
  expect_contains(result.error, "of address space, too little for libraries and threads; raise it");
}

TEST(ProgramInfo, AllocatesNoPools) {
  // A pool reserves addresses for all of the machine's memory.
  const ChildResult result =
      ChildProcess({"sh", "-c", "ulimit -v 1000000; exec \"$0\" info", test::program_path("vitrine")}).wait();
  EXPECT_EQ(result.exit_code, 0) << result.error;
}

}  // namespace
}  // namespace vitrine::test
