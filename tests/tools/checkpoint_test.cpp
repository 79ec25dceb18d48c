// SPDX-License-Identifier: Apache-2.0
// vitrine train --checkpoint-dir, --resume: saving, continuing, refusing.
#include <chrono>
#include <csignal>
#include <sstream>
#include <thread>

#include <nlohmann/json.hpp>

#include "tests/support/expect_contains.h"
#include "tests/support/paths.h"
#include "tests/tools/checkpoint_kills.h"
#include "tests/tools/checkpoint_program.h"

namespace vitrine::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Weights and optimizer after the last step of short_run().
constexpr const char* kLast = "/step-00000030";

TEST_F(Checkpoints, ARunContinuesWithTheSameBitsFromAnyStep) {
  const Arguments schedule =
      words("--lr-schedule plateau --lr-patience 0 --lr-threshold 1 --warmup-steps 4 --devices cpu:0-1");
  const Json whole = every_step("whole", schedule + words("--save {}", path("whole.safetensors")));
  EXPECT_EQ(names(path("whole")).size(), 30U);
  for (const int64_t from : {1, 9, 10, 14, 20, 29, 30}) {  // 10 and 20 end epochs
    const std::string name = "from" + std::to_string(from);
    take("whole", from, name);
    const Json rest = every_step(name, schedule + words("--resume auto --save {}", path(name + ".safetensors")));
    ASSERT_FALSE(rest.is_null());
    for (int64_t number = from; number <= 30; ++number)
      expect_same_tensors(path(name) + step(number), path("whole") + step(number));
    expect_same_file(path(name + ".safetensors"), path("whole.safetensors"));
    // The record continues where the checkpoint was, without repeating a step.
    EXPECT_EQ(rest["first_step"], from);
    EXPECT_EQ(rest["resumed_from"], path(name) + step(from));
    ASSERT_EQ(rest["step_losses"].size(), static_cast<size_t>(30 - from));
    for (size_t i = 0; i < rest["step_losses"].size(); ++i)
      EXPECT_EQ(rest["step_losses"][i], whole["step_losses"][i + static_cast<size_t>(from)]);
    // The epoch in which it begins has the sums of the whole epoch.
    const size_t first_epoch = static_cast<size_t>(from / 10);
    ASSERT_EQ(rest["epochs"].size(), 3 - first_epoch);
    for (size_t e = first_epoch; e < 3; ++e) {
      for (const char* figure :
           {"epoch", "train_loss", "test_loss", "test_accuracy", "samples", "steps", "interrupted"}) {
        EXPECT_EQ(rest["epochs"][e - first_epoch][figure], whole["epochs"][e][figure]) << figure << " of epoch " << e;
      }
    }
  }
}

TEST_F(Checkpoints, ScalesAndStepsWithinAnEpochContinueToo) {
  const Arguments base = words(
      "train --model small-cnn --image-size 8 --data synthetic:100 --threads-per-device 1 --batch-size 20 --steps 12 "
      "--precision fp16 --loss-scale-growth-interval 2 --optimizer sgd --momentum 0.9 --lr-schedule one-cycle "
      "--clip-norm 1 --accumulate 2");
  const Json whole = json(base + into("whole") + words("--checkpoint-every 1"));
  for (const int64_t from : {3, 5, 11}) {
    const std::string name = "from" + std::to_string(from);
    take("whole", from, name);
    const Json rest = json(base + into(name) + words("--checkpoint-every 5 --resume {}", path(name) + step(from)));
    ASSERT_FALSE(rest.is_null());
    expect_same_tensors(path(name) + step(12), path("whole") + step(12));
    EXPECT_EQ(
        rest["epochs"], whole["epochs"].is_null() ? Json() : [&] {
          Json epochs = whole["epochs"];
          epochs[0]["seconds"] = rest["epochs"][0]["seconds"];
          epochs[0]["samples_per_second"] = rest["epochs"][0]["samples_per_second"];
          return epochs;
        }());
    EXPECT_EQ(rest["loss_scale"]["final"], whole["loss_scale"]["final"]);
    if (from == 3) {
      EXPECT_EQ(names(path(name)),
                (std::vector<std::string>{"step-00000003", "step-00000005", "step-00000010", "step-00000012"}));
    }
  }
}

