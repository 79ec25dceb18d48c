// SPDX-License-Identifier: Apache-2.0
// Recomputation of named parts: what the optimizer knows equals the plan, and no choice changes a bit.
#include <algorithm>
#include <functional>
#include <random>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "nn/layers/activations.h"
#include "nn/layers/dropout.h"
#include "nn/layers/flatten.h"
#include "nn/layers/pool2d.h"
#include "nn/layers/residual.h"
#include "nn/parallel/plan/recompute_search.h"
#include "nn/segments.h"
#include "runtime/error.h"
#include "tests/parallel/random_model.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tests/support/seeds.h"

namespace vitrine::test {
namespace {

/// A part without parameters first, in-place layers after layers that keep their output and after others, identities
/// and a residual block.
Model mixed_model() {
  std::vector<Sequential::Part> body;
  body.push_back({"conv", conv(4, 4, true)});
  std::vector<Sequential::Part> parts;
  parts.push_back({"drop-0", std::make_unique<Dropout>(0.2F, 0)});
  parts.push_back({"stem", conv(2, 4, false)});
  parts.push_back({"relu", std::make_unique<ReLU>()});
  parts.push_back({"pool", std::make_unique<MaxPool2d>(Pool2dConfig{2, 2, 0}, true)});
  parts.push_back({"same", std::make_unique<AdaptiveAvgPool2d>(4, 4)});
  parts.push_back({"block", std::make_unique<Residual>(std::make_unique<Sequential>(std::move(body)), nullptr, true)});
  parts.push_back({"flatten", std::make_unique<Flatten>()});
  parts.push_back({"drop-1", std::make_unique<Dropout>(0.4F, 1)});
  parts.push_back({"fc", linear(64, 5, false)});
  return image_model("mixed", 8, 2, 5, std::move(parts));
}

Model model_of(int number) {
  if (number == 0) return mixed_model();
  if (number == 1) return tiny_resnet();
  if (number == 2) return make_model("wide-head", {.image_size = 5, .channels = 4, .classes = 40});
  return random_model(static_cast<uint32_t>(number));
}
constexpr int kModels = 6;
// Parts of a segment in tiny_resnet(), which has many choices.
constexpr size_t kLongestInResNet = kSeedStep > 1 ? 1 : 2;

EngineConfig config_of(const Model& model, const char* mode, int64_t batch) {
  EngineConfig config = small_config(model, batch);
  config.scheme = scheme_preset(mode);
  if (config.scheme.split.kind == Split::Kind::gpu0) config.scheme.split.gpu0 = 2;
  if (model.targets_per_sample > 1) config.image_dtype = model.sample_dtype();
  config.workspace_bytes = int64_t{128} << 10;  // so that activations are most of the memory
  return config;
}

/// All choices of segments of at most `longest` parts that compute; none contains the last one.
std::vector<std::vector<PartRange>> all_choices(const RecomputationModel& model, size_t longest) {
  std::vector<std::vector<PartRange>> all;
  std::vector<PartRange> segments;
  const std::function<void(size_t)> add = [&](size_t k) {
    if (k == model.parts.size()) {
      all.push_back(segments);
      return;
    }
    add(k + 1);
    for (size_t end = k + 1; end < model.parts.size() && end <= k + longest; ++end) {
      segments.push_back({model.parts[k].part, model.parts[end - 1].part + 1});
      add(end);
      segments.pop_back();
    }
  };
  add(0);
  return all;
}

int64_t work_of(const RecomputationModel& model, const std::vector<PartRange>& segments) {
  int64_t work = 0;
  for (const PartRange& range : segments) {
    int64_t of_segment = 0;
    bool recomputes = false;
    for (const PartCost& part : model.parts) {
      if (part.part < range.begin || part.part >= range.end) continue;
      of_segment += part.work;
      recomputes = recomputes || part.runs_backward;
    }
    if (recomputes) work += of_segment;
  }
  return work;
}

class RecomputationPlan : public ::testing::TestWithParam<const char*> {};

// Lower bounds, since peaks may contain gaps.
TEST_P(RecomputationPlan, EqualsTheModelForEveryChoiceAndNoneIsBetterThanTheFrontier) {
  for (int number = 0; number < kModels; ++number) {
    const Model model = model_of(number);
    SCOPED_TRACE(fmt::format("model {}", number));
    DeviceGroup group(meta_group(2));
    EngineConfig config = config_of(model, GetParam(), 8);
    config.accumulate = 1 + number % 2;
    config.loss_gradient_in_place = number % 3 > 0;
    if (number % 2 == 1) config.precision.compute = DType::bf16;
    const Workload workload{{8}, {}};
    const RecomputeSearch search({model, group, config, workload});
    std::set<std::pair<int64_t, int64_t>> choices;  // work and bytes
    for (const std::vector<PartRange>& segments : all_choices(search.model(), number == 1 ? kLongestInResNet : 7)) {
      config.recompute = name_segments(*model.net, segments);
      int64_t fullest = 0;
      for (const DevicePlan& plan : plan_memory(model, group, config, workload))
        fullest = std::max(fullest, allocated_bytes(plan.peak_by_category));
      ASSERT_EQ(peak_of(search.model(), segments), fullest) << fmt::format("{}", fmt::join(config.recompute, ","));
      choices.insert({work_of(search.model(), segments), fullest});
    }
    const std::vector<RecomputationChoice> frontier = recomputation_frontier(search.model(), 1);
    for (const auto& [work, bytes] : choices) {
      EXPECT_TRUE(std::any_of(frontier.begin(), frontier.end(),
                              [&, w = work, b = bytes](const RecomputationChoice& choice) {
                                return choice.work <= w && choice.peak_bytes <= b;
                              }))
          << work << " and " << bytes;
    }
    for (const RecomputationChoice& choice : frontier)
      EXPECT_EQ(choice.work, work_of(search.model(), choice.recomputed));
  }
}

INSTANTIATE_TEST_SUITE_P(Schemes, RecomputationPlan, ::testing::Values("dp", "criterion", "ddp"),
                         [](const auto& param) { return std::string(param.param); });

TrainingOutcome run(const Model& model, int devices, const EngineConfig& config) {
  return train(model, devices, config,
               {.batches = std::vector(3, config.batch_size), .ignored = 0.1, .evaluated = 4, .first_gradients = true});
}

class RecomputedParts : public ::testing::TestWithParam<const char*> {};

TEST_P(RecomputedParts, GiveTheSameBits) {
  for (int number = 0; number < 4; ++number) {
    const Model model = model_of(number);
    EngineConfig config = config_of(model, GetParam(), 7);
    config.accumulate = 1 + number % 2;
    const int devices = 1 + (number + 1) % 3;
    if (config.scheme.split.kind == Split::Kind::gpu0 && devices == 1) config.scheme.split.gpu0 = config.batch_size;
    const TrainingOutcome whole = run(model, devices, config);
    const int parts = static_cast<int>(model.net->parts().size());
    std::mt19937 random(static_cast<uint32_t>(number));
    // All but the last part, and mostly the first, every part by itself (also the last one), and segments that are
    // drawn.
    std::vector<std::vector<PartRange>> choices(3);
    choices[0] = {{parts > 2 ? 1 : 0, parts - 1}};
    for (int part = 0; part < parts; ++part) choices[1].push_back({part, part + 1});
    for (int part = 0; part < parts;) {
      const int end = std::min(parts, part + 1 + static_cast<int>(random() % 3));
      if (random() % 2 == 0) choices[2].push_back({part, end});
      part = end;
    }
    for (const std::vector<PartRange>& segments : choices) {
      config.recompute = name_segments(*model.net, segments);
      EXPECT_TRUE(run(model, devices, config) == whole)
          << model.name << " on " << devices << " devices: " << fmt::format("{}", fmt::join(config.recompute, ","));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schemes, RecomputedParts, ::testing::Values("dp", "balanced", "criterion", "ddp"),
                         [](const auto& param) { return std::string(param.param); });

TEST(RecomputedParts, CutSegmentsByNameGiveTheSamePlan) {
  const Model model = make_model("alexnet", {.image_size = 63});
  const DeviceGroup group(meta_group(1));
  EngineConfig config = config_of(model, "ddp", 8), named = config;
  config.recompute_segments = 4;
  const std::vector<PartRange> cuts = cut_in_segments(*model.net, model.input_shape(1), DType::f32, 4);
  EXPECT_EQ(cuts.size(), 3U);
  named.recompute = name_segments(*model.net, cuts);
  const Workload workload{{8}, {5}};
  const DevicePlan a = plan_memory(model, group, config, workload)[0],
                   b = plan_memory(model, group, named, workload)[0];
  EXPECT_EQ(a.peak_bytes, b.peak_bytes);
  EXPECT_EQ(a.peak_by_category, b.peak_by_category);
}

TEST(RecomputeSearch, TakesTheLeastTimeThatFits) {
  const Model model = make_model("resnet18", {.image_size = 32});
  EngineConfig config = config_of(model, "ddp", 16);
  const Workload workload{{16}, {16}};
  DeviceGroup roomy(meta_group(1));
  const std::vector<RecomputePoint> frontier = RecomputeSearch({model, roomy, config, workload}).frontier(8);
  ASSERT_GE(frontier.size(), 3U);
  EXPECT_TRUE(frontier.front().recompute.empty());
  EXPECT_EQ(frontier.front().added_time, 0.0);
  for (size_t i = 1; i < frontier.size(); ++i) {
    EXPECT_LT(frontier[i].peak_bytes, frontier[i - 1].peak_bytes);
    EXPECT_GT(frontier[i].added_time, frontier[i - 1].added_time);
    EXPECT_LT(frontier[i].added_time, 1.0 / 3.0);
  }
  for (size_t i = 0; i < frontier.size(); ++i) {
    DeviceGroup group(meta_group(1, frontier[i].peak_bytes));
    const std::optional<RecomputePoint> found = RecomputeSearch({model, group, config, workload}).cheapest_that_fits();
    ASSERT_TRUE(found) << i;
    EXPECT_LE(found->added_time, frontier[i].added_time) << i;
    EXPECT_LE(found->peak_bytes, frontier[i].peak_bytes) << i;
    if (i > 0) {
      EXPECT_GT(found->added_time, frontier[i - 1].added_time) << i;
    }
  }
  DeviceGroup small(meta_group(1, frontier.back().peak_bytes / 2));
  EXPECT_FALSE(RecomputeSearch({model, small, config, workload}).cheapest_that_fits());
}

TEST(RecomputeSearch, FindsWhatAnEngineTrainsWithInThatMemory) {
  const Model model = tiny_resnet();
  EngineConfig config = config_of(model, "ddp", 8);
  const Workload workload{{8}, {4}};
  DeviceGroup roomy(meta_group(2));
  const int64_t lowest = RecomputeSearch({model, roomy, config, workload}).frontier(4).back().peak_bytes;
  DeviceGroupOptions options = test_group(2);
  options.memory_bytes = {lowest};
  {
    DeviceGroup group(options);
    EXPECT_THROW(Engine(model, group, config, workload), OutOfMemory);
    const std::optional<RecomputePoint> found = RecomputeSearch({model, group, config, workload}).cheapest_that_fits();
    ASSERT_TRUE(found);
    Engine engine(model, group, found->fit.config, workload);
    engine.train_step(random_batch(model, 8, 1, 0).view());
    engine.evaluate(random_batch(model, 4, 2, 0).view());
    engine.finish();
    EXPECT_EQ(group[0].pool().statistics().peak_bytes, found->fit.plans[0].peak_bytes);
  }
}

std::string refusal(const Model& model, const EngineConfig& config) {
  return error_of<ConfigError>([&] { plan_memory(model, DeviceGroup(meta_group(1)), config, {{4}, {}}); });
}

TEST(RecomputedParts, AreRefusedUnlessTheyExistInOrderAndOnce) {
  const Model model = mixed_model();
  EngineConfig config = config_of(model, "ddp", 4);
  config.recompute = {"stem", "nothing"};
  expect_contains(refusal(model, config), "'nothing' is no part of the model",
                  "drop-0, stem, relu, pool, same, block, flatten, drop-1, fc");
  config.recompute = {"pool-stem"};
  expect_contains(refusal(model, config), "write stem-pool");
  config.recompute = {"pool-block", "stem-pool"};
  expect_contains(refusal(model, config), "'stem-pool' and 'pool-block' overlap");
  config.recompute = {"stem"};
  config.recompute_segments = 2;
  expect_contains(refusal(model, config), "EngineConfig::recompute stem and EngineConfig::recompute_segments 2");
}

TEST(RecomputedParts, HaveNamesThatMayContainHyphens) {
  const Model model = mixed_model();
  const std::vector<PartRange> segments{{0, 2}, {2, 3}, {3, 8}};
  const std::vector<std::string> names = name_segments(*model.net, segments);
  EXPECT_EQ(names, (std::vector<std::string>{"drop-0-stem", "relu", "pool-drop-1"}));
  EXPECT_EQ(find_segments(*model.net, {names[2], names[0], names[1]}), segments);
  EXPECT_EQ(find_segments(*model.net, {"drop-0"}), (std::vector<PartRange>{{0, 1}}));
  EXPECT_TRUE(find_segments(*model.net, {}).empty());
}

TEST(ForwardWork, CountsMatrixProductsAndMovedElements) {
  const Work fc = linear(6, 4, true)->forward_work({3, 5, 6});
  EXPECT_EQ(fc.flops, 2 * 6 * 4 * 15);
  EXPECT_EQ(fc.elements, 15 * 6 + 15 * 4 + 6 * 4 + 4);
  const Work convolution = conv(2, 4, false)->forward_work({3, 8, 8, 2});
  EXPECT_EQ(convolution.flops, 2 * 3 * 3 * 2 * 4 * 3 * 64);
  // The parts of a block, and the sum of its two paths.
  const Model model = mixed_model();
  const Work block = model.net->parts()[5].layer->forward_work({3, 4, 4, 4}),
             inside = conv(4, 4, true)->forward_work({3, 4, 4, 4});
  EXPECT_EQ(block.flops, inside.flops);
  EXPECT_EQ(block.elements, inside.elements + 3 * 3 * 64);
}

}  // namespace
}  // namespace vitrine::test
