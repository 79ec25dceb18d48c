// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/expect_contains.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"
#include "tests/support/trace_nesting.h"
#include "tests/tools/run_json.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test {
namespace {

using Json = nlohmann::json;

const Arguments kQuick =
    words("--model mlp --data synthetic:200 --devices cpu:0-1 --threads-per-device 1 --batch-size 32");

/// The JSON object on stdout of a run that must succeed.
Json run_json(const std::string& command, const Arguments& arguments) {
  const ChildResult result = run_vitrine(with(with({command}, kQuick), with(arguments, words("--json"))));
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(result.output.find('\n'), result.output.size() - 1) << "stdout holds more than one line";
  return Json::parse(result.output);
}

/// A test with a temporary folder.
class ProgramTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path(name); }

  const TempFolder folder_;
};
using Train = ProgramTest;
using Eval = ProgramTest;
using Compare = ProgramTest;

TEST_F(Train, WinogradsConvolutionsAreListed) {
  const Arguments run = words(
      "train --model small-cnn --data synthetic:64 --batch-size 32 --steps 1 --no-eval "
      "--threads-per-device 1 --winograd");
  const ChildResult text = run_vitrine(run);
  if (text.exit_code == 2) {
    expect_contains(text.error, "--winograd: ", "; leave it out");
    GTEST_SKIP() << text.error;
  }
  expect_contains(text.output, ", Winograd allowed", "Convolutions: 3 by Winograd; 2 by direct convolution");
  const Json json = Json::parse(run_vitrine(with(run, words("--json"))).output);
  EXPECT_EQ(json["config"]["winograd"], true);
  ASSERT_EQ(json["convolutions"].size(), 5U);
  for (const Json& convolution : json["convolutions"]) {
    const bool first = convolution["operation"].get<std::string>().find("x (32, 32, 32, 3)") != std::string::npos;
    EXPECT_EQ(convolution["implementation"], first ? "direct convolution" : "Winograd");
    EXPECT_EQ(convolution["reason"], first ? "Winograd is for multiples of 16 channels, at least 32" : "");
  }
}

TEST_F(Train, JsonHasTheResults) {
  const Json json = run_json("train", words("--epochs 2"));
  EXPECT_EQ(json["config"]["model"], "mlp");
  EXPECT_EQ(json["config"]["mode"], "ddp");
  EXPECT_EQ(json["config"]["devices"], (Json{"cpu:0", "cpu:1"}));
  ASSERT_EQ(json["step_losses"].size(), 14U);  // 200 samples: six full batches and one of 8, twice
  ASSERT_EQ(json["epochs"].size(), 2U);
  for (const Json& epoch : json["epochs"]) {
    EXPECT_EQ(epoch["samples"], 200);
    EXPECT_TRUE(std::isfinite(epoch["train_loss"].get<double>()));
    EXPECT_TRUE(std::isfinite(epoch["test_loss"].get<double>()));
    const double correct = epoch["test_accuracy"].get<double>() * 40;
    EXPECT_NEAR(correct, std::round(correct), 1e-9);
    EXPECT_GT(epoch["seconds"].get<double>(), 0.0);
    EXPECT_GT(epoch["samples_per_second"].get<double>(), 0.0);
  }
  EXPECT_EQ(json["epochs"][1]["epoch"], 2);
  EXPECT_FALSE(json["interrupted"].get<bool>());
}

TEST_F(Train, EpochLossIsTheMeanOverTargets) {
  const Json json = run_json("train", words("--epochs 1"));
  double sum = 0.0;
  for (size_t i = 0; i < 7; ++i) sum += json["step_losses"][i].get<double>() * (i < 6 ? 32 : 8);
  EXPECT_NEAR(json["epochs"][0]["train_loss"].get<double>(), sum / 200, 1e-9);
}

TEST_F(Train, DevicesReportTheirMemory) {
  const Json json = run_json("train", words("--steps 3 --split 1,3"));
  ASSERT_EQ(json["devices"].size(), 2U);
  EXPECT_EQ(json["devices"][0]["samples_per_step"], 8);
  EXPECT_EQ(json["devices"][1]["samples_per_step"], 24);
  for (const Json& device : json["devices"]) {
    int64_t sum = 0;
    for (const auto& [category, bytes] : device["peak_bytes_by_category"].items()) sum += bytes.get<int64_t>();
    EXPECT_EQ(sum, device["peak_bytes"].get<int64_t>());
    EXPECT_EQ(device["planned_peak_bytes"], device["peak_bytes"]);
    EXPECT_GT(device["outside_bytes"].get<int64_t>(), 0);
  }
}