TEST_F(Checkpoints, RunningStatisticsAveragesAndAugmentationContinueToo) {
  const Arguments base = words(
      "train --model resnet18-cifar --image-size 8 --data synthetic:24 --threads-per-device 1 --batch-size 8 --epochs "
      "2 --devices cpu:0-1 --ema 0.9 --augment flip,crop:2 --label-smoothing 0.1 --no-decay norms,biases");
  const Json whole = json(base + into("whole") + words("--checkpoint-every 1 --save {}", path("whole.safetensors")));
  ASSERT_FALSE(whole.is_null());
  EXPECT_EQ(whole["checkpoints"]["staging_bytes"], whole["checkpoints"]["planned_staging_bytes"]);
  take("whole", 4, "rest");
  const Json rest = json(base + into("rest") + words("--resume auto --save {}", path("rest.safetensors")));
  ASSERT_FALSE(rest.is_null());
  expect_same_tensors(path("rest") + step(6), path("whole") + step(6));
  for (const char* file : {".safetensors", ".ema.safetensors"})
    expect_same_file(path("rest") + file, path("whole") + file);
  EXPECT_EQ(rest["epochs"].back()["test_accuracy"], whole["epochs"].back()["test_accuracy"]);
}

TEST_F(Checkpoints, LogsContinueWithoutRepeatedSteps) {
  for (const std::string log : {"log.jsonl", "log.csv"}) {
    ASSERT_FALSE(every_step(log + "-whole", words("--log {}", path(log))).is_null());
    const auto lines_without_times = [&] {
      std::vector<std::string> lines;
      std::istringstream text(content(path(log)));
      for (std::string line; std::getline(text, line);) {
        if (log == "log.csv") {
          lines.push_back(line.substr(0, line.find(',', line.find(',', line.find(',') + 1) + 1)));  // kind, step, epoch
        } else if (const Json row = Json::parse(line); row["kind"] != "run") {
          lines.push_back(row["kind"].get<std::string>() + row["step"].dump() + row["epoch"].dump() +
                          row["loss"].dump());
        }
      }
      return lines;
    };
    const std::vector<std::string> whole = lines_without_times();
    EXPECT_EQ(whole.size(), log == "log.csv" ? 34U : 33U);  // 30 steps, 3 epochs, and the header of the CSV file
    // As if the run had been killed after step 17, whose checkpoint is lost, and while it wrote a row.
    std::ofstream(path(log), std::ios::app) << (log == "log.csv" ? "step,3" : "{\"kind\": \"st");
    take(log + "-whole", 14, log + "-rest");
    ASSERT_FALSE(every_step(log + "-rest", words("--resume auto --log {}", path(log))).is_null());
    EXPECT_EQ(lines_without_times(), whole);
  }
  const ChildResult other = run(short_run() + into("log.csv-rest") +
                                words("--epochs 4 --resume auto --devices cpu:0-1 --log {}", path("log.csv")));
  EXPECT_EQ(other.exit_code, 1);
  expect_contains(other.error, "its columns differ from this run's");
}

TEST_F(Checkpoints, ALogOfAnotherRunIsNotContinued) {
  for (const std::string log : {"a.jsonl", "a.csv"}) {
    ASSERT_FALSE(json(short_run() + into(log + "-a") + words("--log {}", path(log))).is_null());
    ASSERT_FALSE(json(short_run() + into(log + "-b") + words("--epochs 1")).is_null());
    const std::string before = content(path(log));
    const ChildResult result = run(short_run() + into(log + "-b") + words("--resume auto --log {}", path(log)));
    EXPECT_EQ(result.exit_code, 1);
    expect_contains(result.error, "--log " + path(log) + ": its rows belong to another run");
    EXPECT_EQ(content(path(log)), before);
    EXPECT_EQ(names(path(log + "-b")), std::vector<std::string>{"step-00000010"});  // nothing was trained
  }
}

