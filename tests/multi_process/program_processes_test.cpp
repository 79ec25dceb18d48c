// SPDX-License-Identifier: Apache-2.0
// The program in four processes gives the results of one process with four devices.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include <nlohmann/json.hpp>

#include "tests/multi_process/mpirun.h"
#include "tests/support/expect_contains.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test::program_processes_test {
namespace {

using Json = nlohmann::json;

// The test set has 43 more. Neither number is divisible by four.
const Command kJob = words("--model small-cnn --data synthetic:215 --threads-per-device 1 --batch-size 32");

Json parse(const ChildResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.error;
  return Json::parse(result.output);
}

Json in_one_process(const std::string& command, const Command& arguments) {
  return parse(run_vitrine(with(with({command}, kJob), with(arguments, words("--devices cpu:0-3 --json")))));
}

/// What rank 0 prints. It writes to a file: mpirun of Open MPI 5 may put the beginning of its output on stderr.
Json parse_output(std::vector<Command> commands) {
  const TempFolder folder;
  for (Command& command : commands) command = with_output_in(folder.str(), command);
  ChildResult result = mpirun(commands);
  result.output = content(folder.path("out.0"));
  result.error += content(folder.path("err.0"));
  return parse(result);
}

Json in_processes(int processes, const std::string& command, const Command& arguments) {
  const Command all = vitrine_command(with(with({command}, kJob), with(arguments, words("--json"))));
  return parse_output({static_cast<size_t>(processes), all});
}

class Processes : public MpirunTest {
 protected:
  TempFolder folder_;
};

TEST_F(Processes, HaveTheHashOfOneDeviceInExactMode) {
  const Command training = {"--exact", "--steps", "9"};  // one whole epoch, and its evaluation
  const auto bits = [](const Json& json) {
    EXPECT_TRUE(json["state_hash"].is_string());
    EXPECT_TRUE(json["epochs"].back()["test_loss"].is_number());
    return std::pair(json["state_hash"], json["epochs"].back()["test_loss"]);
  };
  const auto in_one = [&](const std::string& devices) {
    return bits(parse(run_vitrine(with(with({"train"}, kJob), with(training, {"--devices", devices, "--json"})))));
  };
  const auto expected = in_one("cpu:0");
  EXPECT_EQ(in_one("cpu:0-2"), expected);
  EXPECT_EQ(bits(in_processes(4, "train", training)), expected);
  EXPECT_EQ(bits(in_processes(2, "train", with(training, {"--devices", "cpu:0-2", "--accumulate", "2"}))), expected);
}

TEST_F(Processes, TrainLikeOneProcess) {
  const Command training = words("--epochs 2 --accumulate 2");
  const Json one = in_one_process("train", training);
  const Json four = in_processes(4, "train", with(training, words("--verify-replicas 2")));
  EXPECT_EQ(one["processes"], 1);
  EXPECT_EQ(four["processes"], 4);
  ASSERT_EQ(one["step_losses"].size(), 14U);  // six full batches and one of 23, twice
  ASSERT_EQ(four["step_losses"].size(), one["step_losses"].size());
  for (size_t i = 0; i < one["step_losses"].size(); ++i) {
    const double loss = one["step_losses"][i];
    EXPECT_NEAR(four["step_losses"][i].get<double>(), loss, 1e-5 * loss) << "step " << i;
  }
  for (size_t i = 0; i < 2; ++i) {
    const Json& expected = one["epochs"][i];
    const Json& found = four["epochs"][i];
    EXPECT_EQ(found["samples"], expected["samples"]);
    EXPECT_EQ(found["test_accuracy"], expected["test_accuracy"]);
    EXPECT_NEAR(found["test_loss"].get<double>(), expected["test_loss"].get<double>(), 1e-5);
    EXPECT_NEAR(found["train_loss"].get<double>(), expected["train_loss"].get<double>(), 1e-5);
  }
}

/// The collective that a sum over 65 buffers needs, through all layers of communication.
TEST_F(Processes, SixtyFiveReduceTogether) {
  const ChildResult result =
      mpirun(65, vitrine_command(words("collectives all_reduce -b 8 -e 8 --iters 2 --warmup_iters 1")));
  EXPECT_EQ(result.exit_code, 0) << result.error;
  expect_contains(result.output, "Every result was right");
}

/// Each process holds all training images on its device, and gathers its own rows of each batch.
TEST_F(Processes, TrainOnImagesOfTheirDevicesWithTheSameBits) {
  const Command training = words("--epochs 2 --augment flip,crop:3 --devices cpu:0");
  const Json host = in_processes(3, "train", training);
  const Json device = in_processes(3, "train", with(training, words("--data-on-device on")));
  EXPECT_EQ(device["step_losses"], host["step_losses"]);
  EXPECT_EQ(device["epochs"][1]["test_loss"], host["epochs"][1]["test_loss"]);
  ASSERT_EQ(device["devices"].size(), 3U);
  for (const Json& d : device["devices"]) {
    EXPECT_GE(d["peak_bytes_by_category"]["dataset"], 215 * 32 * 32 * 3);
    EXPECT_EQ(d["peak_bytes"], d["planned_peak_bytes"]);
  }
}

/// The plateau is reached in every epoch, because only a test loss ten times smaller would be an improvement.
TEST_F(Processes, FollowLearningRateSchedulesToTheSameWeights) {
  const Command sgd = words("--epochs 3 --optimizer sgd --lr 0.02 --momentum 0.8");
  const auto weights_of = [&](const std::string& name, int processes, const Command& schedule) {
    const std::string file = folder_.path(name);
    const Command training =
        with(with(sgd, schedule), words("--devices {} --save {} --json", processes == 1 ? "cpu:0-1" : "cpu:0", file));
    const Command command = vitrine_command(with(with({"train"}, kJob), training));
    processes == 1 ? parse(ChildProcess(command).wait()) : parse_output({2, command});
    return content(file);
  };
  const std::string constant = weights_of("constant", 1, {});
  ASSERT_FALSE(constant.empty());
  for (const Command& schedule :
       {words("--lr-schedule one-cycle"), words("--lr-schedule plateau --lr-patience 0 --lr-threshold 0.9")}) {
    const std::string one = weights_of("one", 1, schedule);
    EXPECT_TRUE(weights_of("two", 2, schedule) == one) << schedule[1];
    EXPECT_FALSE(one == constant) << schedule[1] << " changes nothing";
  }
}

TEST_F(Processes, StopTogetherWhenTrainingDiverges) {
  const std::string weights = folder_.path("w.safetensors");
  const Command training =
      vitrine_command(with(with({"train"}, kJob), words("--steps 20 --no-eval --lr 1e30 --save {} --json", weights)));
  const ChildResult result = mpirun(3, with_output_in(folder_.str(), training));
  EXPECT_EQ(result.exit_code, 1) << result.error;
  const std::string error = content(folder_.path("err.0"));
  expect_contains(error, "training has diverged: the ", "first in the output of ");
  EXPECT_EQ(error.find("training has diverged"), error.rfind("training has diverged")) << error;
  for (const char* others : {"err.1", "err.2"}) {
    EXPECT_EQ(content(folder_.path(others)).find("training has diverged"), std::string::npos) << "one rank says it";
  }
  EXPECT_TRUE(Json::parse(content(folder_.path("out.0")))["diverged"].is_string());
  EXPECT_FALSE(content(weights).empty());
}

TEST_F(Processes, NameWhatAnUpdateInBackwardHasChanged) {
  const auto training = [&](const Command& more) {
    return vitrine_command(with(with({"train"}, kJob),
                                with(words("--mode zero2 --update-in-backward --bucket-mb 0.01 --no-eval --optimizer "
                                           "adamw --weight-decay 1 --checkpoint-every 1 --checkpoint-dir {}",
                                           folder_.path("c")),
                                     more)));
  };
  ASSERT_EQ(mpirun(2, training(words("--steps 2 --lr 0.001"))).exit_code, 0);
  const ChildResult result =
      mpirun(2, with_output_in(folder_.str(), training(words("--steps 4 --lr 3e38 --resume auto"))));
  EXPECT_EQ(result.exit_code, 1) << result.error;
  expect_contains(content(folder_.path("err.0")), "the gradient or the update of step 3 is not finite",
                  "Backward has updated ", "the last one is that of step 2, from which this run continued");
}

/// Every process, not only the first: under exact mode and unequal splits it is not the fullest.
TEST_F(Processes, HoldWhatIsPlanned) {
  struct Case {
    int processes;
    const char* flags;
    const char* fullest;
  };
  for (const auto& [processes, flags, fullest] :
       {Case{2, "--devices cpu:0 --mode zero1 --precision bf16 --split 3,5", "rank 1 cpu:0"},
        {2, "--devices cpu:0-1 --mode ddp --split 1,2,9,4", "rank 1 cpu:0"},
        {3, "--devices cpu:0 --mode ddp --exact --leaves 7", ""},
        {2, "--devices cpu:0 --mode zero2 --exact --accumulate 2", ""},
        {2, "--devices cpu:0 --mode zero3 --update-in-backward", ""}}) {
    SCOPED_TRACE(flags);
    const Command options = with(words(flags), words("--steps 2 --no-eval"));
    const Json run = in_processes(processes, "train", options);
    const Json plan = parse(run_vitrine(
        with(with({"plan"}, kJob), with(options, words("--processes {} --json", std::to_string(processes))))));
    ASSERT_EQ(plan["devices"].size(), run["devices"].size());
    std::map<std::string, Json> planned;
    for (const Json& device : plan["devices"]) planned[device["device"]] = device;
    for (const Json& device : run["devices"]) {
      const Json& plan_of = planned.at(device["device"]);
      for (const char* const key : {"samples_per_step", "peak_bytes", "peak_bytes_by_category"})
        EXPECT_EQ(device[key], plan_of[key]) << device["device"];
      EXPECT_EQ(device["peak_bytes"], device["planned_peak_bytes"]);
      EXPECT_LE(device["peak_bytes"], plan["devices"][0]["peak_bytes"]);
    }
    EXPECT_TRUE(*fullest == 0 || plan["devices"][0]["device"] == fullest) << plan["devices"][0]["device"];
  }
}

/// Leaves of unequal sizes, of which no process has all, and products whose library chooses by its scratch.
TEST_F(Processes, HaveOneHashWhateverTheirLeavesNeed) {
  const Command job = words(
      "train --model mlp --image-size 24 --precision fp16 --leaves 3 --batch-size 17 --data synthetic:51 --steps 3 "
      "--exact --no-eval --threads-per-device 1 --devices cpu:0 --json");
  const Json alone = parse(run_vitrine(job));
  EXPECT_EQ(parse_output({3, vitrine_command(job)})["state_hash"], alone["state_hash"]);
  EXPECT_EQ(parse_output({2, vitrine_command(job)})["state_hash"], alone["state_hash"]);
}

TEST_F(Processes, StopTogetherWhenAnEvaluationIsNotFinite) {
  const Command training =
      vitrine_command(words("train --model mlp --data synthetic:64 --threads-per-device 1 --steps 1 --lr 1e30 --json"));
  const ChildResult result = mpirun(2, with_output_in(folder_.str(), training));
  EXPECT_EQ(result.exit_code, 1) << result.error;
  const std::string error = content(folder_.path("err.0"));
  expect_contains(error, "training has diverged: the test loss after step 1");
  EXPECT_EQ(content(folder_.path("err.1")).find("training has diverged"), std::string::npos) << "one rank says it";
  EXPECT_TRUE(Json::parse(content(folder_.path("out.0")))["diverged"].is_string());
}

TEST_F(Processes, ListTheDevicesOfAllRanks) {
  const Json json = in_processes(2, "train", words("--devices cpu:0-1 --steps 3 --split 3,0,2,1"));
  const std::vector<std::string> names = {"rank 0 cpu:0", "rank 0 cpu:1", "rank 1 cpu:0", "rank 1 cpu:1"};
  const std::vector<int> samples = {16, 0, 11, 5};
  ASSERT_EQ(json["devices"].size(), names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    const Json& device = json["devices"][i];
    EXPECT_EQ(device["device"], names[i]);
    EXPECT_EQ(device["samples_per_step"], samples[i]);
    EXPECT_GT(device["peak_bytes"].get<int64_t>(), 0);
    EXPECT_EQ(device["peak_bytes"], device["planned_peak_bytes"]);
  }
  std::set<std::string> with_phases;
  for (const Json& row : json["phases"]) with_phases.insert(row["device"].get<std::string>());
  EXPECT_EQ(with_phases, std::set<std::string>(names.begin(), names.end()));
}

TEST_F(Processes, EvaluateEverySampleOnce) {
  const std::string weights = folder_.path("w.safetensors");
  const Json trained = in_processes(4, "train", words("--epochs 1 --save {}", weights));
  const Command evaluation = words("--weights {} --save-logits", weights);
  const Json one = in_one_process("eval", with(evaluation, {folder_.path("one.npy")}));
  const Json four = in_processes(4, "eval", with(evaluation, {folder_.path("four.npy")}));
  const Json three = in_processes(3, "eval", with(evaluation, {folder_.path("three.npy"), "--devices", "cpu:0-1"}));
  for (const Json* json : {&one, &four, &three}) {
    EXPECT_EQ((*json)["samples"], 43);
    EXPECT_EQ((*json)["test_accuracy"], trained["epochs"][0]["test_accuracy"]);
    EXPECT_NEAR((*json)["test_loss"].get<double>(), trained["epochs"][0]["test_loss"].get<double>(), 1e-5);
  }
  EXPECT_EQ(four["devices"].size(), 4U);
  EXPECT_EQ(three["devices"].size(), 6U);
  EXPECT_FALSE(content(folder_.path("one.npy")).empty());
  EXPECT_EQ(content(folder_.path("four.npy")), content(folder_.path("one.npy")));
  EXPECT_EQ(content(folder_.path("three.npy")).size(), content(folder_.path("one.npy")).size());
}

TEST_F(Processes, StartFromTheWeightsOfRankZero) {
  const std::string weights = folder_.path("w.safetensors");
  in_one_process("train", words("--steps 2 --seed 5 --save {}", weights));
  // Rank 1 does not find this file on its machine, and does not need it.
  const auto start = [](const std::string& file) {
    return vitrine_command(
        with(with({"train"}, kJob),
             words("--steps 2 --devices cpu:0-1 --init-weights {} --json --verify-replicas 1", file)));
  };
  const Json two = parse_output({start(weights), start(folder_.path("nothing"))});
  const Json one = in_one_process("train", words("--steps 2 --init-weights {}", weights));
  for (size_t i = 0; i < 2; ++i) {
    const double loss = one["step_losses"][i];
    EXPECT_NEAR(two["step_losses"][i].get<double>(), loss, 1e-5 * loss);
  }
}

TEST_F(Processes, WriteOneTraceEach) {
  in_processes(2, "train", words("--steps 2 --trace {}", folder_.path("t.json")));
  for (const char* name : {"t.json", "t.rank1.json"})
    EXPECT_FALSE(Json::parse(content(folder_.path(name)))["traceEvents"].empty()) << name;
}

TEST_F(Processes, LogsHaveTheMemoryOfAllRanks) {
  const std::string events = folder_.path("events");
  const Json json =
      in_processes(2, "train", words("--steps 2 --log {} --tensorboard {}", folder_.path("log.jsonl"), events));
  Json epoch;
  std::ifstream file(folder_.path("log.jsonl"));
  for (std::string line; std::getline(file, line);) {
    Json row = Json::parse(line);
    if (row["kind"] == "epoch") epoch = row;
  }
  std::string written;
  for (const auto& entry : std::filesystem::directory_iterator(events)) written += content(entry.path().string());
  ASSERT_EQ(json["devices"].size(), 2U);
  ASSERT_EQ(epoch["memory"].size(), 2U) << epoch;
  for (const Json& device : json["devices"]) {
    const std::string name = device["device"];
    EXPECT_EQ(epoch["memory"][name]["peak"], device["peak_bytes"]) << epoch;
    EXPECT_NE(written.find("memory/" + name + "/peak_MiB"), std::string::npos) << name;
  }
}

TEST_F(Processes, WriteColumnsForTheDevicesOfAllRanks) {
  in_processes(2, "train", words("--steps 2 --log {}", folder_.path("log.csv")));
  std::ifstream file(folder_.path("log.csv"));
  std::string header, row, last;
  ASSERT_TRUE(std::getline(file, header));
  expect_contains(header, ",memory.rank 0 cpu:0.peak,", ",memory.rank 1 cpu:0.peak,");
  while (std::getline(file, row)) last = row;
  ASSERT_TRUE(last.starts_with("epoch,")) << last;
  // The column of rank 1's peak has a number.
  const auto column = std::count(
      header.begin(), header.begin() + static_cast<std::ptrdiff_t>(header.find("memory.rank 1 cpu:0.peak")), ',');
  size_t begin = 0;
  for (std::ptrdiff_t c = 0; c < column; ++c) begin = last.find(',', begin) + 1;
  EXPECT_GT(std::stoll(last.substr(begin)), 0) << last;
}

TEST_F(Processes, CollectivesAreRight) {
  const Json json =
      parse_output({3, vitrine_command(words("collectives --devices cpu:0-1 -b 1K -e 4M -f 4096 -n 2 -w 1 --json"))});
  EXPECT_EQ(json["wrong"], 0);
  ASSERT_EQ(json["results"].size(), 22U);
  for (const Json& row : json["results"]) {
    EXPECT_EQ(row["out_of_place"]["wrong"], 0) << row;
    if (!row["in_place"].is_null()) {
      EXPECT_EQ(row["in_place"]["wrong"], 0) << row;
    }
  }
  EXPECT_NE(json["config"]["communicator"].get<std::string>().find("6 ranks"), std::string::npos) << json["config"];
}

// Sums of 16-bit numbers travel in f32, for which the pools need room.
TEST_F(Processes, LargeSumsOf16BitsFit) {
  const Json json = parse_output(
      {2, vitrine_command(words("collectives reduce --devices cpu:0 -d half -b 24M -c 0 -n 1 -w 0 --json"))});
  EXPECT_EQ(json["results"].size(), 1U);
}

}  // namespace
}  // namespace vitrine::test::program_processes_test