TEST_F(Train, PhasesOfADeviceAddUpToItsStep) {
  const Json json = run_json("train", words("--steps 12 --no-eval"));
  for (const char* device : {"cpu:0", "cpu:1"}) {
    double share = 0.0;
    bool forward = false, backward = false;
    for (const Json& row : json["phases"]) {
      if (row["device"] != device) continue;
      share += row["share"].get<double>();
      forward =
          forward || (row["phase"] == "forward" && row["seconds"].get<double>() > 0.0 && row["calls"].get<int>() >= 11);
      backward = backward || row["phase"] == "backward";
    }
    EXPECT_NEAR(share, 1.0, 0.01);
    EXPECT_TRUE(forward && backward);
  }
}

TEST_F(Train, TheReportHasTheBucketsOfAllDevices) {
  const std::vector<std::string> buckets = words("--steps 4 --no-eval --first-bucket-mb 0.001 --bucket-mb 0.1");
  std::map<std::string, int64_t> bytes;
  const Json json = run_json("train", buckets);
  for (const Json& row : json["communication"]) {
    EXPECT_EQ(row["phase"], "reduce");
    EXPECT_EQ(row["calls"], 3);
    EXPECT_GT(row["seconds"].get<double>(), 0.0);
    bytes[row["device"]] += row["bytes_per_step"].get<int64_t>();
  }
  ASSERT_EQ(bytes.size(), 2U);
  EXPECT_EQ(bytes["cpu:0"], bytes["cpu:1"]);
  EXPECT_GT(bytes["cpu:0"], 4 * 500);
  const ChildResult result = run_vitrine(with(with({"train", "--details"}, kQuick), buckets));
  expect_contains(result.output, "Communication (the slowest device, cpu:", "bucket 0", "bucket 1", "algbw");
}

TEST_F(Train, StepsCycleEpochsAndEvaluateOnce) {
  const Json json = run_json("train", words("--steps 10"));
  EXPECT_EQ(json["step_losses"].size(), 10U);
  ASSERT_EQ(json["epochs"].size(), 1U);
  EXPECT_EQ(json["epochs"][0]["samples"], 200 + 3 * 32);
  EXPECT_FALSE(json["epochs"][0]["test_loss"].is_null());
  EXPECT_TRUE(run_json("train", words("--steps 2 --no-eval"))["epochs"][0]["test_loss"].is_null());
}

TEST_F(Train, DropLastOmitsTheShortBatch) {
  const Json json = run_json("train", words("--epochs 1 --drop-last"));
  EXPECT_EQ(json["step_losses"].size(), 6U);
  EXPECT_EQ(json["epochs"][0]["samples"], 192);
}

TEST_F(Train, MixedPrecisionReportsItsLossScale) {
  const Json json =
      run_json("train", words("--steps 6 --no-eval --precision fp16 --loss-scale-growth-interval 2 --clip-norm 100"));
  EXPECT_EQ(json["config"]["precision"], "fp16");
  EXPECT_EQ(json["config"]["loss_scale"], "dynamic");
  EXPECT_EQ(json["loss_scale"]["initial"], 65536.0);
  // Every other step either skips or doubles.
  const size_t events = json["loss_scale"]["changes"].size();
  EXPECT_GE(events, 2U);
  EXPECT_EQ(json["gradient_norms"].size(), 6U);
  EXPECT_EQ(json["step_losses"].size(), 6U);
  const Json plain = run_json("train", words("--steps 6 --no-eval"));
  EXPECT_TRUE(plain["loss_scale"].is_null());
  EXPECT_TRUE(plain["gradient_norms"].is_null());
  const auto activations = [](const Json& j) {
    return j["devices"][0]["peak_bytes_by_category"]["activations"].get<double>();
  };
  EXPECT_LT(activations(json), 0.57 * activations(plain));
}