TEST_F(Checkpoints, AKilledRunHasTheRowsOfItsCheckpoints) {
  const std::string log = path("log.jsonl");
  ChildProcess child(
      vitrine_command(short_run() + into("run") + words("--epochs 1000000 --checkpoint-every 1 --log {}", log)));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (list_checkpoints(path("run")).size() < 3 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  child.send_signal(SIGKILL);
  child.wait();
  ASSERT_FALSE(list_checkpoints(path("run")).empty());
  int64_t rows = 0;
  std::istringstream text(content(log));
  for (std::string line; std::getline(text, line) && !text.eof();) rows += Json::parse(line)["kind"] == "step" ? 1 : 0;
  EXPECT_GE(rows, list_checkpoints(path("run")).back().step);
}

TEST_F(Checkpoints, ACompleteRunIsReported) {
  ASSERT_FALSE(json(short_run() + into("run")).is_null());
  const auto completed = [&](const Arguments& more, const std::string& message) {
    const ChildResult result = run(short_run() + into("run") + words("--resume auto") + more);
    EXPECT_EQ(result.exit_code, 0) << result.error;
    expect_contains(result.error, message);
  };
  completed({}, "the run is complete: 3 epochs are done, and --epochs is 3; nothing is left to train");
  completed(words("--epochs 2"), "the run is complete: 3 epochs are done, and --epochs is 2; nothing is left to train");
  Arguments steps = short_run();
  steps.resize(steps.size() - 2);  // without --epochs
  const ChildResult result = run(steps + into("run") + words("--steps 12 --resume auto"));
  EXPECT_EQ(result.exit_code, 0) << result.error;
  expect_contains(result.error, "the run is complete: 30 steps are done, and --steps is 12; nothing is left to train");
  EXPECT_EQ(names(path("run")).back(), "step-00000030");
}

TEST_F(Checkpoints, EpochsAreTheDefaultAndTheRestIsRemovedOnRequest) {
  ASSERT_FALSE(json(short_run() + into("all")).is_null());
  EXPECT_EQ(names(path("all")), (std::vector<std::string>{"step-00000010", "step-00000020", "step-00000030"}));
  const Json two = json(short_run() + into("two") + words("--checkpoint-every 4 --keep-last 2"));
  EXPECT_EQ(names(path("two")), (std::vector<std::string>{"step-00000028", "step-00000030"}));
  EXPECT_EQ(two["checkpoints"]["saved"], 8);
  EXPECT_EQ(two["checkpoints"]["newest"], "step-00000030");
  EXPECT_EQ(two["checkpoints"]["failed"], 0);
  EXPECT_GT(two["checkpoints"]["bytes"], 3 * 4 * 192 * 256);
}

TEST_F(Checkpoints, TheBestEpochIsKept) {
  // The learning rate destroys what the first epoch learned.
  const Json run = json(short_run() + into("best") +
                        words("--keep-best --keep-last 1 --checkpoint-every 7 --optimizer sgd --lr 0.05 --epochs 4"));
  ASSERT_FALSE(run.is_null());
  size_t best = 0;
  for (size_t e = 1; e < run["epochs"].size(); ++e) {
    if (run["epochs"][e]["test_accuracy"] > run["epochs"][best]["test_accuracy"]) best = e;
  }
  const std::string name = checkpoint_name(static_cast<int64_t>(best + 1) * 10);
  EXPECT_EQ(fs::read_symlink(path("best/best")), name);
  std::vector<std::string> expected = {"best", name};
  if (name != "step-00000040") expected.push_back("step-00000040");
  EXPECT_EQ(names(path("best")), expected);
  const ChildResult eval = run_vitrine(words(
      "eval --model mlp --image-size 8 --data synthetic:195 --threads-per-device 1 --batch-size 20 --weights {} --json",
      path("best/best")));
  ASSERT_EQ(eval.exit_code, 0) << eval.error;
  EXPECT_EQ(Json::parse(eval.output)["test_accuracy"], run["epochs"][best]["test_accuracy"]);
  // A run that continues knows the best one of before.
  const Json more = json(short_run() + into("best") +
                         words("--keep-best --keep-last 1 --optimizer sgd --lr 0 --epochs 5 --resume auto"));
  EXPECT_EQ(fs::read_symlink(path("best/best")), name);
  EXPECT_TRUE(fs::exists(path("best/" + name)));
}

TEST_F(Checkpoints, EvaluatesTheNewestOfAFolder) {
  const Json run = json(short_run() + into("runs"));
  for (const auto& [weights, epoch] : std::vector<std::pair<std::string, size_t>>{
           {"runs", 2}, {"runs/step-00000020", 1}, {"runs/step-00000010/", 0}}) {
    const Json eval = json(words(
        "eval --model mlp --image-size 8 --data synthetic:195 --threads-per-device 1 --batch-size 20 --weights {}",
        path(weights)));
    EXPECT_EQ(eval["test_loss"], run["epochs"][epoch]["test_loss"]) << weights;
  }
  damage(path("runs/step-00000030/model.safetensors"));
  const Json eval = json(words("eval --model mlp --image-size 8 --data synthetic:195 --weights {}", path("runs")));
  EXPECT_EQ(eval["test_accuracy"], run["epochs"][1]["test_accuracy"]);
  const ChildResult broken =
      run_vitrine(words("eval --model mlp --image-size 8 --data synthetic:195 --weights {}", path("runs" + step(30))));
  EXPECT_EQ(broken.exit_code, 1);
  expect_contains(broken.error, "--weights " + path("runs" + step(30)) + "/model.safetensors", "the file is damaged");
  fs::create_directory(path("none"));
  const ChildResult none =
      run_vitrine(words("eval --model mlp --image-size 8 --data synthetic:195 --weights {}", path("none")));
  expect_contains(none.error, "vitrine: --weights " + path("none") + ": expected a checkpoint, model.safetensors or ");
}

TEST_F(Checkpoints, SigtermSavesAndEndsWith143) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGXCPU}) {
    const std::string name = "run" + std::to_string(signal);
    ChildProcess child(vitrine_command(short_run() + into(name) + words("--epochs 1000000 --log-every 1")));
    ASSERT_TRUE(child.wait_for("epoch 2/"));
    child.send_signal(signal);
    if (signal != SIGINT && signal != SIGTERM) child.send_signal(signal);  // which does not end it at once
    const ChildResult result = child.wait();
    EXPECT_EQ(result.exit_code, signal == SIGINT ? 130 : 143) << result.error;
    const NamedCheckpoint newest = list_checkpoints(path(name)).back();
    EXPECT_NO_THROW(read_checkpoint(newest.path));
    // The run that continues for a few steps equals one that was never interrupted.
    const std::string steps = std::to_string(newest.step + 5);
    const Arguments until = words("--steps {} --no-eval", steps);
    Arguments base = short_run();
    base.resize(base.size() - 2);  // without --epochs
    const Json rest = json(base + into(name) + until + words("--resume auto"));
    const Json whole = json(base + into(name + "whole") + until);
    const std::string last = step(newest.step + 5);
    expect_same_tensors(path(name) + last, path(name + "whole") + last);
  }
}

