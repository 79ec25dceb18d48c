// SPDX-License-Identifier: Apache-2.0
// vitrine reproduce: its runs, and what interrupts them.
#include <csignal>
#include <limits>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "nn/checkpoint_directory.h"
#include "runtime/error.h"
#include "tests/support/expect_contains.h"
#include "tests/tools/reproduce_runs.h"

namespace vitrine::test {
namespace {

TEST_F(Reproduce, MakesNineRunsOnceWithAllTheirFiles) {
  const Arguments command = tiny() + kTwoDevices + out("nine") + words("--epochs 2");
  const Json json = json_of(command);
  const std::vector<std::string> names = {"single fp32", "single fp16:none", "single fp16:dynamic",
                                          "dp fp32",     "dp fp16:none",     "dp fp16:dynamic",
                                          "ddp fp32",    "ddp fp16:none",    "ddp fp16:dynamic"};
  ASSERT_EQ(json["runs"].size(), names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    const Json& run = json["runs"][i];
    SCOPED_TRACE(names[i]);
    EXPECT_EQ(run["name"], names[i]);
    EXPECT_EQ(run["state"], "complete");
    EXPECT_EQ(run["devices"].size(), run["mode"] == "single" ? 1U : 2U);
    for (const Json& device : run["devices"]) EXPECT_EQ(device["peak_bytes"], device["planned_peak_bytes"]);
    ASSERT_EQ(run["epochs"].size(), 2U);
    for (const Json& epoch : run["epochs"]) {
      EXPECT_EQ(epoch["samples"], 195);
      EXPECT_EQ(epoch["steps"], 10);
    }
    EXPECT_EQ(run["test_accuracy"], run["epochs"][1]["test_accuracy"]);
    EXPECT_GT(run["seconds"].get<double>(), 0.0);
    EXPECT_GT(run["samples_per_second"].get<double>(), 0.0);
    EXPECT_FALSE(run["phases"].empty());
    const std::string folder = run["folder"].get<std::string>();
    EXPECT_EQ(CheckpointRuns::names(folder),
              (std::vector<std::string>{"checkpoints", "log.jsonl", "result.json", "tensorboard"}));
    EXPECT_EQ(CheckpointRuns::names(folder + "/checkpoints").size(), 2U);
    EXPECT_EQ(CheckpointRuns::names(folder + "/tensorboard").size(), 1U);
  }
  EXPECT_EQ(json["configurations"].size(), 9U);
  EXPECT_FALSE(json["interrupted"].get<bool>());

  const auto written = fs::last_write_time(path("nine") + "/ddp-fp32/log.jsonl");
  EXPECT_EQ(json_of(command), json) << "runs that are complete are not repeated";
  EXPECT_EQ(fs::last_write_time(path("nine") + "/ddp-fp32/log.jsonl"), written);
  EXPECT_EQ(Json::parse(content(path("nine") + "/runs.json")), json);

  const ChildResult text = run_vitrine(command);
  EXPECT_EQ(text.exit_code, 0);
  for (const char* part : {"The runs", "samples/s", "dp fp16:none", "to the byte", "cpu:0 to cpu:1|cpu:0, cpu:1",
                           "Where a step's time went", "report.html"}) {
    const std::string word = part;
    const size_t bar = std::min(word.find('|'), word.size());
    EXPECT_TRUE(text.output.find(word.substr(0, bar)) != std::string::npos ||
                (bar < word.size() && text.output.find(word.substr(bar + 1)) != std::string::npos))
        << part << "\n"
        << text.output;
  }
  const std::string page = content(path("nine") + "/report.html");
  for (const std::string& name : names)
    EXPECT_NE(page.find("\"" + name + ", at the end 0."), std::string::npos) << "no curve of " << name;
}

TEST_F(Reproduce, ContinuesAfterAnInterruptWithTheSameBits) {
  const Arguments more = kTwoDevices + words("--precisions fp32 --epochs 40");
  ASSERT_EQ(run_vitrine(tiny() + more + out("stopped") + words("--modes single")).exit_code, 0);
  const Arguments both = tiny() + more + out("stopped") + words("--modes single,ddp --json");
  ChildProcess child(vitrine_command(both));
  ASSERT_TRUE(child.wait_for("epoch 2/40"));
  child.send_signal(SIGINT);
  const ChildResult stopped = child.wait();
  EXPECT_EQ(stopped.exit_code, 130) << stopped.error;
  const Json before = Json::parse(stopped.output);
  EXPECT_TRUE(before["interrupted"].get<bool>());
  EXPECT_EQ(before["runs"][0]["state"], "complete");
  EXPECT_EQ(before["runs"][1]["state"], "interrupted");

  const ChildResult finished = run_vitrine(both);
  ASSERT_EQ(finished.exit_code, 0) << finished.error;
  expect_contains(finished.error, "ddp fp32 (1 of 1)", "continuing from");
  const Json after = Json::parse(finished.output);
  EXPECT_EQ(after["runs"][0], before["runs"][0]);
  const Json& run = after["runs"][1];
  EXPECT_EQ(run["state"], "complete");
  ASSERT_EQ(run["epochs"].size(), 40U);
  for (const Json& epoch : run["epochs"]) {
    EXPECT_EQ(epoch["samples"], 195);
    EXPECT_EQ(epoch["steps"], 10);
  }
  ASSERT_EQ(run_vitrine(tiny() + more + out("whole") + words("--modes ddp")).exit_code, 0);
  expect_same_tensors(path("stopped") + "/ddp-fp32/checkpoints/step-00000400",
                      path("whole") + "/ddp-fp32/checkpoints/step-00000400");
}

TEST_F(Reproduce, RefusesAnotherConfigurationInTheSameFolder) {
  const Arguments one = words("--modes single --precisions fp32 --epochs 1 --devices cpu:0");
  ASSERT_EQ(run_vitrine(tiny() + one + out("runs")).exit_code, 0);
  expect_usage_error(tiny() + one + out("runs") + words("--lr 0.5"), {"--lr is 0.5", "0.0001", "single-fp32"});
  expect_usage_error(tiny() + one + out("runs") + words("--limit-samples 100"), {"--data is", "100 and 20 images"});
  expect_usage_error(tiny() + one + out("runs") + words("--lr-patience 7"), {"--lr-patience is 7", "3"});
  expect_usage_error(tiny() + one + out("runs") + words("--data synthetic:200"), {"--data is", "195", "200"});
  EXPECT_EQ(run_vitrine(tiny() + one + out("runs") + words("--workers 2")).exit_code, 0);
}

TEST_F(Reproduce, OneCallAtATimeWorksInAFolder) {
  fs::create_directories(path("runs"));
  const Arguments command = tiny() + kSingle + out("runs") + words("--epochs 1");
  {
    const CheckpointDirectory directory(path("runs"));
    EXPECT_THROW(CheckpointDirectory(path("runs"), 0.0), DataError);
    const ChildResult refused = run_vitrine(command);
    EXPECT_EQ(refused.exit_code, 1);
    expect_contains(refused.error, "--out " + path("runs") + ": another process writes checkpoints there");
    EXPECT_FALSE(fs::exists(path("runs") + "/single-fp32"));
  }
  EXPECT_EQ(run_vitrine(command).exit_code, 0);
  fs::remove(path("runs") + "/.lock");
  fs::create_symlink(path("elsewhere"), path("runs") + "/.lock");
  EXPECT_EQ(run_vitrine(command).exit_code, 1) << "a link as lock file is not followed";
  EXPECT_FALSE(fs::exists(path("elsewhere")));
}

/// As after a kill between the last checkpoint and the result.
TEST_F(Reproduce, AProcessThatTrainedNoStepMeasuresNothing) {
  const Arguments command = tiny() + kSingle + out("runs") + words("--epochs 2");
  const Json whole = json_of(command)["runs"][0];
  const std::string file = path("runs") + "/single-fp32/result.json";
  Json result = Json::parse(content(file));
  result["state"] = "interrupted";
  std::ofstream(file) << result;
  const Json run = json_of(command)["runs"][0];
  EXPECT_EQ(run["state"], "complete");
  EXPECT_EQ(run["epochs"], whole["epochs"]);
  for (const char* name : {"peak_bytes", "peak_bytes_by_category", "outside_bytes"})
    EXPECT_TRUE(run["devices"][0][name].is_null()) << name;
  EXPECT_EQ(run["devices"][0]["planned_peak_bytes"], whole["devices"][0]["planned_peak_bytes"]);
  const ChildResult text = run_vitrine(command);
  expect_contains(text.output, "not measured");
  expect_contains(content(path("runs") + "/report.html"), "not measured");
}

TEST_F(Reproduce, AdvisesOnlyFlagsThatItHasWhenMemoryIsShort) {
  const Arguments small = words(
      "reproduce --model lenet5 --image-size 12 --data synthetic:40 --threads-per-device 1 --batch-size 20 --workspace "
      "1MiB --precisions fp32 --epochs 1");
  const Json fits = json_of(small + kTwoDevices + out("fits") + words("--modes dp,ddp"));
  const auto peak = [&](size_t run) { return fits["runs"][run]["devices"][0]["planned_peak_bytes"].get<int64_t>(); };
  ASSERT_GT(peak(0), peak(1)) << "ddp needs less";
  const std::string memory = std::to_string((peak(0) + peak(1)) / 2);
  const Json json = json_of(small + kTwoDevices + out("small") + words("--modes dp --device-memory {}", memory), 1);
  const std::string failure = json["runs"][0]["failure"].get<std::string>();
  expect_contains(failure, "What would fit: --modes ", "--modes ddp", "--batch-size");
  for (const char* flag : {"--mode ", "--split"}) expect_lacks(failure, flag);
}

TEST_F(Reproduce, RefusesWhatMakesNoSense) {
  expect_usage_error(tiny() + out("x") + words("--devices cpu:0 --modes single,both"),
                     {"--modes: expected single, dp, criterion, ddp, zero1, zero2, zero3, got 'both'"});
  expect_usage_error(tiny() + out("x") + words("--devices cpu:0 --modes single,"),
                     {"--modes: expected single, dp, criterion, ddp, zero1, zero2, zero3, got ''"});
  expect_usage_error(tiny() + out("x") + words("--devices cpu:0 --modes dp,dp"), {"dp appears twice"});
  expect_usage_error(tiny() + out("x") + words("--devices cpu:0 --precisions fp16,fp16:dynamic"),
                     {"fp16 is fp16:dynamic"});
  expect_usage_error(tiny() + out("x") + words("--devices cpu:0 --precisions fp64"), {"'fp64'"});
  expect_usage_error(words("reproduce --out {}", path("x")), words("--data"));
  expect_usage_error(words("reproduce --data synthetic"), words("--out"));
  expect_usage_error(tiny() + kTwoDevices + out("x") + words("--as-published"),
                     {"--devices cpu:0-1 has 2", "one device"});
  expect_usage_error(tiny() + out("x") + words("--devices cpu:0 --as-published --classes 20"),
                     {"--as-published sets --classes 1000"});
  expect_usage_error(tiny() + out("x") + words("--devices cpu:0 --as-published --shuffle"),
                     {"--as-published sets --no-shuffle"});
  expect_usage_error(tiny() + out("x") + words("--report {}", path("x") + "/runs.json"),
                     {"--out and --report name one file"});
  EXPECT_FALSE(fs::exists(path("x")));
}

TEST_F(Reproduce, PutsThePublishedFiguresBesideTheResults) {
  const Arguments command =
      tiny() + out("published") + words("--as-published --epochs 1 --devices cpu:0 --limit-samples 100");
  const ChildResult text = run_vitrine(command);
  ASSERT_EQ(text.exit_code, 0) << text.error;
  expect_contains(text.output, "0.8191", "0.8403", "0.8216", "0.8188", "0.8409", "0.8224", "0.8162", "0.8252", "22 min",
                  "21 min", "27 min", "RTX 2060", "1000 outputs", "not normalized", "not shuffled", "last batch",
                  "World size 1", "model mlp; published: alexnet", "--epochs 1; published: 20",
                  "the first 100 training images");
  const Json json = json_of(command);
  const Json& config = json["config"];
  EXPECT_EQ(config["classes"], 1000);
  EXPECT_EQ(config["normalize"], "none");
  EXPECT_EQ(config["shuffle"], false);
  EXPECT_EQ(config["lr_schedule"], "plateau");
  EXPECT_EQ(config["lr_metric"], "last-batch");
  EXPECT_EQ(json["configurations"][1]["published"], (Json{{"test_accuracy", 0.8403}, {"minutes", 21}}));
  EXPECT_EQ(json["configurations"][2]["published"], (Json{{"test_accuracy", nullptr}, {"minutes", 27}}));
  for (const Json& run : json["runs"]) EXPECT_EQ(run["devices"].size(), 1U);
  EXPECT_EQ(json["departures"].size(), 7U) << json["departures"];
  expect_contains(text.output, "single device on cpu:0");
  // Without shuffling dp, ddp and the single device train on the same batches, here on one device: the same figures.
  EXPECT_EQ(json["runs"][0]["epochs"][0]["train_loss"], json["runs"][6]["epochs"][0]["train_loss"]);
  // The saved weights have 1000 outputs.
  const Arguments eval = words(
      "eval --model mlp --image-size 8 --data synthetic:195 --limit-samples 100 --batch-size 20 --normalize none "
      "--weights {} --json",
      path("published") + "/dp-fp32/checkpoints");
  EXPECT_NE(run_vitrine(eval).exit_code, 0);
  const ChildResult evaluated = run_vitrine(eval + words("--classes 1000"));
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.error;
  EXPECT_EQ(Json::parse(evaluated.output)["test_accuracy"], json["runs"][3]["test_accuracy"]);
}

TEST_F(Reproduce, ListsEveryDepartureFromThePublishedConditions) {
  const Arguments optimizer = words("--optimizer sgd --momentum 0.9 --weight-decay 0.05 --clip-norm 1 --drop-last");
  const Arguments recipe = words("--augment flip --ema 0.9 --label-smoothing 0.1 --param-group *.bias:lr=0.02");
  const Arguments schedule = words("--lr-factor 0.5 --lr-patience 7 --warmup-steps 2");
  const Json json =
      json_of(tiny() + kSingle + out("published") + words("--as-published --epochs 1") + optimizer + recipe + schedule);
  const std::string all = json["departures"].dump();
  expect_contains(all, "--optimizer sgd; published: adamw", "--momentum 0.9; published: not set",
                  "--weight-decay 0.05; published: 0.01", "--clip-norm 1", "--drop-last on; published: off",
                  "--augment flip; published: not set", "--ema 0.9; published: not set",
                  "--label-smoothing 0.1; published: 0", "--param-group ", "--lr-factor 0.5; published: 0.1",
                  "--lr-patience 7; published: 3", "--warmup-steps 2; published: 0");
  for (const char* part : {"--seed", "--betas", "--nesterov"}) expect_lacks(all, part);
}

TEST_F(Reproduce, GoesOnAfterRunsThatDivergeOrFail) {
  // Weights and activations leave fp16's range, but not that of f32.
  const Arguments command =
      tiny() + out("wild") +
      words("--modes single,dp,ddp --precisions fp16:none,fp32 --epochs 2 --lr 100 --devices cpu:0-1");
  fs::create_directories(path("wild") + "/dp-fp32");
  std::ofstream(path("wild") + "/dp-fp32/checkpoints") << "in the way";
  const Json json = json_of(command, 1);
  std::map<std::string, std::string> states;
  for (const Json& run : json["runs"]) states[run["name"].get<std::string>()] = run["state"].get<std::string>();
  EXPECT_EQ(states, (std::map<std::string, std::string>{{"single fp16:none", "diverged"},
                                                        {"single fp32", "complete"},
                                                        {"dp fp16:none", "diverged"},
                                                        {"dp fp32", "failed"},
                                                        {"ddp fp16:none", "diverged"},
                                                        {"ddp fp32", "complete"}}));
  EXPECT_FALSE(json["runs"][0]["diverged"].is_null());
  expect_contains(json["runs"][3]["failure"].get<std::string>(), "checkpoints");
  EXPECT_TRUE(json["configurations"][0]["test_accuracy"].is_null());
  // The failed run is tried again; the others are there.
  fs::remove(path("wild") + "/dp-fp32/checkpoints");
  const ChildResult again = run_vitrine(command);
  EXPECT_EQ(again.exit_code, 1);
  expect_contains(again.output, "dp fp32 (1 of 1)", "single fp16:none diverged");
}

TEST_F(Reproduce, ShowsTheSpreadOfSeeds) {
  const Arguments command =
      tiny() + words("--modes single --precisions fp32 --epochs 1 --seed 5 --devices cpu:0") + out("seeds");
  ASSERT_EQ(run_vitrine(command).exit_code, 0);
  const Json json = json_of(command + words("--seeds 3"));
  ASSERT_EQ(json["runs"].size(), 3U);
  EXPECT_EQ(json["runs"][2]["name"], "single fp32 seed 7");
  EXPECT_EQ(json["runs"][2]["folder"], path("seeds") + "/single-fp32-seed7");
  EXPECT_EQ(json["runs"][0]["folder"], path("seeds") + "/single-fp32");
  ASSERT_EQ(json["configurations"].size(), 1U);
  const Json& configuration = json["configurations"][0];
  EXPECT_EQ(configuration["complete_runs"], 3);
  double sum = 0.0;
  for (const Json& run : json["runs"]) sum += run["test_accuracy"].get<double>();
  EXPECT_NEAR(configuration["test_accuracy"]["mean"].get<double>(), sum / 3.0, 1e-12);
  EXPECT_FALSE(configuration["seconds"]["deviation"].is_null());
  EXPECT_NE(json["runs"][0]["epochs"][0]["train_loss"], json["runs"][1]["epochs"][0]["train_loss"]);
  const ChildResult text = run_vitrine(command + words("--seeds 3"));
  expect_contains(text.output, "Over several seeds: the mean");
}

TEST_F(Reproduce, LimitsSamplesAndCountsClasses) {
  const Arguments train = words("train --model mlp --image-size 8 --data synthetic:195 --batch-size 20 --epochs 1");
  const Json json = json_of(train + words("--limit-samples 50 --confusion"));
  EXPECT_EQ(json["epochs"][0]["samples"], 50);
  int64_t tested = 0;
  for (const Json& row : json["confusion"]) {
    for (const Json& count : row) tested += count.get<int64_t>();
  }
  EXPECT_EQ(tested, 10) << "39 test images * 50 / 195";
  expect_usage_error(train + words("--classes 3"), {"--classes 3", "10 classes"});
}

/// PyTorch's ReduceLROnPlateau with patience 0 and factor 0.1, of the loss of each epoch's last batch.
TEST_F(Reproduce, PlateauMayWatchTheLastBatch) {
  const std::string log = path("plateau.jsonl");
  const Arguments train = words(
      "train --model mlp --image-size 8 --data synthetic:195 --batch-size 20 --epochs 8 --no-eval --lr-schedule "
      "plateau --lr-metric last-batch --lr-patience 0 --lr 0.01 --log {}",
      log);
  ASSERT_EQ(run_vitrine(train).exit_code, 0);
  std::map<int64_t, double> losses, rates;  // of each epoch's last batch
  for (const Json& row : rows_of(log)) {
    if (row["kind"] != "step") continue;
    losses[row["epoch"].get<int64_t>()] = row["loss"].get<double>();
    rates[row["epoch"].get<int64_t>()] = row["lr"].get<double>();
  }
  double lr = 0.01, best = std::numeric_limits<double>::infinity();
  ASSERT_EQ(losses.size(), 8U);
  for (const auto& [epoch, loss] : losses) {
    EXPECT_NEAR(rates[epoch], lr, 1e-12) << epoch;
    if (loss < best * (1.0 - 1e-4)) {
      best = loss;
    } else {
      lr *= 0.1;
    }
  }
  EXPECT_LT(lr, 0.01) << "the loss never rose, so the test shows nothing";
  expect_usage_error(words("train --lr-schedule plateau --no-eval"), {"--lr-schedule plateau watches the test set"});
}

}  // namespace
}  // namespace vitrine::test