TEST_F(Train, ADivergedRunFailsAndKeepsTheLastFiniteWeights) {
  for (const char* mode : {"dp", "criterion", "ddp"}) {
    const Arguments arguments =
        with(kQuick, words("--steps 20 --no-eval --lr 1e30 --mode {} --save {} --report {} --json", mode,
                           path("w.safetensors"), path("r.html")));
    const ChildResult result = run_vitrine(with({"train"}, arguments));
    EXPECT_EQ(result.exit_code, 1) << result.output << result.error;
    expect_contains(result.error, "training has diverged: the loss of step ", "first in the output of ",
                    "--allow-non-finite");
    const Json json = Json::parse(result.output);
    EXPECT_TRUE(json["diverged"].is_string());
    EXPECT_TRUE(json["step_losses"].back().is_null());
    EXPECT_LT(json["step_losses"].size(), 20U);
    std::ifstream weights(path("w.safetensors"), std::ios::binary);
    uint64_t header = 0;
    weights.read(reinterpret_cast<char*>(&header), sizeof header);
    weights.seekg(static_cast<std::streamoff>(header), std::ios::cur);
    int64_t count = 0;
    for (float value = 0; weights.read(reinterpret_cast<char*>(&value), sizeof value); ++count)
      ASSERT_TRUE(std::isfinite(value)) << mode;
    EXPECT_GT(count, 1000);
    const std::string page = content(path("r.html"));
    expect_contains(page, "training has diverged");
    expect_lacks(page, "Nothing stands out");
  }
}

// No training step shows what the last update did.
TEST_F(Train, AnEvaluationThatIsNotFiniteIsDivergence) {
  const std::string weights = path("w.safetensors"), report = path("r.html");
  const Arguments training =
      with(with({"train"}, kQuick), words("--steps 1 --lr 1e30 --save {} --report {}", weights, report));
  const ChildResult result = run_vitrine(training);
  EXPECT_EQ(result.exit_code, 1) << result.output;
  expect_contains(result.error, "training has diverged: the test loss after step 1 is not finite",
                  "lower the learning rate, or clip the gradient's norm");
  EXPECT_EQ(result.error.find("compute in"), std::string::npos) << "the run is in f32: " << result.error;
  expect_lacks(run_vitrine(with(with({"train"}, kQuick), words("--steps 1 --lr 1e30 --update-in-backward"))).error,
               "clip");
  expect_contains(result.output, "test loss nan", "The weights are in " + weights);
  const std::string page = content(report);
  expect_contains(page, "training has diverged: the test loss");
  expect_lacks(page, "Nothing stands out");

  const Arguments evaluation = with(with({"eval"}, kQuick), words("--weights {}", weights));
  const ChildResult refused = run_vitrine(evaluation),
                    accepted = run_vitrine(with(evaluation, words("--allow-non-finite")));
  EXPECT_EQ(refused.exit_code, 1) << refused.output;
  expect_contains(refused.error, "the test loss is not finite");
  EXPECT_EQ(accepted.exit_code, 0) << accepted.error;
  for (const ChildResult* one : {&refused, &accepted}) expect_contains(one->output, "test loss nan");
}

TEST_F(Train, ARunContinuesAndReportsNonFiniteValuesIfTheyAreAllowed) {
  const Arguments arguments =
      with(kQuick, words("--steps 6 --no-eval --lr 1e30 --allow-non-finite --report {}", path("r.html")));
  const ChildResult result = run_vitrine(with({"train"}, arguments));
  EXPECT_EQ(result.exit_code, 0) << result.error;
  expect_contains(result.output, "Not finite: ");
  const std::string page = content(path("r.html"));
  expect_contains(page, "The loss was not finite in ");
  expect_lacks(page, "Nothing stands out");
}

// 7 steps of an epoch, the last with 8 of 32 samples.
TEST_F(Train, ThePageCountsStepsFromTheStartOfTheRun) {
  const auto page_of = [&](const Arguments& arguments) {
    run_json("train", with(arguments, words("--no-eval --report {} --checkpoint-dir {}", path("r.html"), path("c"))));
    return content(path("r.html"));
  };
  expect_contains(page_of(words("--steps 16")), "epoch 1</th><td>16</td>");  // steps of three epochs
  const std::string continued = page_of(words("--epochs 4 --resume {}", path("c")));
  for (const char* cells : {"epoch 3</th><td>21</td>", "epoch 4</th><td>28</td>"}) expect_contains(continued, cells);
}

TEST_F(Train, EveryPrecisionRunsUnderEveryScheme) {
  for (const char* mode : {"dp", "criterion", "ddp", "zero1", "zero2", "zero3"}) {
    for (const Arguments& precision : std::vector<Arguments>{words("--precision fp16 --loss-scale none"),
                                                             words("--precision fp16"), words("--precision bf16")}) {
      const Json reference = run_json("train", words("--steps 3 --no-eval"))["step_losses"];
      const Json losses =
          run_json("train", with(words("--steps 3 --no-eval --mode {}", mode), precision))["step_losses"];
      EXPECT_NEAR(losses[0].get<double>(), reference[0].get<double>(), 2e-2) << mode << " " << precision[1];
    }
  }
}