TEST_F(CheckpointKills, TwentyCostNothing) { survive(20, 7); }

TEST_F(Checkpoints, ARunThatContinuesButSavesNothingSaysSo) {
  every_step("whole");
  take("whole", 9, "some");
  const ChildResult result = run(short_run() + words("--resume {}", path("some") + step(9)));
  EXPECT_EQ(result.exit_code, 0) << result.error;
  expect_contains(result.error, "this run saves no checkpoints; to go on saving, add --checkpoint-dir DIR");
}

TEST_F(Checkpoints, ADamagedOneIsSkippedForTheNextOlder) {
  every_step("whole");
  for (const int64_t number : {8, 9, 10}) take("whole", number, "some");
  damage(path("some") + step(10) + "/optimizer.safetensors");
  fs::remove(path("some") + step(9) + "/state.json");
  const ChildResult result = run(short_run() + into("some") + words("--resume {}", path("some")));
  EXPECT_EQ(result.exit_code, 0) << result.error;
  expect_contains(result.error, "warning: " + path("some") + step(10) + "/optimizer.safetensors: its checksum",
                  "warning: " + path("some") + step(9) + "/state.json",
                  "continuing from " + path("some") + step(8) + ": step 8, epoch 1, batch 8 of 10");
  expect_same_tensors(path("some") + kLast, path("whole") + kLast);
  EXPECT_NO_THROW(read_checkpoint(path("some") + step(10)));  // replaced

  for (const int64_t number : {8, 9}) take("whole", number, "none");
  for (const int64_t number : {8, 9}) damage(path("none") + step(number) + "/state.json");
  for (const std::string& resume : {path("none"), std::string("auto")}) {
    const ChildResult none = run(short_run() + into("none") + words("--resume {}", resume));
    EXPECT_EQ(none.exit_code, 1);
    expect_contains(none.error, "all of its checkpoints are damaged");
  }
}

