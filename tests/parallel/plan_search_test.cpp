// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <numeric>
#include <regex>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "nn/layers/flatten.h"
#include "nn/layers/linear.h"
#include "nn/parallel/plan/remedies.h"
#include "nn/parallel/settings.h"
#include "runtime/error.h"
#include "tests/parallel/random_model.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test::plan_search_test {
namespace {

EngineConfig config_of(const Model& model, const char* mode, int64_t batch_size) {
  EngineConfig config = small_config(model, batch_size);
  config.scheme = scheme_preset(mode);
  return config;
}

DeviceGroupOptions devices_with(std::vector<int64_t> memory_bytes) {
  DeviceGroupOptions options = test_group(static_cast<int>(memory_bytes.size()));
  options.memory_bytes = std::move(memory_bytes);
  return options;
}

std::vector<int64_t> peaks(const Model& model, int devices, const EngineConfig& config) {
  std::vector<int64_t> bytes;
  for (const DevicePlan& plan : plan_memory(model, DeviceGroup(test_group(devices)), config, {{config.batch_size}, {}}))
    bytes.push_back(plan.peak_bytes);
  return bytes;
}

void run_steps(const Model& model, DeviceGroup& group, const EngineConfig& config) {
  Engine engine(model, group, config, {{config.batch_size}, {}});
  for (uint32_t step = 0; step < 3; ++step) {
    engine.train_step(random_batch(model, config.batch_size, step, 0).view());
    engine.take_step_results(true);
  }
  engine.finish();
}

std::string refusal(const Model& model, DeviceGroup& group, const EngineConfig& config) {
  return error_of<OutOfMemory>([&] { const Engine engine(model, group, config, {{config.batch_size}, {}}); });
}

TEST(OutOfMemoryText, HasTheFactsAndRemediesThatFit) {
  const Model model = random_model(1);
  for (const char* mode : {"dp", "ddp"}) {
    const EngineConfig config = config_of(model, mode, 24);
    std::vector<int64_t> capacities = peaks(model, 3, config);
    for (int64_t& bytes : capacities) bytes -= 6000;
    DeviceGroup group(devices_with(capacities));
    const std::string text = refusal(model, group, config);
    for (const char* part : {"out of memory. Tried to allocate", "total capacity", "already allocated", "free",
                             "reserved", "in phase", "It holds", "activations", "Found before the first step",
                             "What would fit: ", "; or EngineConfig::batch_size"}) {
      expect_contains(text, part);
    }
    EXPECT_EQ(text.rfind(group[0].name() + ": out of memory", 0), 0U) << text;
    // After the error the same devices can be used.
    std::smatch found;
    ASSERT_TRUE(std::regex_search(text, found, std::regex("EngineConfig::batch_size ([0-9]+)"))) << text;
    EngineConfig smaller = config;
    smaller.batch_size = std::stoll(found[1]);
    EXPECT_LT(smaller.batch_size, config.batch_size);
    run_steps(model, group, smaller);
    ASSERT_TRUE(std::regex_search(text, found, std::regex("EngineConfig::accumulate ([0-9]+)"))) << text;
    EngineConfig accumulated = config;
    accumulated.accumulate = std::stoi(found[1]);
    run_steps(model, group, accumulated);
  }
}

TEST(OutOfMemoryText, OffersASplitForUnequalDevices) {
  const Model model = random_model(1);
  EngineConfig config = config_of(model, "ddp", 24);
  std::vector<int64_t> capacities = peaks(model, 2, config);
  capacities[0] -= 10000;
  capacities[1] += 100000;
  DeviceGroup group(devices_with(capacities));
  const std::string text = refusal(model, group, config);
  std::smatch found;
  ASSERT_TRUE(std::regex_search(text, found, std::regex("Scheme::split ([0-9,]+)"))) << text;
  config.scheme.split = parse_split(found[1].str());
  run_steps(model, group, config);
}

TEST(OutOfMemoryText, ReportsThatNothingFits) {
  const Model model = random_model(1);
  DeviceGroup group(devices_with({4096}));
  expect_contains(refusal(model, group, config_of(model, "ddp", 8)),
                  "No batch size, split, number of micro-batches, recomputation or scheme makes it fit. Raise "
                  "DeviceGroupOptions::memory_bytes");
}

TEST(OutOfMemoryText, ALargerCapacityDoesNotHelpWhereDevicesHaveAllMemory) {
  const Model model = random_model(1);
  DeviceGroupOptions options{.devices = {{Backend::cpu, 0}}, .host_bytes = std::numeric_limits<int64_t>::max() / 2};
  DeviceGroup group(options);
  const std::string text = refusal(model, group, config_of(model, "ddp", 8));
  expect_contains(text, "are kept free for copies in host memory", "makes it fit. Use a machine with more memory, ",
                  "or choose a smaller ");
  expect_lacks(text, "memory_bytes");
}

TEST(OutOfMemoryText, CopiesInHostMemoryNeedRoomBesideGivenCapacities) {
  const Model model = random_model(1);
  const EngineConfig config = config_of(model, "ddp", 8);
  DeviceGroupOptions options = devices_with(peaks(model, 1, config));
  options.host_bytes = int64_t{1} << 20;
  DeviceGroup group(options);
  run_steps(model, group, config);
  options.host_bytes = std::numeric_limits<int64_t>::max() / 2;
  DeviceGroup crowded(options);
  const std::string text = refusal(model, crowded, config);
  expect_contains(text, "are needed for copies in host memory (weights, gradients, checkpoints), but ",
                  "are available beside the pools (");
}

TEST(OutOfMemoryText, OfOneOfSeveralProcessesNamesTheNextStage) {
  const Model model = random_model(1);
  const auto group_of = [](std::vector<int64_t> memory_bytes) {
    DeviceGroupOptions options{.devices = {{Backend::meta, 0}},
                               .place = ProcessGroupPlace{0, {1, 1}},
                               .memory_bytes = std::move(memory_bytes)};
    return DeviceGroup::planned(options);
  };
  const EngineConfig ddp = config_of(model, "ddp", 24), zero1 = config_of(model, "zero1", 24);
  const int64_t needed = plan_memory(model, *group_of({int64_t{1} << 30}), zero1, {{24}, {}})[0].peak_bytes;
  const std::unique_ptr<DeviceGroup> group = group_of({needed});
  const std::string text = describe_remedies(PlanSearch(model, *group, ddp, {{24}, {}})).str();
  expect_contains(text, "What would fit: ", "zero1");
  expect_lacks(text, "criterion");
}

TEST(PlanSearch, FindsTheLargestBatch) {
  const Model model = random_model(2);
  for (const char* mode : {"dp", "criterion", "ddp"}) {
    const EngineConfig config = config_of(model, mode, 1);
    DeviceGroup group(devices_with(peaks(model, 2, config_of(model, mode, 37))));
    const PlanSearch search(model, group, config, {{1}, {}});
    const std::optional<Fit> fit = search.largest_batch(1000, {});
    ASSERT_TRUE(fit.has_value());
    EXPECT_GE(fit->config.batch_size, 37);
    EXPECT_TRUE(fit->fits());
    for (int64_t more = 1; more <= 8; ++more) {
      EngineConfig larger = config;
      larger.batch_size = fit->config.batch_size + more;
      EXPECT_FALSE(search.plan(larger).fits()) << mode << " " << larger.batch_size;
    }
    run_steps(model, group, fit->config);
    EXPECT_EQ(search.largest_batch(20, {})->config.batch_size, 20);
    DeviceGroup none(devices_with({4096, 4096}));
    EXPECT_FALSE(PlanSearch(model, none, config, {{1}, {}}).largest_batch(1000, {}).has_value());
  }
}

TEST(PlanSearch, StopsWhenAsked) {
  const Model model = random_model(2);
  const EngineConfig config = config_of(model, "ddp", 1);
  DeviceGroup group(devices_with(peaks(model, 2, config_of(model, "ddp", 37))));
  int asked = 0;
  Workload workload{{1}, {}};
  workload.stop = [&asked] { return ++asked == 4; };
  EXPECT_THROW(PlanSearch(model, group, config, workload).largest_batch(1000, {}), SearchStopped);
  EXPECT_EQ(asked, 4);
}

TEST(PlanSearch, FindsTheFewestMicroBatches) {
  const Model model = random_model(2);
  EngineConfig config = config_of(model, "ddp", 60);
  DeviceGroup group(devices_with(peaks(model, 2, config_of(model, "ddp", 13))));
  const PlanSearch search(model, group, config, {{60}, {}});
  const std::optional<Fit> fit = search.fewest_micro_batches({});
  ASSERT_TRUE(fit.has_value());
  EXPECT_GE(fit->config.accumulate, 4);
  EXPECT_LE(fit->config.accumulate, 5);
  config.accumulate = fit->config.accumulate - 1;
  EXPECT_FALSE(search.plan(config).fits());
  run_steps(model, group, fit->config);
}

/// Device 0 of dp needs more, but equal shares are faster and fit.
TEST(PlanSearch, SharesAreEqualWhereMemoryIsPlentiful) {
  const Model model = random_model(1);
  const EngineConfig config = config_of(model, "dp", 47);
  std::vector<int64_t> capacities = peaks(model, 3, config);
  for (int64_t& bytes : capacities) bytes += 1;
  DeviceGroup group(devices_with(capacities));
  EXPECT_EQ(PlanSearch(model, group, config, {{47}, {}}).even_split(config).slices, (std::vector<int64_t>{16, 16, 15}));
}

TEST(PlanSearch, BalancesFreeMemoryOnUnequalDevices) {
  const Model model = random_model(1);
  for (const char* mode : {"dp", "criterion", "ddp"}) {
    const EngineConfig config = config_of(model, mode, 48);
    std::vector<int64_t> capacities = peaks(model, 3, config);
    capacities[0] += 200000;
    capacities[2] -= 10000;
    DeviceGroup group(devices_with(capacities));
    const PlanSearch search(model, group, config, {{48}, {}});
    EXPECT_FALSE(search.plan(config).fits());
    const Fit fit = search.even_split(config);
    EXPECT_TRUE(fit.fits()) << mode;
    EXPECT_EQ(std::accumulate(fit.slices.begin(), fit.slices.end(), int64_t{0}), 48);
    EXPECT_GT(fit.slices[0], fit.slices[2]);
    // Moving a single sample away from the tightest device does not leave more.
    const auto tightest = static_cast<size_t>(std::ranges::min_element(fit.headroom) - fit.headroom.begin());
    for (size_t to = 0; to < 3 && fit.slices[tightest] > 0; ++to) {
      if (to == tightest) continue;
      EngineConfig moved = fit.config;
      moved.scheme.split.weights[tightest] -= 1;
      moved.scheme.split.weights[to] += 1;
      const bool loosest = fit.headroom[to] == *std::ranges::max_element(fit.headroom);
      if (loosest) {
        EXPECT_LE(search.plan(moved).tightest(), fit.tightest()) << mode;
      }
    }
    run_steps(model, group, fit.config);
  }
}

TEST(PlanSearch, SharesStayAsEqualAsMemoryAllows) {
  const Model model = random_model(1);
  const EngineConfig config = config_of(model, "dp", 48);
  const auto first = peaks(model, 3, with_slices(config, {8, 20, 20})), equal = peaks(model, 3, config);
  DeviceGroup group(devices_with({first[0], 2 * equal[0], 2 * equal[0]}));
  const Fit fit = PlanSearch(model, group, config, {{48}, {}}).as_it_is({.split = true}).value();
  EXPECT_EQ(fit.slices, (std::vector<int64_t>{8, 20, 20}));
}

/// Eight equal Linear layers: each keeps as much as the others, so that every segment saves memory.
Model chain() {
  Model model{.name = "chain", .height = 8, .width = 8, .channels = 1, .classes = 5, .net = nullptr};
  std::vector<Sequential::Part> parts;
  parts.push_back({"flatten", std::make_unique<Flatten>()});
  for (int i = 0; i < 8; ++i) {
    parts.push_back({fmt::format("fc{}", i),
                     std::make_unique<Linear>(LinearConfig{.in_features = 64, .out_features = 64, .relu = true})});
  }
  parts.push_back({"head", std::make_unique<Linear>(LinearConfig{.in_features = 64, .out_features = 5})});
  model.net = std::make_unique<Sequential>(std::move(parts));
  return model;
}

TEST(PlanSearch, FindsTheFewestRecomputeSegments) {
  const Model model = chain();
  const EngineConfig config = config_of(model, "ddp", 64);
  EngineConfig segmented = config;
  segmented.recompute_segments = 3;
  DeviceGroup group(devices_with(peaks(model, 2, segmented)));
  const PlanSearch search(model, group, config, {{64}, {}});
  EXPECT_FALSE(search.as_it_is({}).has_value());
  const std::optional<Fit> fit = search.as_it_is({.recompute = true});
  ASSERT_TRUE(fit.has_value());
  EXPECT_GE(fit->config.recompute_segments, 2);
  EXPECT_LE(fit->config.recompute_segments, 3);
  segmented.recompute_segments = fit->config.recompute_segments - 1;
  EXPECT_FALSE(search.plan(segmented).fits());
  run_steps(model, group, fit->config);
  // Advice names the parts that take least time, or more segments where some were given.
  expect_contains(refusal(model, group, config), "; or EngineConfig::recompute fc");
  segmented.recompute_segments = 4;
  DeviceGroup tight(devices_with(peaks(model, 2, segmented)));
  segmented.recompute_segments = 2;
  expect_contains(refusal(model, tight, segmented), "; or EngineConfig::recompute_segments ");
  // With the largest batch: more samples than without.
  EXPECT_GT(search.largest_batch(500, {.recompute = true})->config.batch_size,
            search.largest_batch(500, {})->config.batch_size);
}

TEST(PlanSearch, DoesNotProposeWhatBatchNormRefuses) {
  // resnet18 ends in one pixel at this size: a device with one sample has one value for each channel, which batch norm
  // refuses.
  const Model model = make_model("resnet18", {.image_size = 32});
  EngineConfig config = config_of(model, "ddp", 8);
  DeviceGroupOptions options;
  options.devices = {{Backend::meta, 0}};
  const int64_t peak = plan_memory(model, DeviceGroup(options), config, {{8}, {}}).front().peak_bytes;
  options.memory_bytes = {peak - 1};
  DeviceGroup group(options);
  const PlanSearch search(model, group, config, {{8}, {}});
  const std::vector<Remedy> remedies = find_remedies(search);
  EXPECT_FALSE(remedies.empty());
  const std::optional<Fit> fit = search.largest_batch(7, {});
  ASSERT_TRUE(fit.has_value());
  EXPECT_EQ(fit->config.batch_size, 7);
  EXPECT_FALSE(search.arithmetic(search.plan(fit->config)).empty());
}

TEST(PlanSearch, RemediesKeepTheBatchFirst) {
  const Model model = random_model(1);
  const EngineConfig config = config_of(model, "dp", 24);
  std::vector<int64_t> capacities = peaks(model, 3, config);
  for (int64_t& bytes : capacities) bytes -= 6000;
  DeviceGroup group(devices_with(capacities));
  const std::vector<Remedy> remedies = find_remedies(PlanSearch(model, group, config, {{24}, {}}));
  ASSERT_GT(remedies.size(), 1U);
  EXPECT_NE(remedies.front().front().setting, settings::kBatchSize);
  EXPECT_EQ(remedies.back().front().setting, settings::kBatchSize);
}

TEST(PlanSearch, RemediesOfASearchedSplitSearchItToo) {
  const Model model = random_model(1);
  const EngineConfig small = config_of(model, "ddp", 24);
  std::vector<int64_t> capacities = peaks(model, 3, small);
  capacities[0] -= (capacities[0] - peaks(model, 3, config_of(model, "ddp", 12))[0]) / 2;
  DeviceGroup group(devices_with(capacities));
  const EngineConfig config = config_of(model, "ddp", 60);
  const PlanSearch search(model, group, config, {{60}, {}});
  const auto batch_of = [](const std::vector<Remedy>& remedies) {
    for (const Remedy& remedy : remedies) {
      for (const Reason::Part& part : remedy) EXPECT_NE(part.setting, settings::kSplit);
    }
    return std::stoll(remedies.back().front().text);
  };
  EXPECT_EQ(batch_of(find_remedies(search, {.split = true})),
            search.largest_batch(59, {.split = true})->config.batch_size);
  EXPECT_GT(batch_of(find_remedies(search, {.split = true})), search.largest_batch(59, {})->config.batch_size);
}

TEST(PlanSearch, TheArithmeticAddsUp) {
  const Model model = random_model(2);
  const EngineConfig config = config_of(model, "ddp", 16);
  DeviceGroup group(devices_with({1 << 20, 1 << 20}));
  const PlanSearch search(model, group, config, {{16}, {}});
  const std::vector<std::string> lines = search.arithmetic(search.plan(config));
  ASSERT_EQ(lines.size(), 2U);
  expect_contains(lines[1], group[1].name() + ": ", " + 8 samples x ", " of 1.0 MiB, ");
}

/// nn.DataParallel on three equal devices: the first one fills first, because it holds the optimizer's state, the whole
/// batch and all outputs. With a smaller share for it (BalancedDataParallel's gpu0_bsz) more samples fit, with
/// accumulation twice as many in each step.
TEST(BalancedDataParallel, TrainsWhereDataParallelRunsOutOfMemory) {
  const Model model = random_model(2);
  EngineConfig balanced = config_of(model, "balanced", 8);
  balanced.scheme.split.gpu0 = 2;
  const std::vector<int64_t> needed = peaks(model, 3, balanced);
  const int64_t capacity = *std::ranges::max_element(needed);
  DeviceGroup group(devices_with({capacity, capacity, capacity}));

  const std::string text = refusal(model, group, config_of(model, "dp", 9));
  EXPECT_EQ(text.rfind(group[0].name(), 0), 0U) << "the first device is the one that is full: " << text;

  EXPECT_EQ(plan_batch(balanced.scheme.split, 8, 1, 3).sizes, (std::vector<std::vector<int64_t>>{{2, 3, 3}}));
  run_steps(model, group, balanced);

  EngineConfig twice = balanced;
  twice.batch_size = 16;
  twice.scheme.split.gpu0 = 4;
  twice.accumulate = 2;
  const BatchPlan plan = plan_batch(twice.scheme.split, 16, 2, 3);
  for (int d = 0; d < 3; ++d) EXPECT_EQ(plan.device_samples(d), d == 0 ? 4 : 6);
  run_steps(model, group, twice);
}

TEST(PlanDetails, LayersHoldAllActivationsAtTheEndOfForward) {
  const Model model = random_model(1);
  const EngineConfig config = config_of(model, "dp", 12);
  const DeviceGroup group(test_group(3));
  const Workload workload{{12, 5}, {20}};
  const std::vector<DevicePlan> plans = plan_memory(model, group, config, workload, PlanDetail::layers),
                                bare = plan_memory(model, group, config, workload);
  for (size_t d = 0; d < plans.size(); ++d) {
    EXPECT_EQ(plans[d].peak_bytes, bare[d].peak_bytes);
    EXPECT_EQ(plans[d].peak_by_category, bare[d].peak_by_category);
    EXPECT_TRUE(bare[d].held_activations.empty());
    ASSERT_GT(plans[d].held_activations.size(), 3U);
    int64_t held = 0;
    for (const HeldBytes& layer : plans[d].held_activations) {
      EXPECT_GT(layer.bytes, 0);
      EXPECT_FALSE(layer.layer.empty());
      held += layer.bytes;
    }
    EXPECT_EQ(plans[d].held_activations.front().layer, "input");
    EXPECT_LE(held, plans[d].peak_bytes);
    // The steady step begins and ends with the same bytes, and reaches the peak of a full batch.
    int64_t bytes = 0, at_begin = 0, most = 0;
    for (size_t i = 0; i < plans[d].history.changes.size(); ++i) {
      if (i == plans[d].history.steps.at(1).change) at_begin = bytes;
      bytes += plans[d].history.changes[i].bytes;
      most = std::max(most, bytes);
    }
    EXPECT_GT(plans[d].history.steps.at(1).change, 0U);
    EXPECT_LT(plans[d].history.steps.at(1).change, plans[d].history.changes.size());
    EXPECT_EQ(bytes, at_begin);
    EXPECT_LE(most, plans[d].peak_bytes);
  }
}

}  // namespace
}  // namespace vitrine::test::plan_search_test