TEST_F(Train, EverySchemeGivesTheSameLosses) {
  const Json reference = run_json("train", words("--steps 5 --no-eval"))["step_losses"];
  for (const Arguments& scheme :
       std::vector<Arguments>{words("--mode dp"), words("--gpu0-bsz 5"), words("--mode criterion"),
                              words("--mode dp --output-device cpu:1"), words("--mode zero1"), words("--mode zero2"),
                              words("--mode zero2 --acc-grad 3"), words("--acc-grad 3")}) {
    const Json losses = run_json("train", with(words("--steps 5 --no-eval"), scheme))["step_losses"];
    for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(losses[i].get<double>(), reference[i].get<double>(), 1e-4) << scheme[1];
  }
}

TEST_F(Train, PreprocessingOnTheHostGivesTheSameLosses) {
  const Arguments arguments = words("--steps 4 --no-eval --image-size 20");
  EXPECT_EQ(run_json("train", arguments)["step_losses"],
            run_json("train", with(arguments, words("--preprocess host")))["step_losses"]);
}

/// Every part of a training recipe at once: the same losses under every scheme, memory as planned (checked by the
/// program), and the averages saved.
TEST_F(Train, ARecipeGivesTheSameLossesUnderEveryScheme) {
  const Arguments recipe = words(
      "--augment flip,crop:4,cutout:8 --label-smoothing 0.1 --no-decay norms,biases --param-group "
      "classifier.4.*:lr=0.005 --ema 0.9 --epochs 2");
  const Json ddp = run_json("train", with(recipe, words("--save {}", path("a.safetensors"))));
  EXPECT_EQ(ddp["config"]["augment"], "flip,crop:4,cutout:8");
  EXPECT_EQ(ddp["config"]["ema"], 0.9);
  for (const char* mode : {"dp", "criterion"}) {
    const Json other = run_json("train", with(recipe, words("--mode {} --split 3,1 --accumulate 2", mode)));
    for (size_t i = 0; i < ddp["step_losses"].size(); ++i) {
      EXPECT_NEAR(other["step_losses"][i].get<double>(), ddp["step_losses"][i].get<double>(), 1e-4) << mode << " " << i;
    }
    EXPECT_NEAR(other["epochs"].back()["test_loss"].get<double>(), ddp["epochs"].back()["test_loss"].get<double>(),
                1e-3)
        << mode;
  }
  const auto evaluated = [&](const std::string& weights) {
    return run_json("eval", words("--weights {}", path(weights)))["test_loss"].get<double>();
  };
  EXPECT_NEAR(evaluated("a.ema.safetensors"), ddp["epochs"].back()["test_loss"].get<double>(), 1e-6);
  EXPECT_GT(std::abs(evaluated("a.safetensors") - evaluated("a.ema.safetensors")), 1e-4);
}

TEST_F(Train, LogsStepsAndEpochs) {
  const Json json = run_json("train", words("--epochs 2 --log {} --confusion", path("run.jsonl")));
  std::ifstream file(path("run.jsonl"));
  std::vector<Json> rows;
  for (std::string line; std::getline(file, line);) rows.push_back(Json::parse(line));
  const size_t steps = json["step_losses"].size();
  ASSERT_EQ(rows.size(), 1 + steps + 2);
  EXPECT_EQ(rows[0]["config"], json["config"]);
  EXPECT_EQ(rows[1]["loss"], json["step_losses"][0]);
  EXPECT_EQ(rows.back()["test_accuracy"], json["epochs"].back()["test_accuracy"]);
  EXPECT_EQ(rows.back()["memory"]["cpu:1"]["peak"], json["devices"][1]["peak_bytes"]);
  int64_t samples = 0, correct = 0;
  for (size_t i = 0; i < 10; ++i) {
    for (size_t j = 0; j < 10; ++j) samples += json["confusion"][i][j].get<int64_t>();
    correct += json["confusion"][i][i].get<int64_t>();
  }
  EXPECT_EQ(samples, 40);
  EXPECT_NEAR(static_cast<double>(correct) / 40, json["epochs"].back()["test_accuracy"].get<double>(), 1e-9);
  EXPECT_GE(json["epochs"].back()["test_top5_accuracy"].get<double>(),
            json["epochs"].back()["test_accuracy"].get<double>());
}

