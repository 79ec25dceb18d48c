// SPDX-License-Identifier: Apache-2.0
// Exact mode has one hash for each model and precision over a grid of configurations, of which some are drawn: every
// value of every axis at least twice. Takes minutes.
#include <algorithm>
#include <map>
#include <random>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "tests/multi_process/mpirun.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kSeed = 29;
constexpr int kMpirunSeconds = 600;

/// Processes, and devices of each.
struct Place {
  int processes = 1, devices = 1;
};

const std::vector<Place> kPlaces = {{1, 1}, {1, 2}, {1, 3}, {1, 5}, {1, 8}, {2, 1}, {3, 1}, {2, 2}},
                         kFewPlaces = {{1, 1}, {2, 1}, {1, 3}, {1, 5}, {1, 8}, {2, 2}};
const std::vector<std::string> kModes = {"dp", "balanced", "criterion", "ddp"}, kPrecisions = {"fp32", "fp16", "bf16"},
                               kBuckets = {"0.05", "25"}, kAccumulate = {"1", "2"}, kThreads = {"1", "2"},
                               kSplits = {"equal", "unequal"};

/// `count` values, each of them as often as the others and at least twice, in random order.
template <class Value>
std::vector<Value> drawn(const std::vector<Value>& values, size_t count, std::mt19937& random) {
  EXPECT_GE(count, 2 * values.size());
  std::vector<Value> all;
  for (size_t i = 0; i < count; ++i) all.push_back(values[i % values.size()]);
  std::shuffle(all.begin(), all.end(), random);
  return all;
}

Command configuration(const Command& job, const Place& place, const std::string& mode, const std::string& split,
                      const std::string& accumulate, const std::string& bucket, const std::string& threads) {
  Command command =
      with(job, {"--mode", mode, "--accumulate", accumulate, "--bucket-mb", bucket, "--threads-per-device", threads,
                 "--devices", place.devices == 1 ? "cpu:0" : fmt::format("cpu:0-{}", place.devices - 1)});
  const int devices = place.processes * place.devices;
  if (mode == "balanced") return with(command, {"--split", devices == 1 ? "equal" : "gpu0=6"});
  std::string weights;
  for (int d = 0; d < devices; ++d) weights += fmt::format("{}{}", d > 0 ? "," : "", 1 + d % 3);
  return with(command, {"--split", split == "equal" ? split : weights});
}

Json train(const Place& place, const Command& command) {
  const Command program = vitrine_command(command);
  const ChildResult result = place.processes == 1
                                 ? ChildProcess(program).wait()
                                 : ChildProcess(mpirun_command(place.processes, program, kMpirunSeconds),
                                                ChildProcess::Streams::pipes, mpirun_environment())
                                       .wait();
  EXPECT_EQ(result.exit_code, 0) << fmt::format("{}", fmt::join(command, " ")) << "\n" << result.error;
  return result.exit_code == 0 ? Json::parse(result.output) : Json();
}

void expect_one_hash_for_each_precision(const Command& job, const std::vector<Place>& some, size_t count) {
  std::mt19937 random(kSeed);
  const auto places = drawn(some, count, random);
  // Processes train with ddp; dp and criterion are those of one process, and balanced has its own split.
  const auto alone = std::count_if(places.begin(), places.end(), [](const Place& p) { return p.processes == 1; });
  auto modes = drawn(kModes, static_cast<size_t>(alone), random);
  for (size_t i = 0; i < count; ++i) {
    if (places[i].processes > 1) modes.insert(modes.begin() + static_cast<int64_t>(i), "ddp");
  }
  const auto balanced = std::count(modes.begin(), modes.end(), "balanced");
  auto splits = drawn(kSplits, count - static_cast<size_t>(balanced), random);
  for (size_t i = 0; i < count; ++i) {
    if (modes[i] == "balanced") splits.insert(splits.begin() + static_cast<int64_t>(i), "");
  }
  const auto precisions = drawn(kPrecisions, count, random), accumulate = drawn(kAccumulate, count, random),
             buckets = drawn(kBuckets, count, random), threads = drawn(kThreads, count, random);
  std::map<std::string, std::pair<Json, Json>> expected;  // hash and test loss, by precision
  for (size_t i = 0; i < count; ++i) {
    const Command command = configuration(with(job, {"--precision", precisions[i]}), places[i], modes[i], splits[i],
                                          accumulate[i], buckets[i], threads[i]);
    SCOPED_TRACE(fmt::format("configuration {}, {} processes: {}", i, places[i].processes, fmt::join(command, " ")));
    const Json json = train(places[i], command);
    ASSERT_TRUE(json.is_object());
    const std::pair found{json["state_hash"], json["epochs"].back()["test_loss"]};
    ASSERT_TRUE(found.first.is_string() && found.second.is_number());
    const auto [entry, is_first] = expected.emplace(precisions[i], found);
    if (is_first) continue;
    EXPECT_EQ(found.first, entry->second.first);
    EXPECT_EQ(found.second, entry->second.second);
  }
  EXPECT_EQ(expected.size(), kPrecisions.size());
}

class ExactGrid : public MpirunTest {};

TEST_F(ExactGrid, SmallCnn) {
  expect_one_hash_for_each_precision({"train", "--exact", "--model", "small-cnn", "--data", "synthetic:124",
                                      "--batch-size", "24", "--steps", "200", "--image-size", "16", "--json"},
                                     kPlaces, 60);
}

TEST_F(ExactGrid, Resnet18InGroupsOfFourLeaves) {
  expect_one_hash_for_each_precision(
      {"train", "--exact", "--batch-norm-leaves", "4", "--model", "resnet18-cifar", "--data", "synthetic:60",
       "--batch-size", "16", "--steps", "8", "--image-size", "16", "--json"},
      kFewPlaces, 12);
}

}  // namespace
}  // namespace vitrine::test
