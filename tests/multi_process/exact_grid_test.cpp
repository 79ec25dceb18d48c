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

namespace vitrine::test::exact_grid_test {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kSeed = 29;
constexpr int kMpirunSeconds = 600;

/// Processes, and devices of each.
struct Place {
  int processes = 1, devices = 1;
};

/// Configurations are drawn from these places and modes, and from the axes below.
struct Grid {
  std::vector<Place> places;
  std::vector<std::string> modes;  // of one process
  size_t count;                    // of configurations
};

const Grid kSmallCnn{{{1, 1}, {1, 2}, {1, 3}, {1, 5}, {1, 8}, {2, 1}, {3, 1}, {2, 2}},
                     {"dp", "balanced", "criterion", "ddp", "zero1", "zero2", "zero3"},
                     60};
const Grid kResnet{{{1, 1}, {2, 1}, {1, 3}, {1, 5}, {1, 8}, {2, 2}}, {"dp", "balanced", "ddp", "zero3"}, 12};
const std::vector<std::string> kPrecisions = {"fp32", "fp16", "bf16"}, kBuckets = {"0.05", "25"},
                               kAccumulate = {"1", "2"}, kThreads = {"1", "2"}, kSplits = {"equal", "unequal"};

/// `count` values, each of them as often as the others and at least twice, in random order.
template <class Value>
std::vector<Value> drawn(const std::vector<Value>& values, size_t count, std::mt19937& random) {
  EXPECT_GE(count, 2 * values.size());
  std::vector<Value> all;
  for (size_t i = 0; i < count; ++i) all.push_back(values[i % values.size()]);
  std::shuffle(all.begin(), all.end(), random);
  return all;
}

/// A value of each axis.
struct Configuration {
  Place place;
  std::string mode, split, precision, accumulate, bucket, threads;

  Command command(const Command& job) const {
    const Command all = with(job, {"--precision", precision, "--mode", mode, "--accumulate", accumulate, "--bucket-mb",
                                   bucket, "--threads-per-device", threads, "--devices",
                                   place.devices == 1 ? "cpu:0" : fmt::format("cpu:0-{}", place.devices - 1)});
    const int devices = place.processes * place.devices;
    if (mode == "balanced") return with(all, {"--split", devices == 1 ? "equal" : "gpu0=6"});
    std::string weights;
    for (int d = 0; d < devices; ++d) weights += fmt::format("{}{}", d > 0 ? "," : "", 1 + d % 3);
    return with(all, {"--split", split == "equal" ? split : weights});
  }
};

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

std::vector<Configuration> drawn_configurations(const Grid& grid) {
  const size_t count = grid.count;
  std::mt19937 random(kSeed);
  const auto places = drawn(grid.places, count, random);
  // Processes train with ddp or zero3; dp and criterion are those of one process, and balanced has its own split.
  const auto alone = std::count_if(places.begin(), places.end(), [](const Place& p) { return p.processes == 1; });
  auto modes = drawn(grid.modes, static_cast<size_t>(alone), random);
  for (size_t i = 0; i < count; ++i) {
    if (places[i].processes > 1) modes.insert(modes.begin() + static_cast<int64_t>(i), i % 2 == 0 ? "ddp" : "zero3");
  }
  const auto balanced = std::count(modes.begin(), modes.end(), "balanced");
  auto splits = drawn(kSplits, count - static_cast<size_t>(balanced), random);
  for (size_t i = 0; i < count; ++i) {
    if (modes[i] == "balanced") splits.insert(splits.begin() + static_cast<int64_t>(i), "");
  }
  const auto precisions = drawn(kPrecisions, count, random), accumulate = drawn(kAccumulate, count, random),
             buckets = drawn(kBuckets, count, random), threads = drawn(kThreads, count, random);
  std::vector<Configuration> all;
  for (size_t i = 0; i < count; ++i)
    all.push_back({places[i], modes[i], splits[i], precisions[i], accumulate[i], buckets[i], threads[i]});
  return all;
}

void expect_one_hash_for_each_precision(const Command& job, const Grid& grid) {
  std::map<std::string, std::pair<Json, Json>> expected;  // hash and test loss, by precision
  for (const Configuration& drawn : drawn_configurations(grid)) {
    const Command command = drawn.command(job);
    SCOPED_TRACE(fmt::format("{} processes: {}", drawn.place.processes, fmt::join(command, " ")));
    const Json json = train(drawn.place, command);
    ASSERT_TRUE(json.is_object());
    const std::pair found{json["state_hash"], json["epochs"].back()["test_loss"]};
    ASSERT_TRUE(found.first.is_string() && found.second.is_number());
    const auto [entry, is_first] = expected.emplace(drawn.precision, found);
    if (is_first) continue;
    EXPECT_EQ(found.first, entry->second.first);
    EXPECT_EQ(found.second, entry->second.second);
  }
  EXPECT_EQ(expected.size(), kPrecisions.size());
}

TEST(ExactGridDraw, HasEveryValueOfEveryAxisTwice) {
  for (const Grid& grid : {kSmallCnn, kResnet}) {
    std::map<std::string, int> found;
    for (const Configuration& c : drawn_configurations(grid)) {
      for (const std::string& value :
           {fmt::format("{} x {}", c.place.processes, c.place.devices), "mode " + c.mode, "split " + c.split,
            "precision " + c.precision, "accumulate " + c.accumulate, "bucket " + c.bucket, "threads " + c.threads})
        ++found[value];
      if (c.place.processes == 1 && c.mode == "ddp") ++found["ddp in one process"];
    }
    std::vector<std::string> expected{"ddp in one process"};
    for (const Place& place : grid.places) expected.push_back(fmt::format("{} x {}", place.processes, place.devices));
    for (const auto& [axis, values] : {std::pair{"mode", &grid.modes},
                                       {"split", &kSplits},
                                       {"precision", &kPrecisions},
                                       {"accumulate", &kAccumulate},
                                       {"bucket", &kBuckets},
                                       {"threads", &kThreads}}) {
      for (const std::string& value : *values) expected.push_back(fmt::format("{} {}", axis, value));
    }
    for (const std::string& value : expected) EXPECT_GE(found[value], 2) << value << " of " << grid.count;
  }
}

class ExactGrid : public MpirunTest {};

TEST_F(ExactGrid, SmallCnn) {
  expect_one_hash_for_each_precision({"train", "--exact", "--model", "small-cnn", "--data", "synthetic:124",
                                      "--batch-size", "24", "--steps", "200", "--image-size", "16", "--json"},
                                     kSmallCnn);
}

TEST_F(ExactGrid, Resnet18InGroupsOfFourLeaves) {
  expect_one_hash_for_each_precision(
      {"train", "--exact", "--batch-norm-leaves", "4", "--model", "resnet18-cifar", "--data", "synthetic:60",
       "--batch-size", "16", "--steps", "20", "--image-size", "16", "--json"},
      kResnet);
}

}  // namespace
}  // namespace vitrine::test::exact_grid_test