TEST_F(Train, LimitsSamplesAndCountsClasses) {
  const Arguments train = words("train --model mlp --image-size 8 --data synthetic:195 --batch-size 20 --epochs 1");
  const Json json = json_of(with(train, words("--limit-samples 50 --confusion")));
  EXPECT_EQ(json["epochs"][0]["samples"], 50);
  int64_t tested = 0;
  for (const Json& row : json["confusion"]) {
    for (const Json& count : row) tested += count.get<int64_t>();
  }
  EXPECT_EQ(tested, 10) << "39 test images * 50 / 195";
  const ChildResult refused = run_vitrine(with(train, words("--classes 3")));
  EXPECT_EQ(refused.exit_code, 2);
  expect_contains(refused.error, "--classes 3", "10 classes");
}

/// PyTorch's ReduceLROnPlateau with patience 0 and factor 0.1, of the loss of each epoch's last batch.
TEST_F(Train, PlateauMayWatchTheLastBatch) {
  const std::string log = path("plateau.jsonl");
  const Arguments train = words(
      "train --model mlp --image-size 8 --data synthetic:195 --batch-size 20 --epochs 8 --no-eval --lr-schedule "
      "plateau --lr-metric last-batch --lr-patience 0 --lr 0.01 --log {}",
      log);
  ASSERT_EQ(run_vitrine(train).exit_code, 0);
  std::map<int64_t, double> losses, rates;  // of each epoch's last batch
  std::ifstream file(log);
  for (std::string line; std::getline(file, line);) {
    const Json row = Json::parse(line);
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
}

TEST_F(Train, WritesAChromeTrace) {
  run_json("train", words("--steps 3 --no-eval --trace {}", path("trace.json")));
  std::ifstream file(path("trace.json"));
  const Json trace = Json::parse(file);
  const Json& events = trace.at("traceEvents");
  EXPECT_EQ(first_overlap(events), "");
  int forwards = 0, counters = 0;
  for (const Json& event : events) counters += event["ph"] == "C" ? 1 : 0;
  EXPECT_GT(counters, 20);
  for (const Json& event : events)
    forwards += event["ph"] == "X" && event.dump().find("forward") != std::string::npos ? 1 : 0;
  EXPECT_GE(forwards, 6);  // three steps on two devices
}

TEST_F(Train, WritesAMemoryHistoryForPyTorchsViewer) {
  run_json("train",
           words("--steps 6 --no-eval --accumulate 16 --record-steps 2-5 --memory-history {}", path("memory.json")));
  const ChildResult checked =
      ChildProcess({"python3", test::source_path("tests/tools/check_memory_snapshot.py"), path("memory.json"), "2"})
          .wait();
  EXPECT_EQ(checked.exit_code, 0) << checked.output << checked.error;
}

TEST_F(Train, ATraceOfSomeStepsContainsOnlyThose) {
  run_json("train", words("--steps 7 --no-eval --record-steps 3-4 --trace {}", path("trace.json")));
  std::ifstream file(path("trace.json"));
  std::set<int> steps;
  size_t counters = 0;
  const Json trace = Json::parse(file);
  for (const Json& event : trace.at("traceEvents")) {
    if (event["ph"] == "X" && event["name"] == "forward") steps.insert(event["args"]["step"].get<int>());
    counters += event["ph"] == "C" ? 1 : 0;
  }
  // The step after the last one ends it.
  EXPECT_EQ(steps, (std::set<int>{2, 3, 4}));
  EXPECT_GT(counters, 20U);
}

TEST_F(Train, PrintsASummaryAndWithDetailsTablesOfTimeAndMemory) {
  const std::string summary = run_vitrine(with(with({"train"}, kQuick), words("--steps 4"))).output;
  expect_contains(summary, " samples/s\n", " peaks at ", " waits longest: ", "--details prints the tables");
  expect_lacks(summary, "Where the");
  const ChildResult result =
      run_vitrine(with(with({"train", "--details"}, kQuick), words("--steps 4 --save {}", path("w.safetensors"))));
  EXPECT_EQ(result.exit_code, 0) << result.error;
  expect_contains(result.output, "mlp", "cpu:0", "cpu:1", "16+16", "train loss", "test accuracy", "Where the time went",
                  "forward", "backward", "Where the memory went", "parameters", "planned", "to the byte",
                  "outside the pool", "w.safetensors");
  expect_lacks(result.output, "\033");
  EXPECT_EQ(result.error, "");
}

TEST_F(Train, ProgressBarsAppearOnlyOnTerminalsAndNoColorIsHonored) {
  const Arguments arguments = with(with({"train", "--details"}, kQuick), words("--steps 4"));
  const ChildResult colors =
      ChildProcess(vitrine_command(arguments), ChildProcess::Streams::terminal, {"TERM=xterm"}).wait();
  expect_contains(colors.output, "[#", "\033[1mWhere the time went");
  const ChildResult plain =
      ChildProcess(vitrine_command(arguments), ChildProcess::Streams::terminal, {"TERM=xterm", "NO_COLOR=1"}).wait();
  expect_lacks(plain.output, "\033[1m");
}

TEST_F(Eval, GivesTheResultsOfTraining) {
  const Json trained = run_json("train", words("--epochs 1 --save {}", path("w.safetensors")));
  const Json json = run_json("eval", words("--weights {}", path("w.safetensors")));
  EXPECT_EQ(json["samples"], 40);
  EXPECT_DOUBLE_EQ(json["test_accuracy"].get<double>(), trained["epochs"][0]["test_accuracy"].get<double>());
  EXPECT_NEAR(json["test_loss"].get<double>(), trained["epochs"][0]["test_loss"].get<double>(), 1e-6);
}

TEST_F(Eval, HoldsNoGradientsAndNoOptimizerState) {
  run_json("train", words("--steps 1 --no-eval --save {}", path("w.safetensors")));
  for (const char* precision : {"fp32", "fp16", "bf16"}) {
    const Json json = run_json("eval", words("--weights {} --precision {}", path("w.safetensors"), precision));
    for (const Json& device : json["devices"]) {
      EXPECT_EQ(device["peak_bytes_by_category"]["gradients"], 0) << precision;
      EXPECT_EQ(device["peak_bytes_by_category"]["optimizer"], 0) << precision;
      EXPECT_EQ(device["peak_bytes"], device["planned_peak_bytes"]) << precision;
    }
  }
}

TEST_F(Eval, DoesNotDependOnTheBatchSize) {
  run_json("train", words("--steps 3 --no-eval --save {}", path("w.safetensors")));
  const Json whole = run_json("eval", words("--weights {} --batch-size 64", path("w.safetensors")));
  const Json parts = run_json("eval", words("--weights {} --batch-size 7", path("w.safetensors")));
  EXPECT_EQ(parts["samples"], 40);
  EXPECT_EQ(parts["test_accuracy"], whole["test_accuracy"]);
  EXPECT_NEAR(parts["test_loss"].get<double>(), whole["test_loss"].get<double>(), 1e-6);
}

TEST_F(Eval, SavesLogitsInOrder) {
  run_json("train", words("--steps 3 --no-eval --save {}", path("w.safetensors")));
  const auto logits = [&](const std::string& name, const std::string& batch_size) {
    run_json("eval",
             words("--weights {} --batch-size {} --save-logits {}", path("w.safetensors"), batch_size, path(name)));
    const std::string bytes = content(path(name));
    EXPECT_EQ(bytes.substr(0, 6), "\x93NUMPY");
    expect_contains(bytes, "(40, 10)");
    std::vector<float> values(400);
    const size_t size = values.size() * sizeof(float);
    if (bytes.size() >= size) std::memcpy(values.data(), bytes.data() + bytes.size() - size, size);
    return values;
  };
  const std::vector<float> a = logits("a.npy", "32"), b = logits("b.npy", "9");
  EXPECT_GT(std::accumulate(a.begin(), a.end(), 0.0F, [](float s, float v) { return s + std::abs(v); }), 0.0F);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-4F);
}