TEST_F(Checkpoints, BadPlacesAreNamed) {
  std::ofstream(path("file")) << "x";
  const auto refused = [&](const Arguments& more, int status, const std::string& message) {
    const ChildResult result = run(short_run() + more);
    EXPECT_EQ(result.exit_code, status) << result.error;
    expect_contains(result.error, message);
  };
  refused(into("file"), 1, "--checkpoint-dir " + path("file") + ": no checkpoints can be written there (it is a file)");
  refused(words("--checkpoint-dir /proc/nowhere"), 1, "--checkpoint-dir /proc/nowhere");
  refused(words("--resume {}", path("absent")), 1, "--resume " + path("absent") + ": there is no such folder");
  refused(words("--resume {}", path("file")), 1, "it is not a folder");
  fs::create_directory(path("empty"));
  refused(words("--resume {}", path("empty")), 1, "there is no checkpoint in it");
  // auto begins where nothing has been saved yet.
  const ChildResult first = run(short_run() + into("empty") + words("--resume auto"));
  EXPECT_EQ(first.exit_code, 0) << first.error;
  refused(into("empty"), 1, "it has the checkpoints of another run, up to step-00000030");
  refused(into("empty" + step(10)) + words("--resume auto"), 1,
          "--checkpoint-dir " + path("empty") + step(10) +
              ": it is a checkpoint itself, not a folder of checkpoints; name the folder that contains it");
  refused(into("empty") + words("--resume {}", path("empty") + step(10)), 1, "has a newer checkpoint, step-00000030");
  refused(into("empty") + words("--checkpoint-every often"), 2, "--checkpoint-every often: expected epoch");
  refused(words("--keep-last 2"), 2, "--keep-last needs a place");
  refused(words("--resume auto"), 2, "--resume auto needs a place");
  refused(into("empty") + words("--keep-best --no-eval"), 2, "--keep-best compares epochs");
}

TEST_F(Checkpoints, OnlyTheLearningRateMayChangeResults) {
  ASSERT_FALSE(json(short_run() + into("run")).is_null());
  const auto continued = [&](const Arguments& more) {
    return run(short_run() + words("--resume {}", path("run") + step(20)) + more);
  };
  const ChildResult refused = continued(words("--optimizer sgd --batch-size 30 --lr 0.01 --devices cpu:0-1"));
  EXPECT_EQ(refused.exit_code, 2);
  expect_contains(refused.error, "--batch-size is 30, in the checkpoint 20", "--optimizer is sgd, in the checkpoint",
                  "start a new run from its weights with --init-weights " + path("run") + step(20));
  // The remedy works.
  const ChildResult fresh = run(short_run() + words("--optimizer sgd --batch-size 30 --init-weights {}", path("run")));
  EXPECT_EQ(fresh.exit_code, 0) << fresh.error;
  const ChildResult other_model = continued(words("--model lenet5 --image-size 16"));
  EXPECT_EQ(other_model.exit_code, 2);
  expect_contains(other_model.error,
                  "--model is lenet5, 10 classes, in the checkpoint mlp, 10 classes (the parameters");
  const ChildResult other_size = continued(words("--image-size 16"));
  EXPECT_EQ(other_size.exit_code, 2);
  expect_contains(other_size.error, "--image-size is 16, in the checkpoint 8 (the parameters have other shapes)");

  const ChildResult allowed = continued(words("--lr 0.01 --devices cpu:0-1 --json"));
  ASSERT_EQ(allowed.exit_code, 0) << allowed.error;
  expect_contains(allowed.error, "--lr is 0.01, in the checkpoint 0.001: in force from here on",
                  "--devices is 2 cpu, in the checkpoint 1 cpu: results differ by rounding");
  // A longer run makes the same steps at first.
  const ChildResult longer = continued(words("--epochs 4 --json"));
  ASSERT_EQ(longer.exit_code, 0) << longer.error;
  EXPECT_EQ(Json::parse(longer.output)["step_losses"].size(), 20U);
}

