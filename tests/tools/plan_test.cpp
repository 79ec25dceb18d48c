// SPDX-License-Identifier: Apache-2.0
// vitrine plan, and what train chooses with it.
#include <algorithm>
#include <fstream>
#include <map>
#include <random>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "runtime/units.h"
#include "tests/data/temp_folder.h"
#include "tests/support/expect_contains.h"
#include "tests/support/paths.h"
#include "tests/tools/run_json.h"

namespace vitrine::test {
namespace {

using Json = nlohmann::json;

/// A train command without "train"; small enough for its epoch to take well below a second.
Arguments random_command(std::mt19937& random) {
  const auto pick = [&](const Arguments& values) { return values[random() % values.size()]; };
  const std::string model = pick({"mlp", "lenet5", "small-cnn", "small-cnn", "alexnet", "resnet18"});
  const int devices = std::vector<int>{1, 2, 4}[random() % 3];
  const std::string mode = pick({"dp", "balanced", "criterion", "ddp", "zero1", "zero2", "zero3"});
  const bool central = mode == "dp" || mode == "balanced" || mode == "criterion";
  const bool in_backward = random() % 3 == 0 && (!central || devices == 1);
  const bool exact = !in_backward && mode != "balanced" && random() % 3 == 0;
  const bool uneven = mode != "balanced" && devices > 1 && random() % 2 == 0;
  Arguments command = words(
      "--model {} --data synthetic:40 --devices {} --threads-per-device 1 --mode {} --batch-size 16 --optimizer {} "
      "--epochs 1 --accumulate {} --precision {} --recompute-segments {}",
      model, fmt::format("cpu:0-{}", devices - 1), mode, pick({"sgd", "adamw"}),
      in_backward ? "1" : pick(exact ? Arguments{"1", "2"} : Arguments{"1", "2", "3"}),
      in_backward ? pick({"fp32", "bf16"}) : pick({"fp32", "fp16", "bf16"}), pick({"1", "2", "3", "sqrt"}));
  if (in_backward) command.emplace_back("--update-in-backward");
  if (exact) command.emplace_back("--exact");
  if (uneven) command = with(command, words("--split {}", devices == 2 ? "3,5" : "4,0,7,5"));
  if (mode == "balanced") command = with(command, words("--split {}", devices == 1 ? "gpu0=16" : "gpu0=3"));
  if (model == "alexnet") command = with(command, words("--image-size 63"));
  if (model == "resnet18") command = with(command, words("--image-size 32"));
  return command;
}

TEST(Plan, EqualsWhatTrainMeasuresToTheByte) {
  std::mt19937 random(20261121);
  for (int draw = 0; draw < 16; ++draw) {
    const Arguments command = random_command(random);
    SCOPED_TRACE(fmt::format("{}", fmt::join(command, " ")));
    const Json plan = json_of(with({"plan"}, command)), run = json_of(with({"train"}, command));
    ASSERT_EQ(plan["devices"].size(), run["devices"].size());
    for (size_t d = 0; d < plan["devices"].size(); ++d) {
      const Json &planned = plan["devices"][d], &measured = run["devices"][d];
      EXPECT_EQ(planned["device"], measured["device"]);
      EXPECT_EQ(planned["peak_bytes"], measured["peak_bytes"]);
      EXPECT_EQ(planned["peak_bytes_by_category"], measured["peak_bytes_by_category"]);
      EXPECT_EQ(planned["samples_per_step"], measured["samples_per_step"]);
      EXPECT_EQ(measured["planned_peak_bytes"], measured["peak_bytes"]);
      EXPECT_EQ(measured["planned_peak_bytes_by_category"], measured["peak_bytes_by_category"]);
    }
  }
}

/// {"reduce bucket 0 cpu:1": bytes}: what collectives of a plan or a run sum or send in a step.
std::map<std::string, int64_t> collectives_of(const Json& json) {
  std::map<std::string, int64_t> bytes;
  for (const Json& row : json["communication"])
    bytes[fmt::format("{} {} {}", row["phase"].get<std::string>(), row["name"].get<std::string>(),
                      row["device"].get<std::string>())] = row["bytes_per_step"];
  return bytes;
}

TEST(Plan, MovesTheBytesThatTrainMeasures) {
  constexpr int64_t kTimedSteps = 3;  // after the first; no multiple of the copies that run ahead
  for (const std::string& mode : words("dp criterion ddp zero1 zero2 zero3")) {
    for (const char* model : {"small-cnn", "resnet18"}) {  // the second with batch norm
      if (std::string(model) == "resnet18" && mode != "dp" && mode != "ddp" && mode != "zero3") continue;
      const Arguments command = words(
          "--model {} --image-size 32 --data synthetic:96 --batch-size 10 --devices cpu:0-2 --threads-per-device "
          "1 --mode {} --split 3,2,5 --accumulate 2 --steps 4 --no-eval --workspace 8MiB",
          model, mode);
      SCOPED_TRACE(fmt::format("{}", fmt::join(command, " ")));
      const Json plan = json_of(with({"plan"}, command)), run = json_of(with({"train"}, command));
      const std::map<std::string, int64_t> planned = collectives_of(plan);
      EXPECT_FALSE(planned.empty());
      EXPECT_EQ(planned, collectives_of(run));
      std::map<std::string, int64_t> moved, measured;
      const auto add = [&](auto& to, const Json& row, int64_t bytes) {
        to[fmt::format("{} {}", row["phase"].get<std::string>(), row["device"].get<std::string>())] = bytes;
      };
      for (const Json& row : plan["moved"]) add(moved, row, row["bytes_per_step"].get<int64_t>() * kTimedSteps);
      for (const Json& row : run["phases"]) {
        // A copy that runs ahead may lie outside the measured steps.
        if (row["bytes"] > 0 && row["calls"].get<int64_t>() % kTimedSteps == 0) add(measured, row, row["bytes"]);
      }
      std::erase_if(moved, [&](const auto& row) {
        const bool ahead = row.first.starts_with("stage ") || row.first.starts_with("scatter ") ||
                           row.first.starts_with("broadcast ");  // of a shard, for the next step's forward pass
        return ahead && !measured.contains(row.first);
      });
      EXPECT_EQ(moved, measured);
    }
  }
}

TEST(Plan, ABucketHasItsSizeHoweverItIsSummed) {
  const auto buckets_of = [](const char* mode) {
    const Arguments command = words(
        "plan --model small-cnn --devices cpu:0-2 --threads-per-device 1 --batch-size 16 --no-eval --workspace 8MiB");
    std::map<std::string, int64_t> bytes;
    for (const auto& [name, size] : collectives_of(json_of(with(with(command, {"--mode"}), words(mode))))) {
      const size_t bucket = name.find("bucket ");
      if (name.starts_with("reduce ") && bucket != std::string::npos) bytes[name.substr(bucket)] = size;
    }
    return bytes;
  };
  const std::map<std::string, int64_t> all_reduced = buckets_of("ddp");
  ASSERT_EQ(all_reduced.size(), 6U);
  for (const char* mode : {"zero1", "zero2", "zero3", "ddp --exact", "zero1 --exact"}) {
    const std::map<std::string, int64_t> buckets = buckets_of(mode);
    ASSERT_EQ(buckets.size(), all_reduced.size()) << mode;
    for (const auto& [name, bytes] : all_reduced)  // what else a bucket sums, and what rounds shards up, is little
      EXPECT_NEAR(static_cast<double>(buckets.at(name)) / static_cast<double>(bytes), 1, 0.01) << mode << " " << name;
  }
}

const Arguments kSmall = words("--model small-cnn --data synthetic:300 --mode dp --no-eval");

/// It neither shrinks nor depends on the machine.
const Arguments kLeastWorkspace = words("--workspace 1MiB");

TEST(Plan, ThePlannedMemorySufficesAndOneByteLessDoesNot) {
  const Arguments command = with(with(kSmall, kLeastWorkspace), words("--devices cpu:0-1 --batch-size 24 --steps 2"));
  const Json devices = json_of(with({"plan"}, command))["devices"];
  const int64_t first = devices[0]["peak_bytes"], second = devices[1]["peak_bytes"];
  const auto train = [&](int64_t a, int64_t b) {
    return run_vitrine(with(with({"train"}, command), words("--device-memory {}", fmt::format("{},{}", a, b))));
  };
  EXPECT_EQ(train(first, second).exit_code, 0);
  const ChildResult less = train(first, second - 1);
  EXPECT_EQ(less.exit_code, 1);
  EXPECT_EQ(less.output, "");
  expect_contains(less.error, "cpu:1: out of memory. Tried to allocate", "What would fit: ", "--batch-size");
  const Json refused =
      json_of(with(with({"plan"}, command), words("--device-memory {}", fmt::format("{},{}", first - 1, second))), 1);
  EXPECT_EQ(refused["fits"], false);
  EXPECT_EQ(refused["devices"][0]["fits"], false);
  EXPECT_EQ(refused["devices"][1]["fits"], true);
  expect_contains(refused["remedies"], "--accumulate 2");
}

TEST(Plan, AWorkspaceThatShrinksIsToldWithWhatItCosts) {
  const Arguments command = words(
      "--model resnet18-cifar --data synthetic:4 --devices cpu:0 --batch-size 2 --no-eval --steps 1 "
      "--threads-per-device 1");
  const Json whole = json_of(with({"plan"}, command));
  const int64_t peak = whole["devices"][0]["peak_bytes"],
                workspace = whole["devices"][0]["peak_bytes_by_category"]["workspace"];
  const Arguments smaller = with(command, words("--device-memory {}", std::to_string(peak - workspace / 2)));
  const ChildResult plan = run_vitrine(with({"plan"}, smaller)), run = run_vitrine(with({"train"}, smaller));
  EXPECT_EQ(plan.exit_code, 0);
  EXPECT_EQ(run.exit_code, 0);
  if (workspace <= int64_t{1} << 20) GTEST_SKIP() << "convolutions of this build need no more than the least";
  for (const std::string& text : {plan.output, run.error}) {
    expect_contains(text, ", all that fits, so ", "conv2d_", ": the best algorithm needs ");
  }
  expect_contains(plan.output, "With less memory the workspace shrinks, to 1.0 MiB at least");
  const ChildResult given =
      run_vitrine(with(with({"plan"}, smaller), words("--workspace {}", std::to_string(workspace))));
  EXPECT_EQ(given.exit_code, 1) << "a given workspace does not shrink";
}

TEST(Plan, ListsWhatLayersHoldAndWhereThePeakIs) {
  const Json json = json_of(with(with({"plan"}, kSmall), words("--devices cuda:0-3 --batch-size 64")));
  ASSERT_EQ(json["devices"].size(), 4U);
  for (const Json& device : json["devices"]) {
    EXPECT_TRUE(device["peak"]["phase"] == "forward" || device["peak"]["phase"] == "backward") << device["peak"];
    EXPECT_FALSE(device["peak"]["layer"].get<std::string>().empty());
    EXPECT_EQ(device["held"][0]["layer"], "input");
    EXPECT_EQ(device["held"].back()["layer"], device["device"] == "cuda:0" ? "classifier.0" : "classifier.2");
    for (const Json& held : device["held"]) EXPECT_GT(held["bytes"].get<int64_t>(), 0);
    EXPECT_FALSE(device.contains("outside_bytes"));
  }
  const ChildResult text = run_vitrine(with(with({"plan"}, kSmall), words("--devices meta:0-3 --batch-size 64")));
  EXPECT_EQ(text.exit_code, 0);
  expect_contains(text.output, "meta:1 to meta:3", "What each device needs", "The same as bars", "P parameters",
                  "features.5", "total", "reached in", "What moves in a step", "broadcast");
  expect_lacks(text.output, "NCCL");
  const std::string on_gpus = run_vitrine(words("plan --model mlp --devices cuda:0-3 --mode dp --no-eval")).output;
  expect_contains(on_gpus, "exact for direct copies; NCCL: a chain, ");
}

TEST(Plan, SupportsSixtyFourDevicesWithTenGigabytesOfParametersEach) {
  const Json json = json_of(words("plan --model mlp --image-size 1810 --devices cuda:0-63 --batch-size 640"));
  ASSERT_EQ(json["devices"].size(), 64U);
  EXPECT_GT(json["devices"][63]["peak_bytes_by_category"]["parameters"].get<int64_t>(), 10'000'000'000);
}

TEST(Choose, TheLargestBatchRuns) {
  const Arguments devices = with(kLeastWorkspace, words("--devices cpu:0-2 --device-memory 24MiB,20MiB,12MiB"));
  const Arguments command = with(with(kSmall, devices), words("--batch-size max --steps 2"));
  const Json even = json_of(with(with({"train"}, command), words("--split auto"))),
             equal = json_of(with({"train"}, command));
  const int64_t most = even["config"]["batch_size"];
  EXPECT_GT(most, equal["config"]["batch_size"].get<int64_t>());
  EXPECT_GT(even["devices"][0]["samples_per_step"].get<int64_t>(),
            even["devices"][2]["samples_per_step"].get<int64_t>());
  const ChildResult told = run_vitrine(with(with({"plan"}, command), words("--split auto")));
  expect_contains(told.output, fmt::format("--batch-size {} --split ", most),
                  fmt::format("a batch of {} with its full workspace would be ", most + 1));
  const Arguments one_more = with(with(kSmall, devices), words("--batch-size {}", std::to_string(most + 1)));
  EXPECT_EQ(json_of(with(with({"plan"}, one_more), words("--split equal")), 1)["fits"], false);
}

TEST(Choose, TheModeThatFits) {
  const Arguments plan = words("plan --model alexnet --devices meta:0-3 --batch-size 64 --workspace 16MiB --no-eval");
  const auto peak = [&](const char* mode) {
    return json_of(with(plan, words("--mode {}", mode)))["devices"][0]["peak_bytes"].get<int64_t>();
  };
  const auto chosen = [&](int64_t bytes) {
    return json_of(with(plan, words("--mode auto --device-memory {}", std::to_string(bytes))))["config"]["mode"];
  };
  EXPECT_EQ(chosen(peak("ddp")), "ddp");
  EXPECT_EQ(chosen(peak("ddp") - 1), "zero1");
  EXPECT_EQ(chosen(peak("zero1") - 1), "zero2");
  const ChildResult none = run_vitrine(with(plan, words("--mode auto --device-memory 100MiB")));
  EXPECT_EQ(none.exit_code, 1);
  expect_contains(none.error, "--mode auto: no mode fits", "zero3: does not fit: ", " of 100.0 MiB, ", " missing\n");
  expect_contains(run_vitrine(with(plan, words("--mode auto --reduce-dtype f16 --device-memory 4GiB"))).output,
                  "--mode ddp, the first",
                  "zero2: not possible: --shard gradients: gradients are reduced to their owners");
}

/// What collectives of a plan move in a step through the link of the busiest device.
int64_t most_moved(const Json& plan) {
  std::map<std::string, int64_t> of_devices;
  for (const Json& row : plan["moved"]) {
    if (row["phase"] == "reduce" || row["phase"] == "broadcast")
      of_devices[row["device"]] += row["bytes_per_step"].get<int64_t>();
  }
  int64_t most = 0;
  for (const auto& [device, bytes] : of_devices) most = std::max(most, bytes);
  return most;
}

TEST(Choose, OrdersModesByWhatTheirPlansMove) {
  const Arguments plan = words(
      "plan --model small-cnn --devices meta:0-3 --batch-size 64 --workspace 16MiB --no-eval --accumulate 2 "
      "--device-memory 1GiB");
  for (const char* more : {"--bucket-mb 1", "--exact", "--precision bf16", "--reduce-dtype bf16"}) {
    SCOPED_TRACE(more);
    const Arguments command = with(plan, words(more));
    int64_t before = 0;
    const Json chosen = json_of(with(command, words("--mode auto")));
    for (const Json& note : chosen["notes"]) {
      const std::string line = note;
      const size_t end = line.find(": moves ");
      if (!line.starts_with("  ") || end == std::string::npos) continue;
      const int64_t moved = most_moved(json_of(with(command, words("--mode {}", line.substr(2, end - 2)))));
      expect_contains(line, fmt::format(": moves {} a step", format_bytes(moved)));
      EXPECT_GE(moved, before) << line;
      before = moved;
    }
    EXPECT_GT(before, 0);
  }
}

TEST(Plan, ComparesAStageWithTheOneBelow) {
  const Arguments plan = words("plan --model alexnet --devices meta:0-3 --batch-size 64 --workspace 16MiB --no-eval");
  const auto text = [&](const char* mode) { return run_vitrine(with(plan, words("--mode {}", mode))).output; };
  expect_contains(text("zero1"), "--shard optimizer saves ", " over --shard none: meta:0 holds ",
                  ", mostly optimizer (326.4 MiB less).", "Its collectives move 326.5 MiB a step, ");
  expect_contains(text("zero3"), "--shard parameters ", "Its collectives move ");
  expect_lacks(text("ddp"), "--shard");
  expect_contains(run_vitrine(words("plan --model lenet5 --devices meta:0 --mode zero1")).output,
                  "--shard optimizer saves nothing on one device");
  const Arguments small = words("--model lenet5 --image-size 12 --data synthetic:64 --batch-size 16 --devices cpu:0-1");
  const std::string planned = run_vitrine(with(with({"plan"}, small), words("--mode zero1"))).output,
                    moved = planned.substr(std::min(planned.size(), planned.find("Its collectives move ")));
  const Arguments compare = with(small, words("--steps 2 --rounds 1 --modes ddp,zero1"));
  expect_contains(run_vitrine(with({"compare"}, compare)).output, "--shard optimizer ", "over --shard none",
                  "Its collectives move ", moved.substr(0, moved.find(',')));
}

TEST(Plan, StatesAloneFollowTheFormulas) {
  for (const auto& [mode, whole, divided] :
       {std::tuple{"ddp", 16, 0}, {"zero1", 8, 8}, {"zero2", 4, 12}, {"zero3", 0, 16}}) {
    const Json plan =
        json_of(words("plan --model alexnet --devices meta:0-3 --batch-size 64 --mode {} --no-eval", mode));
    constexpr double kParameters = 57'044'810;
    const double expected = kParameters * (whole + divided / 4.0);
    for (const Json& device : plan["devices"])
      EXPECT_NEAR(device["states_bytes"].get<double>(), expected, 20'000)
          << mode << ": all own what is left of buckets";
  }
}

TEST(Plan, NamesReduceScattersAndAllGathers) {
  const auto names = [](const char* mode) {
    std::string text;
    const Json plan = json_of(words("plan --model mlp --devices meta:0-1 --mode {}", mode));
    for (const Json& row : plan["communication"]) text += row["name"].get<std::string>() + "\n";
    return text;
  };
  expect_contains(names("zero1"), "reduce-scatter of bucket 0\n", "all-gather of bucket 0\n");
  expect_contains(names("zero3"), "reduce-scatter of bucket 0\n", "all-gather of bucket 0\n");
  expect_lacks(names("ddp"), "-");
}

TEST(Plan, CountsBytesAlikeUnderEveryScheme) {
  const auto moved = [](const char* mode) {
    return static_cast<double>(most_moved(
        json_of(words("plan --model alexnet --devices meta:0-3 --batch-size 64 --mode {} --no-eval", mode))));
  };
  const double ddp = moved("ddp");
  EXPECT_NEAR(ddp, 2.0 * 57'044'810 * 4 * 3 / 4, 1000);
  EXPECT_NEAR(moved("zero1"), ddp, 1e-3 * ddp);
  EXPECT_NEAR(moved("zero2"), ddp, 1e-3 * ddp);
  EXPECT_NEAR(moved("zero3"), 1.5 * ddp, 0.1 * ddp) << "backward takes over the last buckets";
  EXPECT_NEAR(moved("dp"), 2.0 * 57'044'810 * 4 * 3, 1e-3 * ddp) << "device 0 exchanges all with each of the others";
}

TEST(Choose, TheModeIsMeasured) {
  const ChildResult run = run_vitrine(
      words("train --model mlp --data synthetic:96 --devices cpu:0-1 --batch-size 32 --steps 2 --no-eval --mode auto"));
  EXPECT_EQ(run.exit_code, 0);
  expect_contains(run.output, "--mode auto: --mode ", "the fastest of those that fit, measured", "  zero3: moves ",
                  " a step");
}

TEST(Choose, TheFewestMicroBatchesRun) {
  const Arguments command =
      with(with(kSmall, kLeastWorkspace), words("--devices cpu:0 --device-memory 30MiB --batch-size 200 --steps 2"));
  const Json json = json_of(with(with({"train"}, command), words("--accumulate auto")));
  const int64_t count = json["config"]["accumulate"];
  EXPECT_GT(count, 1);
  EXPECT_EQ(json_of(with(with({"plan"}, command), words("--accumulate {}", std::to_string(count - 1))), 1)["fits"],
            false);
}

TEST(Choose, RecomputationMakesItFit) {
  const TempFolder folder;
  const std::string file = folder.str() + "/chain.json";  // every layer keeps as much as the others
  std::string layers = R"({"type": "Flatten"})";
  for (int i = 0; i < 8; ++i) layers += R"(, {"type": "Linear", "out_features": 128}, {"type": "ReLU"})";
  std::ofstream(file) << R"({"input": [3, 8, 8], "layers": [)" << layers
                      << R"(, {"type": "Linear", "out_features": 10}]})";
  Arguments command =
      words("--model {} --data synthetic:300 --devices cpu:0 --batch-size 256 --steps 2 --no-eval", file);
  const int64_t less =
      json_of(with(with({"plan"}, command), words("--recompute-segments sqrt")))["devices"][0]["peak_bytes"];
  command = with(command, words("--device-memory {}", std::to_string(less)));
  EXPECT_EQ(json_of(with({"plan"}, command), 1)["fits"], false);
  const Json json = json_of(with(with({"train"}, command), words("--recompute-segments auto")));
  EXPECT_GT(json["config"]["recompute_segments"], 1);
  double recomputed = 0;
  for (const Json& row : json["phases"]) recomputed += row["phase"] == "recompute" ? row["seconds"].get<double>() : 0.0;
  EXPECT_GT(recomputed, 0.0);
}

// In small-cnn the largest tensors are those of one layer, of which recomputation saves none.
const Arguments kDeep = words(
    "--model resnet18 --image-size 32 --data synthetic:64 --devices cpu:0 --batch-size 16 --steps 2 --workspace 16MiB");

TEST(Plan, LayersInBlocksAreSummedUnderTheNameOfTheirBlock) {
  const std::string text = run_vitrine(with({"plan"}, kDeep)).output;
  expect_contains(text, "\nconv1 ", "\nlayer2.0 ");
  expect_lacks(text, "\nconv2 ");
  int64_t inside = 0;
  const Json json = json_of(with({"plan"}, kDeep));
  for (const Json& held : json["devices"][0]["held"])
    inside += held["layer"].get<std::string>().starts_with("layer2.0") ? held["bytes"].get<int64_t>() : 0;
  EXPECT_GT(inside, 0);
  expect_contains(text.substr(text.find("\nlayer2.0 ")), format_bytes(inside) + "\n");
}

TEST(Plan, ShowsWhatExactModeCosts) {
  const auto command = [](const char* devices) {
    return words("--model lenet5 --image-size 12 --data synthetic:64 --batch-size 16 --steps 2 --no-eval --devices {}",
                 devices);
  };
  const auto plan = [&](const char* devices, const char* more) {
    return json_of(with(with({"plan"}, command(devices)), words(more)));
  };
  const Json two = plan("cpu:0-1", "--exact"), three = plan("cpu:0-2", "--exact"), ordinary = plan("cpu:0-2", "");
  EXPECT_TRUE(ordinary["exact_price"].is_null());
  const auto ratio = [](const Json& of) {
    return of["exact_price"]["sent_bytes"].get<double>() / of["exact_price"]["ordinary_sent_bytes"].get<double>();
  };
  EXPECT_NEAR(ratio(two), 1.0, 0.03) << "and totals of leaves";
  const Json& price = three["exact_price"];
  EXPECT_NEAR(ratio(three), 1.5, 0.03) << "two nodes, [0,2) and [2,3), and the sum";
  for (const char* mode : {"ddp", "zero2", "zero3"}) {
    const std::string options = fmt::format("--accumulate 2 --mode {}", mode);
    const Json exact = plan("cpu:0-2", (options + " --exact").c_str());
    const auto reduced = [](const Json& of) {
      std::map<std::string, int64_t> bytes;
      for (const Json& row : of["moved"])
        if (row["phase"] == "reduce") bytes[row["device"]] = row["bytes_per_step"];
      return std::ranges::max_element(bytes, {}, [](const auto& one) { return one.second; })->second;
    };
    EXPECT_EQ(exact["exact_price"]["sent_bytes"], reduced(exact)) << mode;
    EXPECT_EQ(exact["exact_price"]["ordinary_sent_bytes"], reduced(plan("cpu:0-2", options.c_str()))) << mode;
  }
  EXPECT_EQ(price["peak_bytes"], three["devices"][0]["peak_bytes"]);
  EXPECT_EQ(price["ordinary_peak_bytes"], ordinary["devices"][0]["peak_bytes"]);
  EXPECT_EQ(price["added_seconds"], 0.0);
  Json trained = json_of(with(with({"train"}, command("cpu:0-2")), {"--exact"}))["exact_price"];
  EXPECT_GT(trained["added_seconds"], 0.0);
  trained["added_seconds"] = 0.0;
  EXPECT_EQ(trained, price);
}

TEST(Plan, FrontierListsWhatRecomputationSavesAndCosts) {
  const Json none = json_of(with({"plan"}, kDeep));
  EXPECT_TRUE(none["frontier"].is_null());
  EXPECT_EQ(none["config"]["recompute"], Json::array());
  const Json json = json_of(with(with({"plan"}, kDeep), words("--frontier")));
  const Json& rows = json["frontier"];
  ASSERT_GE(rows.size(), 3U);
  EXPECT_EQ(rows[0]["recompute"], Json::array());
  EXPECT_EQ(rows[0]["peak_bytes"], none["devices"][0]["peak_bytes"]);
  EXPECT_EQ(rows[0]["added_time"], 0.0);
  for (size_t i = 1; i < rows.size(); ++i) {
    EXPECT_LT(rows[i]["peak_bytes"].get<int64_t>(), rows[i - 1]["peak_bytes"].get<int64_t>());
    EXPECT_GT(rows[i]["added_time"].get<double>(), rows[i - 1]["added_time"].get<double>());
  }
  // A row can be given as it is.
  const std::vector<std::string> parts = rows[1]["recompute"];
  const Json given =
      json_of(with(with({"plan"}, kDeep), words("--recompute {}", fmt::format("{}", fmt::join(parts, ",")))));
  EXPECT_EQ(given["devices"][0]["peak_bytes"], rows[1]["peak_bytes"]);
  EXPECT_EQ(given["config"]["recompute"], parts);
  const Arguments limited =
      with(kDeep, words("--device-memory {}", std::to_string(rows[1]["peak_bytes"].get<int64_t>())));
  const ChildResult text = run_vitrine(with(with({"plan"}, limited), words("--frontier")));
  EXPECT_EQ(text.exit_code, 1) << text.error;
  for (const char* shown : {"What recomputation saves and costs", "(nothing)", "yes, with least time"})
    expect_contains(text.output, shown);
}

TEST(Choose, RecomputedPartsAreTheCheapestThatFitAndRunAsPlanned) {
  const Json rows = json_of(with(with({"plan"}, kDeep), words("--frontier")))["frontier"];
  const Arguments command =
      with(kDeep, words("--device-memory {}", std::to_string(rows[1]["peak_bytes"].get<int64_t>())));
  const Json json = json_of(with(with({"train"}, command), words("--recompute auto")));
  EXPECT_FALSE(json["config"]["recompute"].empty());
  EXPECT_EQ(json["devices"][0]["peak_bytes"], json["devices"][0]["planned_peak_bytes"]);
  expect_contains(json["notes"][0], "more time in forward and backward");
  double recomputed = 0;
  for (const Json& row : json["phases"]) recomputed += row["phase"] == "recompute" ? row["seconds"].get<double>() : 0.0;
  EXPECT_GT(recomputed, 0.0);
  // The same training as without recomputation.
  EXPECT_EQ(json["step_losses"], json_of(with({"train"}, kDeep))["step_losses"]);
  const Json roomy = json_of(with(with({"plan"}, kDeep), words("--recompute auto")));
  EXPECT_EQ(roomy["config"]["recompute"], Json::array());
}

TEST(Plan, WideOutputsFillTheFirstDeviceUnlessTheLossIsParallel) {
  const auto activations = [](const Arguments& more, size_t device) {
    const Json json = json_of(with(words("plan --model wide-head --devices cuda:0-3 --batch-size 32 --no-eval"), more));
    return json["devices"][device]["peak_bytes_by_category"]["activations"].get<double>();
  };
  EXPECT_LT(activations(words("--classes 4"), 0), 1e9);
  constexpr double kOutputs = 32.0 * 250 * 40000 * 4;  // 1.28 GB
  const double dp = activations(words("--mode dp"), 0),
               apart = activations(words("--mode dp --loss-gradient apart"), 0);
  EXPECT_GT(dp, kOutputs);
  EXPECT_LT(dp, 1.5 * kOutputs);
  EXPECT_GT(apart, 2 * kOutputs);
  EXPECT_LT(activations(words("--mode criterion"), 0), 0.5 * kOutputs);
  EXPECT_LT(activations(words("--mode dp"), 1), 0.5 * kOutputs);
}

TEST(Choose, ReportsWhyNothingFits) {
  const ChildResult result =
      run_vitrine(with(with({"train"}, kSmall), words("--devices cpu:0 --device-memory 8MiB --batch-size max")));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.output, "");
  expect_contains(result.error, "--batch-size max: nothing fits", "too much", "--device-memory");
}

TEST(Choose, BalancesMeasuredTimes) {
  const Json json = json_of(
      with(with({"train"}, kSmall), words("--devices cpu:0-1 --split auto --balance time --batch-size 24 --steps 2")));
  EXPECT_EQ(
      json["devices"][0]["samples_per_step"].get<int64_t>() + json["devices"][1]["samples_per_step"].get<int64_t>(),
      24);
  std::string notes;
  for (const Json& note : json["notes"]) notes += note.get<std::string>() + "\n";
  expect_contains(notes, "--balance time: 24 samples as 12+12 take ", "fitted: cpu:0 ");
  EXPECT_EQ(json["step_losses"].size(), 2U);
}

TEST(Choose, KeepsTheEqualSplitOfSmallBatches) {
  const Json json = json_of(
      with(with({"train"}, kSmall), words("--devices cpu:0-1 --split auto --balance time --batch-size 3 --steps 2")));
  expect_contains(json["notes"][0], "the equal split stays");
  EXPECT_EQ(json["devices"][0]["samples_per_step"], 2);
}

TEST(Plan, OfOneOfSeveralProcessesIncludesTheirExchange) {
  const Arguments command = with(kSmall, words("--devices cpu:0 --batch-size 16 --steps 2 --mode ddp"));
  const Json alone = json_of(with({"plan"}, command)),
             first = json_of(with(with({"plan"}, command), words("--processes 2")));
  EXPECT_EQ(first["devices"][0]["samples_per_step"], 8);
  EXPECT_EQ(alone["devices"][0]["peak_bytes_by_category"]["communication"], 0);
  EXPECT_GT(first["devices"][0]["peak_bytes_by_category"]["communication"], 0);
  const Arguments search =
      with(kSmall, words("--devices cpu:0 --mode ddp --device-memory 20MiB --processes 2 --batch-size"));
  const int64_t most = json_of(with(with({"plan"}, search), {"max"}))["config"]["batch_size"];
  EXPECT_EQ(json_of(with(with({"plan"}, search), {std::to_string(most)}))["fits"], true);
  EXPECT_EQ(json_of(with(with({"plan"}, search), {std::to_string(most + 2)}), 1)["fits"],
            false);  // a sample more for each process
}

TEST(Plan, OfSeveralProcessesIsThatOfTheFullest) {
  const Arguments command = words(
      "--model small-cnn --data synthetic:80 --devices cpu:0 --threads-per-device 1 --steps 2 --no-eval --split 1,9 "
      "--processes 2");
  const Json open = json_of(with({"plan", "--batch-size", "40"}, command));
  EXPECT_EQ(open["processes"], 2);
  ASSERT_EQ(open["devices"].size(), 2U);
  EXPECT_EQ(open["devices"][0]["device"], "rank 1 cpu:0");
  EXPECT_EQ(open["devices"][1]["device"], "rank 0 cpu:0");
  EXPECT_EQ(open["devices"][0]["samples_per_step"], 36);
  const auto peak = open["devices"][0]["peak_bytes"].get<int64_t>();
  EXPECT_GT(peak, 15 << 20);
  EXPECT_LT(open["devices"][1]["peak_bytes"], 15 << 20);
  // The capacity is that of each device, so the fullest one decides.
  const Json tight = json_of(with({"plan", "--batch-size", "40", "--device-memory", "15MiB"}, command), 1);
  EXPECT_EQ(tight["fits"], false);
  EXPECT_EQ(tight["devices"][0]["fits"], false);
  EXPECT_EQ(tight["devices"][1]["fits"], true);
  EXPECT_TRUE(tight["remedies"].is_string());
  const Arguments search = with(command, words("--workspace 1MiB --device-memory 15MiB --batch-size"));
  const Json most = json_of(with(with({"plan"}, search), {"max"}));
  EXPECT_EQ(most["fits"], true);
  const int64_t batch = most["config"]["batch_size"];
  EXPECT_LT(batch, 40);
  EXPECT_EQ(json_of(with(with({"plan"}, search), {std::to_string(batch + 1)}), 1)["fits"], false);
  // Devices that are equal have one column: device 0 of each process, and device 1.
  const ChildResult equal = run_vitrine(words(
      "plan --model mlp --data synthetic:80 --devices cpu:0-1 --threads-per-device 1 --batch-size 40 --processes 4"));
  EXPECT_EQ(equal.exit_code, 0) << equal.error;
  expect_contains(equal.output, "; 4 processes");
  expect_contains(equal.output, "rank 0 cpu:0 to rank 3 cpu:0  rank 0 cpu:1 to rank 3 cpu:1");
}

/// One check for both: what plan accepts, train does not refuse.
TEST(Plan, RefusesAWorkspaceThatTrainWouldRefuse) {
  const Arguments command = words(
      "--model alexnet --image-size 71 --precision fp16 --devices cpu:0 --threads-per-device 1 --batch-size 6 --data "
      "synthetic:6 --steps 1 --no-eval --workspace");
  const ChildResult plan = run_vitrine(with(with({"plan"}, command), {"1MiB"})),
                    train = run_vitrine(with(with({"train"}, command), {"1MiB"}));
  EXPECT_EQ(plan.exit_code, 1);
  EXPECT_EQ(train.exit_code, 1);
  expect_contains(plan.error, " needs a workspace of at least ", "but 1048576 bytes are reserved", "--workspace ");
  const std::string refusal = plan.error.substr(plan.error.find("conv2d_"));
  expect_contains(train.error, refusal);
  // The remedy is enough for every operation.
  const std::string proposal = "reserve more with --workspace ";
  const size_t at = plan.error.find(proposal);
  ASSERT_NE(at, std::string::npos) << plan.error;
  const std::string size = plan.error.substr(
      at + proposal.size(), plan.error.find_first_of(" \n", at + proposal.size()) - at - proposal.size());
  EXPECT_EQ(run_vitrine(with(with({"plan"}, command), {size})).exit_code, 0) << size;
  EXPECT_EQ(run_vitrine(with(with({"train"}, command), {size})).exit_code, 0) << size;
}

TEST(Program, RefusesToRecordStepsBeyondTheRun) {
  const ChildResult result = run_vitrine(
      with(with({"train"}, kSmall), words("--devices cpu:0 --steps 1 --record-steps 5-9 --report unwritten.html")));
  EXPECT_EQ(result.exit_code, 2);
  expect_contains(result.error, "the run has 1 step");
}

TEST(Program, RefusesTwoOutputsInOneFile) {
  const ChildResult result = run_vitrine(words("train --save x.out --report ./x.out"));
  EXPECT_EQ(result.exit_code, 2);
  expect_contains(result.error, "--save and --report name one file");
  const ChildResult averages = run_vitrine(words("train --ema 0.9 --save x.safetensors --log x.ema.safetensors"));
  EXPECT_EQ(averages.exit_code, 2);
  expect_contains(averages.error, "--ema and --log name one file");
  const TempFolder folder;
  std::ofstream(folder.path("a.jsonl")) << "";
  std::filesystem::create_hard_link(folder.path("a.jsonl"), folder.path("b.jsonl"));
  const ChildResult linked =
      run_vitrine(words("train --log {} --hashes {}", folder.path("a.jsonl"), folder.path("b.jsonl")));
  EXPECT_EQ(linked.exit_code, 2);
  expect_contains(linked.error, "--log and --hashes name one file");
}

void expect_usage_error(const Arguments& arguments, const std::string& part) {
  const ChildResult result = run_vitrine(arguments);
  EXPECT_EQ(result.exit_code, 2) << result.error;
  EXPECT_EQ(result.output, "");
  expect_contains(result.error, part);
}

TEST(Plan, RecomputedPartsAreRefusedUnlessTheyExist) {
  const ChildResult result = run_vitrine(words("plan --model mlp --devices cpu:0 --recompute conv9"));
  EXPECT_EQ(result.exit_code, 2);
  expect_contains(result.error, "--recompute: 'conv9' is no part of the model");
}

TEST(Choose, RefusesContradictions) {
  expect_usage_error(words("train --batch-size most"),
                     "vitrine train: --batch-size: expected an integer from 1 to 1099511627776 or max, got 'most'");
  expect_usage_error(words("train --batch-size 0"),
                     "--batch-size: expected an integer from 1 to 1099511627776 or max, got '0'");
  expect_usage_error(words("train --accumulate -1"),
                     "--accumulate: expected an integer from 1 to 1048576 or auto, got '-1'");
  expect_usage_error(words("train --batch-size max --accumulate auto"), "give one of them a number");
  expect_usage_error(words("train --gpu0-bsz 4 --split auto"), "both give the split");
  expect_usage_error(words("train --balance time"), "add --split auto");
  expect_usage_error(words("plan --split auto --balance time"), "a plan measures no time");
  expect_usage_error(words("compare --batch-size max"), "--batch-size");
}

/// The file that docs/model_files.md shows.
std::string documented_model() {
  std::ifstream page(test::source_path("docs/model_files.md"));
  std::string text;
  for (std::string line; std::getline(page, line);) {
    if (line == "    {" || !text.empty()) text += line + "\n";
    if (line == "    }") break;
  }
  return text;
}

TEST(ModelFiles, ArePlannedForMachinesThatAreNotHereAndTrained) {
  const TempFolder folder;
  const std::string file = folder.str() + "/my_net.json";
  std::ofstream(file) << documented_model();
  const Json gpus = json_of(words("plan --model {} --devices cuda:0-3 --mode dp", file));
  EXPECT_EQ(gpus["config"]["model"], "my-net");
  EXPECT_GT(gpus["devices"][0]["peak_bytes"], gpus["devices"][1]["peak_bytes"]);
  const Arguments small =
      words("--model {} --devices cpu:0-1 --threads-per-device 1 --data synthetic:40 --batch-size 16", file);
  const Json plan = json_of(with({"plan"}, small));
  const Json run = json_of(with(words("train --epochs 1"), small));
  for (size_t d = 0; d < 2; ++d) {
    EXPECT_EQ(run["devices"][d]["peak_bytes"], run["devices"][d]["planned_peak_bytes"]);
    EXPECT_EQ(run["devices"][d]["peak_bytes"], plan["devices"][d]["peak_bytes"]);
  }
  for (const Arguments& flag : {words("--image-size 16"), words("--classes 16"), words("--dropout 0.5")}) {
    expect_contains(run_vitrine(with(with({"plan"}, flag), small)).error,
                    fmt::format("{}: the file {} sets it", flag[0], file));
  }
  expect_contains(run_vitrine(words("plan --model mini.jso")).error, "nano-gpt, FILE.json");
}

TEST(ModelFiles, MustMatchTheDataExceptThatAPlanDrawsNone) {
  const TempFolder folder;
  const std::string file = folder.str() + "/gray.json";
  std::ofstream(file)
      << R"({"input": [1, 8, 8], "layers": [{"type": "Flatten"}, {"type": "Linear", "out_features": 2}]})";
  const ChildResult channels = run_vitrine(words("train --model {} --data synthetic:40", file));
  EXPECT_EQ(channels.exit_code, 2);
  expect_contains(channels.error, "it takes images with 1 channels, but synthetic",
                  "has images with 3; change \"input\" and the first layer, or choose another --data");
  EXPECT_EQ(run_vitrine(words("plan --model {} --devices cpu:0-1", file)).exit_code, 0);
  std::ofstream(file)
      << R"({"input": [3, 8, 8], "layers": [{"type": "Flatten"}, {"type": "Linear", "out_features": 2}]})";
  const ChildResult classes = run_vitrine(words("train --model {} --data synthetic:40", file));
  expect_contains(classes.error, "its output has 2 classes, but synthetic",
                  "has labels of 10; give the last layer at least 10 outputs, or choose another --data");
  std::ofstream(file) << R"({"input": [3, 8, 8], "layers": [{"type": "Mamba"}]})";
  const ChildResult unknown = run_vitrine(words("plan --model {}", file));
  EXPECT_EQ(unknown.exit_code, 1);
  expect_contains(unknown.error, "layer 0 (Mamba 0): layer type 'Mamba' is not supported");
}

}  // namespace
}  // namespace vitrine::test