TEST_F(Train, ContinuesFromSavedWeights) {
  run_json("train", words("--steps 3 --no-eval --save {}", path("w.safetensors")));
  const double fresh = run_json("train", words("--steps 1 --no-eval"))["step_losses"][0].get<double>();
  const double resumed =
      run_json("train", words("--steps 1 --no-eval --init-weights {}", path("w.safetensors")))["step_losses"][0]
          .get<double>();
  EXPECT_NE(fresh, resumed);
}

TEST_F(Train, FineTunesAnotherHeadAndHoldsNothingForFrozenLayers) {
  run_json("train", words("--steps 2 --save {}", path("w.safetensors")));
  const Arguments another_head = words("--steps 4 --classes 20 --init-weights {}", path("w.safetensors"));
  const ChildResult tuned = run_vitrine(with(with({"train"}, kQuick), another_head));
  EXPECT_EQ(tuned.exit_code, 0);
  expect_contains(tuned.error, "loaded 4 of 6 parameters\n  not loaded, initialized from the seed:\n",
                  "classifier.4.weight: shape (10, 128) in the file, expected (20, 128)\n", "classifier.4.bias: ");
  const ChildResult eval =
      run_vitrine(with(with({"eval"}, kQuick), words("--classes 20 --weights {}", path("w.safetensors"))));
  EXPECT_EQ(eval.exit_code, 1);
  expect_contains(eval.error, "in the file, expected (20, 128)");
  const ChildResult smaller = run_vitrine(with(with({"train"}, kQuick), with(another_head, words("--image-size 8"))));
  EXPECT_EQ(smaller.exit_code, 1);
  expect_contains(smaller.error, "classifier.0.weight has shape ");
  const Arguments partial = with(another_head, words("--eval-every 2"));
  const Json all = run_json("train", partial),
             head = run_json(
                 "train", with(partial, words("--freeze classifier.0.*,classifier.2.* --log {}", path("log.jsonl"))));
  for (const char* category : {"gradients", "optimizer"}) {
    const auto bytes = [&](const Json& json) {
      return json["devices"][0]["peak_bytes_by_category"][category].get<int64_t>();
    };
    EXPECT_LT(bytes(head), bytes(all) / 4) << category;
  }
  std::ifstream log(path("log.jsonl"));
  int evaluations = 0;
  for (std::string line; std::getline(log, line);) evaluations += Json::parse(line)["kind"] == "evaluation" ? 1 : 0;
  EXPECT_EQ(evaluations, 1) << "after step 2; step 4 is the end";
}