TEST_F(Checkpoints, OtherDevicesGiveTheSameUpToRounding) {
  every_step("run", words("--devices cpu:0-1"));
  for (const Arguments& devices : {words("--devices cpu:0"), words("--devices cpu:0-2 --mode dp")}) {
    const ChildResult result = run(short_run() + devices + words("--resume {} --json", path("run") + step(14)));
    ASSERT_EQ(result.exit_code, 0) << result.error;
    const Json rest = Json::parse(result.output);
    const ChildResult same = run(short_run() + words("--devices cpu:0-1 --resume {} --json", path("run") + step(14)));
    const Json reference = Json::parse(same.output);
    for (size_t i = 0; i < 16; ++i) {
      const double expected = reference["step_losses"][i];
      EXPECT_NEAR(rest["step_losses"][i].get<double>(), expected, 1e-5 * std::max(1.0, expected)) << i;
    }
  }
}

TEST_F(Checkpoints, AFailedSaveCostsNothingButTheExitStatus) {
  // Files larger than this limit fail as on a full disk; the weights alone fit.
  const std::string limited = "trap '' XFSZ; ulimit -f 400; exec \"$@\"";
  Arguments command = words("bash -c {} bash", limited);
  command = command +
            vitrine_command(short_run() + into("run") + words("--keep-last 1 --save {} --json", path("w.safetensors")));
  ChildProcess child(command);
  const ChildResult result = child.wait();
  EXPECT_EQ(result.exit_code, 1);
  expect_contains(result.error, "warning: checkpoint step-00000010 is not saved: ", "optimizer.safetensors",
                  "3 of 3 checkpoints could not be saved");
  EXPECT_TRUE(names(path("run")).empty());
  const Json json = Json::parse(result.output);  // training went on to its end
  EXPECT_EQ(json["step_losses"].size(), 30U);
  EXPECT_EQ(json["checkpoints"]["failed"], 3);
  EXPECT_TRUE(fs::exists(path("w.safetensors")));
}

TEST_F(Checkpoints, AFailedLinkIsAWarningAndOldOnesAreRemovedAllTheSame) {
  fs::create_directories(path("run/best"));
  const ChildResult result = run(short_run() + into("run") + words("--keep-best --keep-last 1 --json"));
  ASSERT_EQ(result.exit_code, 0) << result.error;
  expect_contains(result.error, "warning: checkpoint step-00000010 is saved, but " + path("run/best") +
                                    ": the link to step-00000010 cannot be made");
  const Json json = Json::parse(result.output);
  EXPECT_EQ(json["checkpoints"]["saved"], 3);
  EXPECT_EQ(json["checkpoints"]["failed"], 0);
  const std::vector<std::string> left =
      names(path("run"));  // the newest one, the best one, and the folder in the link's place
  EXPECT_LE(left.size(), 3U);
  EXPECT_EQ(left.front(), "best");
  EXPECT_EQ(left.back(), "step-00000030");
}

