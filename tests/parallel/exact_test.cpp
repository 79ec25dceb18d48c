// SPDX-License-Identifier: Apache-2.0
// Exact mode: one hash on any devices, under any scheme.
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/conv2d.h"
#include "nn/parallel/leaf_plan.h"
#include "nn/parallel/state/state_hash.h"
#include "tests/parallel/random_model.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tests/support/seeds.h"

namespace vitrine::test::exact_test {
namespace {

constexpr int kLeaves = 8;
constexpr int64_t kBatch = 22, kShortBatch = 5;  // leaves of 2 and 3 samples; of 0 and 1

/// What a configuration is about: everything that must not change the bits.
struct Variant {
  int devices = 1, accumulate = 1;
  std::string mode = "ddp", split = "equal";
  int64_t bucket_bytes = 2048;
  std::string str() const {
    return fmt::format("{} devices, {}, split {}, accumulate {}, buckets of {}", devices, mode, split, accumulate,
                       bucket_bytes);
  }
};

Variant draw(std::mt19937& random, const std::vector<int>& accumulate) {
  const auto one_of = [&](const auto& values) { return values[random() % values.size()]; };
  Variant v;
  v.devices = one_of(std::vector{1, 2, 3, 5, 8});
  v.accumulate = one_of(accumulate);
  v.mode = one_of(scheme_names());
  v.bucket_bytes = one_of(std::vector<int64_t>{512, 1 << 20});
  if (v.mode == "balanced") {
    v.split = fmt::format("gpu0={}", v.devices == 1 ? kBatch : 6);
  } else if (random() % 2 == 0) {
    v.split.clear();
    for (int d = 0; d < v.devices; ++d) v.split += fmt::format("{}{}", d > 0 ? "," : "", 1 + random() % 3);
  }
  return v;
}

EngineConfig exact_config(const Model& model, const Variant& v, DType dtype) {
  EngineConfig config = small_config(model, kBatch);
  config.scheme = scheme_preset(v.mode);
  config.scheme.split = parse_split(v.split);
  config.scheme.split.leaves = kLeaves;
  config.accumulate = v.accumulate;
  config.bucket_bytes = v.bucket_bytes;
  compute_in(config, dtype);
  config.precision.clip_norm = 0.5;
  config.precision.loss_scaling.scale = 256.0;  // the first steps are taken
  config.ema_decay = 0.9;
  return config;
}

struct Result {
  StateHash state;
  double test_loss = 0;
};

/// Trains three steps, the second one on a short batch, and evaluates.
Result train(const Model& model, const EngineConfig& config, int devices, bool winograd = false) {
  DeviceGroupOptions options = test_group(devices);
  options.winograd = winograd;
  if (!on_gpu()) options.memory_bytes = {int64_t{512} << 20};
  DeviceGroup group(options);
  Engine engine(model, group, config, Workload{{kBatch, kShortBatch}, {kBatch}});
  for (const auto& [samples, seed] : {std::pair{kBatch, 1U}, {kShortBatch, 2U}, {kBatch, 3U}})
    engine.train_step(random_batch(model, samples, seed, 0.2).view());
  Result result;
  result.test_loss = engine.evaluate(random_batch(model, kBatch, 4, 0.0).view()).loss_sum;
  result.state =
      hash_state(engine.parameters().layout(), engine.parameters().buffer_layout(), engine.checkpointer().state());
  engine.finish();  // planned == measured
  return result;
}

class OneHash : public ::testing::TestWithParam<DType> {};

void expect_one_hash(const Model& model, DType dtype, int batch_norm_leaves, const std::vector<int>& accumulate,
                     uint32_t seed, int draws) {
  const auto run = [&](const Variant& v) {
    EngineConfig config = exact_config(model, v, dtype);
    config.batch_norm_leaves = batch_norm_leaves;
    return train(model, config, v.devices);
  };
  const Result expected = run({.accumulate = accumulate.front()});
  std::mt19937 random(seed);
  for (int i = 0; i < draws; i += kSeedStep) {
    const Variant v = draw(random, accumulate);
    SCOPED_TRACE(v.str());
    const Result result = run(v);
    EXPECT_EQ(result.state.parts, expected.state.parts);
    EXPECT_EQ(result.state.hash, expected.state.hash);
    EXPECT_EQ(result.test_loss, expected.test_loss);
  }
}

TEST_P(OneHash, OfConvolutionsAndDropout) {
  constexpr std::array<uint32_t, 3> kModels = {1, 2, 5};
  for (size_t i = 0; i < kModels.size(); i += kSeedStep)
    expect_one_hash(random_model(kModels[i]), GetParam(), 0, {1, 2, 3}, kModels[i], 6);
}

// Micro-batches of 3, 3 and 2 leaves: an owner keeps [0,2) and [2,3), then [0,4) and [4,6).
TEST_P(OneHash, OfShardedGradients) {
  const Model model = random_model(2);
  const auto run = [&](const Variant& v) { return train(model, exact_config(model, v, GetParam()), v.devices); };
  const Result expected = run({});
  const std::vector<int> micro_batches = kSeedStep == 1 ? std::vector{1, 2, 3} : std::vector{3};
  for (const char* mode : {"zero2", "zero3"}) {
    for (const int devices : {2, 3, 5}) {
      for (const int accumulate : micro_batches) {
        const Variant v{devices, accumulate, mode, devices == 3 ? "3,0,2" : "equal"};
        SCOPED_TRACE(v.str());
        const Result result = run(v);
        EXPECT_EQ(result.state.parts, expected.state.parts);
        EXPECT_EQ(result.test_loss, expected.test_loss);
      }
    }
  }
}

TEST_P(OneHash, OfBatchNormOverAllLeaves) { expect_one_hash(tiny_resnet(), GetParam(), 0, {1}, 11, 4); }

TEST_P(OneHash, OfBatchNormOverGroups) { expect_one_hash(tiny_resnet(true), GetParam(), 4, {1, 2}, 12, 4); }

// Shards have whole tiles of squares and cut others.
TEST(ExactSquares, ClipByOneNorm) {
  const Model model = make_model("small-cnn", {.image_size = 16});
  const auto run = [&](int devices, const char* mode) {
    const Variant v{.devices = devices, .mode = mode, .bucket_bytes = int64_t{1} << 20};
    return train(model, exact_config(model, v, DType::f32), devices).state.parts;
  };
  const auto expected = run(1, "ddp");
  EXPECT_EQ(run(2, "zero1"), expected);
  EXPECT_EQ(run(2, "zero2"), expected);
  EXPECT_EQ(run(3, "zero3"), expected);
}

INSTANTIATE_TEST_SUITE_P(Precisions, OneHash, ::testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& instance) { return dtype_name(instance.param); });

TEST(ExactWithWinograd, OneHash) {
  if (on_gpu() || !winograd_refusal().empty()) GTEST_SKIP() << "for CPU devices: " << winograd_refusal().str();
  const Model model = make_model("small-cnn", {.image_size = 96});  // leaves of 2 and 3 samples run by Winograd
  const auto run = [&](int devices, const char* mode, bool winograd) {
    EngineConfig config = exact_config(model, {.devices = devices, .mode = mode}, DType::f32);
    config.workspace_bytes.reset();  // planned
    return train(model, config, devices, winograd);
  };
  const Result expected = run(1, "ddp", true);
  EXPECT_NE(run(1, "ddp", false).state.hash, expected.state.hash) << "nothing ran by Winograd";
  for (const auto& [devices, mode] : {std::pair{3, "ddp"}, {2, "dp"}}) {
    const Result result = run(devices, mode, true);
    EXPECT_EQ(result.state.parts, expected.state.parts);
    EXPECT_EQ(result.state.hash, expected.state.hash) << devices << mode;
    EXPECT_EQ(result.test_loss, expected.test_loss);
  }
}

/// NCCL moves nodes in groups of sends and receives.
void expect_one_hash_on_gpus(const Model& model) {
  if (!on_gpu()) GTEST_SKIP() << "for GPUs";
  const auto run = [&](int devices, const char* mode) {
    return train(model, exact_config(model, {.devices = devices, .mode = mode}, DType::f32), devices);
  };
  const Result expected = run(1, "ddp");
  for (const auto& [devices, mode] :
       {std::pair{3, "ddp"}, {8, "ddp"}, {3, "zero1"}, {3, "zero2"}, {3, "zero3"}, {3, "criterion"}}) {
    SCOPED_TRACE(fmt::format("{} devices, {}", devices, mode));
    const Result result = run(devices, mode);
    EXPECT_EQ(result.state.parts, expected.state.parts);
    EXPECT_EQ(result.state.hash, expected.state.hash);
    EXPECT_EQ(result.test_loss, expected.test_loss);
  }
}

TEST(ExactOnGpus, OneHashOfConvolutionsAndDropout) { expect_one_hash_on_gpus(random_model(1)); }

TEST(ExactOnGpus, OneHashOfBatchNorm) { expect_one_hash_on_gpus(tiny_resnet()); }

TEST(Exact, OrdinaryRunsDifferOnOtherDevices) {
  const Model model = random_model(1);
  const auto run = [&](int devices) {
    Variant v;
    EngineConfig config = exact_config(model, v, DType::f32);
    config.scheme.split.leaves = 0;
    return train(model, config, devices).state.hash;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(3));
}

/// Gradients of leaves of an ordinary engine, added here along the tree.
std::vector<float> sum_of_leaves(int begin, int end, const std::function<std::vector<float>(int)>& leaf) {
  if (end - begin == 1) return leaf(begin);
  int half = 1;
  while (half * 2 < end - begin) half *= 2;
  std::vector<float> sum = sum_of_leaves(begin, begin + half, leaf);
  const std::vector<float> right = sum_of_leaves(begin + half, end, leaf);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += right[i];
  return sum;
}

TEST(Exact, ReducedGradientIsTheSumOfSingleDeviceGradientsAlongTheTree) {
  const Model model = make_model("small-cnn", {.image_size = 8});
  constexpr int64_t kSamples = 7;  // leaves of 1 and 2 samples
  constexpr int kParts = 5;
  const OwnedBatch batch = random_batch(model, kSamples, 9, 0.0);
  const auto leaf_gradient = [&](int leaf) {
    const int64_t begin = leaf_begin(kSamples, kParts, leaf), end = leaf_begin(kSamples, kParts, leaf + 1);
    DeviceGroup group(test_group(1));
    Engine engine(model, group, small_config(model, kSamples), Workload{{end - begin}, {}});
    HostBatch part = batch.view();
    part.images = part.images.rows(begin, end);
    part.labels = part.labels.rows(begin, end);
    if (part.samples) part.samples = part.samples.rows(begin, end);
    engine.train_step(part);
    return engine.parameters().gradients();
  };
  const std::vector<float> expected = sum_of_leaves(0, kParts, leaf_gradient);
  for (const int devices : {1, 2, 3}) {
    EngineConfig config = small_config(model, kSamples);
    config.scheme.split.leaves = kParts;
    DeviceGroup group(test_group(devices));
    Engine engine(model, group, config, Workload{{kSamples}, {}});
    engine.train_step(batch.view());
    const std::vector<float> gradient = engine.parameters().gradients();
    ASSERT_EQ(gradient.size(), expected.size());
    EXPECT_EQ(std::memcmp(gradient.data(), expected.data(), expected.size() * sizeof(float)), 0) << devices;
  }
}

TEST(Exact, RefusesWhatItCannotPromise) {
  const Model model = tiny_resnet();
  const auto error = [&](const std::function<void(EngineConfig&)>& change) {
    EngineConfig config = exact_config(model, {}, DType::f32);
    change(config);
    DeviceGroup group(test_group(1));
    return error_of<ConfigError>([&] { Engine(model, group, config, Workload{{kBatch}, {}}); });
  };
  expect_contains(error([](EngineConfig& c) { c.accumulate = 9; }), "whole leaves");
  expect_contains(error([](EngineConfig& c) { c.scheme.split.leaves = 257; }), "at most 256");
  expect_contains(error([](EngineConfig& c) { c.accumulate = 2; }), "use EngineConfig::batch_norm_leaves 4");
  expect_contains(error([](EngineConfig& c) { c.batch_norm_leaves = 3; }),
                  "EngineConfig::batch_norm_leaves 3: a micro-batch of 8 leaves must hold whole groups of leaves that "
                  "share batch statistics; use EngineConfig::batch_norm_leaves 1");
  const auto thirds = [](EngineConfig& c) { c.accumulate = 3, c.batch_norm_leaves = 1; };
  expect_contains(error(thirds),
                  "EngineConfig::accumulate 3: with batch norm all micro-batches have equally many leaves, of which "
                  "there are 8; use EngineConfig::accumulate 2");
  expect_contains(error([](EngineConfig& c) { c.leaf_threads = 2; }), "leaf_threads");
  expect_contains(error([](EngineConfig& c) { c.precision.reduce_dtype = DType::bf16; }), "reduced in f32");
  expect_contains(error([](EngineConfig& c) { c.batch_statistics = BatchStatistics::local; }), "statistics");
  expect_contains(error([](EngineConfig& c) {
                    c.batch_norm_leaves = 4;
                    c.recompute_segments = 2;
                  }),
                  "recomputation");
}

TEST(LeafPlan, HoldsTheLargestNodesOfEachDevice) {
  Split split;
  split.leaves = 8;
  const LeafPlan plan(split, 80, 2, 2, false);  // device 0: leaves 0-1 and 4-5; device 1: 2-3 and 6-7
  const auto nodes = [](const std::vector<LeafNode>& held) {
    std::string text;
    for (const LeafNode& node : held)
      text += fmt::format("[{},{})@{} ", node.leaves.begin, node.leaves.end, node.buffer);
    return text;
  };
  EXPECT_EQ(nodes(plan.nodes_after(0, 0)), "[0,2)@0 ");
  EXPECT_EQ(nodes(plan.nodes_after(0, 1)), "[0,2)@0 [4,6)@1 ");
  EXPECT_EQ(nodes(plan.nodes_after(1, 1)), "[2,4)@0 [6,8)@1 ");
  const auto sent = [](const LeafPlan& of, int rank) {
    int64_t count = 0;
    for (int k = 0; k < 3; ++k) count += std::ranges::count(of.contributions(k), rank, &Contribution::rank);
    return count;
  };
  EXPECT_EQ(plan.contributions(1).size(), 4U);
  EXPECT_EQ(nodes(LeafPlan(split, 80, 2, 1, false).nodes_after(0, 1)), "[0,8)@0 ");
  EXPECT_EQ(nodes(LeafPlan(split, 80, 1, 3, false).nodes_after(0, 0)), "[0,2)@0 [2,3)@1 ");  // leaves 0-2, 3-5, 6-7

  const LeafPlan to_owners(split, 80, 3, 2, true);  // device 0: leaves 0-1, 3-4 and 6; device 1: 2, 5 and 7
  EXPECT_EQ(nodes(to_owners.nodes_after(0, 1)), "[3,4)@0 [4,5)@1 ");
  EXPECT_EQ(nodes(to_owners.nodes_after(1, 1)), "[5,6)@0 ");
  EXPECT_EQ(nodes(to_owners.owned(0)), "[0,2)@0 [2,3)@1 ");
  EXPECT_EQ(to_owners.arriving(1), (std::vector<Subtree>{{3, 4}, {4, 6}}));
  EXPECT_EQ(nodes(to_owners.owned(1)), "[0,4)@0 [4,6)@1 ");
  EXPECT_EQ(nodes(to_owners.owned(2)), "[0,8)@0 ");
  EXPECT_EQ(sent(to_owners, 0), 4);
  EXPECT_EQ(sent(to_owners, 1), 3);
}

}  // namespace
}  // namespace vitrine::test::exact_test