TEST_F(Compare, RunsEverySchemeOnTheSameSteps) {
  const Json json = run_json("compare", words("--steps 4 --rounds 2"));
  ASSERT_EQ(json["modes"].size(), 4U);
  for (const auto& [name, mode] : json["modes"].items()) {
    EXPECT_GT(mode["samples_per_second"].get<double>(), 0.0) << name;
    EXPECT_EQ(mode["samples_per_second_of_rounds"].size(), 2U);
    EXPECT_EQ(mode["devices"].size(), 2U);
    EXPECT_FALSE(mode["phases"].empty());
    EXPECT_FALSE(mode["communication"].empty());
    EXPECT_LT(mode["max_gradient_difference"].get<double>(), 1e-5) << name;
  }
  EXPECT_EQ(json["modes"]["balanced"]["devices"][0]["samples_per_step"], 8);
  EXPECT_EQ(json["modes"]["ddp"]["devices"][0]["samples_per_step"], 16);
}

TEST_F(Compare, RunsEverySchemeInEveryPrecision) {
  const Arguments two_modes = words("--steps 3 --rounds 1 --modes dp,ddp");
  const Json json =
      run_json("compare", with(two_modes, words("--precisions fp32,fp16:none,fp16 --loss-scale-growth-interval 5")));
  EXPECT_EQ(json["config"]["precisions"], (Json{"fp32", "fp16:none", "fp16"}));
  for (const char* key : {"precision", "loss_scale"}) EXPECT_FALSE(json["config"].contains(key)) << key;
  ASSERT_EQ(json["modes"].size(), 6U);
  EXPECT_EQ(json["modes"]["dp fp16:none"]["loss_scale"], "none");
  EXPECT_EQ(json["modes"]["dp fp16"]["loss_scale"], "dynamic");
  const Json one = run_json("compare", with(two_modes, words("--precision fp16")));
  EXPECT_FALSE(one["config"].contains("precisions"));
  EXPECT_EQ(one["config"]["precision"], "fp16");
  EXPECT_EQ(one["config"]["loss_scale"], "dynamic");
}

TEST_F(Compare, TableHasARowForEachSchemeAndDevice) {
  const ChildResult result =
      run_vitrine(with(with({"compare"}, kQuick), words("--steps 3 --rounds 2 --modes dp,balanced")));
  EXPECT_EQ(result.exit_code, 0) << result.error;
  expect_contains(result.output, "half of an equal share", "dp", "balanced", "cpu:0", "cpu:1", "samples/s",
                  "peak memory", "gradient difference", "backward", "2 rounds of 2 steps", " ±");
}