TEST_F(Checkpoints, StagingIsThePlannedMemory) {
  const Json run = every_step("run");
  Json planned;
  {
    const ChildResult plan = run_vitrine(
        words("plan --model mlp --image-size 8 --data synthetic:195 --batch-size 20 --checkpoint-dir {} --json",
              path("run")));
    ASSERT_EQ(plan.exit_code, 0) << plan.error;
    planned = Json::parse(plan.output)["checkpoint_staging_bytes"];
  }
  EXPECT_EQ(run["checkpoints"]["staging_bytes"], planned);
  EXPECT_EQ(run["checkpoints"]["planned_staging_bytes"], planned);
  const int64_t parameters = planned["parameters"];
  EXPECT_GE(parameters, 4 * (192 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10));
  EXPECT_EQ(planned["exp_avg"], parameters);
  EXPECT_EQ(planned["exp_avg_sq"], parameters);
  EXPECT_EQ(planned["tensor being written"], 4 * 192 * 256);
  for (const Json& device : run["devices"])
    EXPECT_EQ(device["peak_bytes_by_category"], device["planned_peak_bytes_by_category"]);
  const ChildResult text =
      run_vitrine(words("plan --model mlp --image-size 8 --data synthetic:195 --checkpoint-dir {}", path("run")));
  expect_contains(text.output, "Checkpoint staging in host memory, planned: ");
}

/// The documented loop around a command that saves in `folder`.
ChildResult restart(const std::string& folder, const Arguments& command) {
  const Arguments loop = {"bash", test::source_path("docs/examples/restart.sh"), folder};
  return ChildProcess(loop + command, ChildProcess::Streams::pipes, {"RESTART_PAUSE=0"}).wait();
}

int64_t count(const std::string& text, const std::string& part) {
  int64_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST_F(Checkpoints, AShellLoopFinishesARunThatIsKilled) {
  ASSERT_FALSE(json(short_run() + into("whole")).is_null());
  // The first two tries are killed as soon as they have saved a checkpoint.
  const std::string killed_twice =
      "n=$(ls \"" + path("marks") + "\" | wc -l); if [ $n -lt 2 ]; then touch \"" + path("marks") +
      "/$n\"; saved=$(ls \"" + path("run") + "\"); \"$@\" & pid=$!; until [ \"$(ls \"" + path("run") +
      "\")\" != \"$saved\" ]; do :; done; kill -KILL $pid; wait $pid; else exec \"$@\"; fi";
  fs::create_directory(path("run"));
  fs::create_directory(path("marks"));
  const Arguments command = words("bash -c {} bash", killed_twice) +
                            vitrine_command(short_run() + into("run") + words("--checkpoint-every 1 --resume auto"));
  const ChildResult result = restart(path("run"), command);
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(count(result.error, "the command ended with status 137; starting it again from " + path("run") + "/step-"),
            2)
      << result.error;
  expect_same_tensors(path("run") + kLast, path("whole") + kLast);
}

TEST_F(Checkpoints, TheShellLoopStopsWhereNoRestartHelps) {
  fs::create_directory(path("run"));
  const auto runs = [&] { return count(content(path("runs")), "run\n"); };
  const auto command = [&](const std::string& rest) {
    return words("bash -c {} bash", "echo run >> \"" + path("runs") + "\"; " + rest);
  };
  // A usage error.
  const ChildResult usage =
      restart(path("run"), command("exec \"$@\"") + vitrine_command(words("train --no-such-option")));
  EXPECT_EQ(usage.exit_code, 2) << usage.error;
  EXPECT_EQ(runs(), 1);
  // Training that diverges at the same step each time: the first run saves step 5, and three in a row end there.
  fs::remove(path("runs"));
  const ChildResult diverges = restart(path("run"), command("mkdir -p \"" + path("run") + "/step-00000005\"; exit 1"));
  EXPECT_EQ(diverges.exit_code, 1) << diverges.error;
  EXPECT_EQ(runs(), 3);
  expect_contains(diverges.error,
                  "3 runs ended without a new checkpoint; the newest is " + path("run") + "/step-00000005");
  // As many failures as there is progress.
  fs::remove(path("runs"));
  const ChildResult progress =
      restart(path("run"), command("n=$(ls \"" + path("run") + "\" | wc -l); [ $n -lt 6 ] || exit 0; mkdir \"" +
                                   path("run") + "/step-0000001$n\"; exit 1"));
  EXPECT_EQ(progress.exit_code, 0) << progress.error;
  EXPECT_EQ(runs(), 6);
}

}  // namespace
}  // namespace vitrine::test