TEST_F(Compare, ShowsASchemeThatDoesNotFitAndRunsTheOthers) {
  const Arguments common = words(
      "--model mlp --classes 5000 --data synthetic:64 --devices cpu:0-1 --threads-per-device 1 --batch-size 32 "
      "--optimizer sgd --steps 2");
  const auto peak = [&](const char* mode) {
    return json_of(with(with({"plan"}, common), words("--no-eval --mode {}", mode)))["devices"][0]["peak_bytes"]
        .get<int64_t>();
  };
  ASSERT_LT(peak("ddp"), peak("dp"));
  const Arguments compare =
      with(with({"compare"}, common), words("--rounds 1 --modes dp,ddp --device-memory {} --report {}",
                                            std::to_string((peak("ddp") + peak("dp")) / 2), path("c.html")));
  const Json json = json_of(compare);
  EXPECT_EQ(json["modes"].size(), 1U);
  EXPECT_TRUE(json["modes"].contains("ddp"));
  EXPECT_EQ(json["refused"]["dp"][0]["planned_peak_bytes"], peak("dp"));
  EXPECT_GT(json["refused"]["dp"][0]["planned_peak_bytes"], json["refused"]["dp"][0]["capacity_bytes"]);
  const ChildResult result = run_vitrine(compare);
  EXPECT_EQ(result.exit_code, 0) << result.error;
  expect_contains(result.output, "16+16, does not fit", "does not fit", " of ");
  expect_contains(content(path("c.html")), "Does not fit: dp (", "\"refused\":{\"dp\":[");
  // Where none fits, it is an error.
  const ChildResult none = run_vitrine(with(compare, words("--modes dp")));
  EXPECT_EQ(none.exit_code, 1);
  expect_contains(none.error, "vitrine: cpu:0: out of memory", "What would fit: --modes ");
  const ChildResult both = run_vitrine(
      with(with({"compare"}, common), words("--modes dp,ddp --device-memory {}", std::to_string(peak("ddp") / 2))));
  EXPECT_EQ(both.exit_code, 1);
  expect_contains(both.error, "no scheme fits; ddp: cpu:");
  expect_lacks(both.error, "--mode ");
}

TEST_F(Compare, ShareOfDevice0NeedsBalanced) {
  const Arguments share = with(with({"compare"}, kQuick), words("--split gpu0=8 --modes dp,ddp"));
  const ChildResult result = run_vitrine(share);
  EXPECT_EQ(result.exit_code, 2);
  expect_contains(result.error, "--split gpu0=8: only balanced takes the share of device 0 alone");
}

TEST_F(Compare, ErrorsOf16BitsAreNotBlamedOnRelu) {
  const ChildResult result =
      run_vitrine(with(with({"compare"}, kQuick), words("--steps 2 --rounds 1 --modes ddp --precisions fp32,bf16")));
  expect_contains(result.output, "about 1e-6, in bf16 5e-2.");
}

TEST_F(Compare, ASingleRoundAndStepAreSingular) {
  const ChildResult result = run_vitrine(with(with({"compare"}, kQuick), words("--steps 2 --rounds 1 --modes ddp")));
  EXPECT_EQ(result.exit_code, 0) << result.error;
  expect_contains(result.output, "samples per step, 1 round of 1 step after the first");
}

TEST(Info, ListsBuiltInAndMissingParts) {
  const ChildResult result = run_vitrine(words("info --json"));
  ASSERT_EQ(result.exit_code, 0);
  const Json json = Json::parse(result.output);
  EXPECT_GE(json["cores"].size(), 1U);
  EXPECT_GT(json["memory"]["total_bytes"].get<int64_t>(), 0);
  EXPECT_FALSE(json["libraries"]["Eigen"].get<std::string>().empty());
  const auto& built_in = json["built_in"];
  const bool has_cuda = std::find(built_in.begin(), built_in.end(), "cuda") != built_in.end();
  EXPECT_NE(has_cuda, json["missing"].contains("cuda"));
  // Either there are GPUs, or the reason why not.
  const auto& cuda = json["cuda"];
  EXPECT_EQ(cuda["gpus"].empty(), !cuda["problem"].get<std::string>().empty());
  const ChildResult text = run_vitrine({"info"});
  EXPECT_EQ(text.exit_code, 0);
  expect_contains(text.output, cuda["gpus"].empty() ? cuda["problem"].get<std::string>() : "cuda:0");
}

}  // namespace
}  // namespace vitrine::test
