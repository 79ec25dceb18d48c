// SPDX-License-Identifier: Apache-2.0
// Plans that size the workspace by what the libraries ask for.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/conv2d.h"
#include "kernels/libraries.h"
#include "kernels/workspace.h"
#include "nn/parallel/plan/memory_plan.h"
#include "runtime/error.h"
#include "tests/parallel/random_model.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

constexpr int64_t kBatch = 2;

/// Convolutions with up to 512 x 3 x 3 x 512 weights.
Model wide_model() { return make_model("resnet18-cifar", {.image_size = 32}); }

EngineConfig unsized(const Model& model, DType compute = DType::f32) {
  EngineConfig config = small_config(model, kBatch);
  config.precision.compute = compute;
  config.workspace_bytes = EngineConfig{}.workspace_bytes;
  return config;
}

DeviceGroupOptions cpu_group(int64_t memory_bytes, int threads = 1) {
  return {.devices = {DeviceId{Backend::cpu, 0}}, .memory_bytes = {memory_bytes}, .threads_per_device = {threads}};
}

constexpr int64_t kPlenty = int64_t{1} << 30;
const Workload kWorkload = {{kBatch}, {kBatch}};

/// Trains and evaluates, and returns the parameters; the engine asserts that the measured peak is the planned one.
std::vector<float> train(Engine& engine, const Model& model) {
  const int64_t samples = engine.config().batch_size;
  for (uint32_t step = 0; step < 2; ++step) engine.train_step(random_batch(model, samples, step, 0).view());
  engine.evaluate(random_batch(model, samples, 5, 0).view());
  engine.finish();
  EXPECT_EQ(engine.devices()[0].pool().statistics().peak_bytes, engine.facts().plans[0].peak_bytes);
  return engine.parameters().values();
}

bool has_onednn() {
  for (const LibraryInfo& library : kernel_libraries(Backend::cpu)) {
    if (library.name == "oneDNN") return true;
  }
  return false;
}

TEST(WorkspacePlan, IsWhatTheConvolutionsNeedAndNoMore) {
  if (!has_onednn()) GTEST_SKIP() << "without oneDNN, convolutions use what there is";
  const Model model = wide_model();
  DeviceGroup group(cpu_group(kPlenty));
  Engine engine(model, group, unsized(model), kWorkload);
  const WorkspacePlan& workspace = engine.facts().plans[0].workspace;
  constexpr int64_t kLargestWeights = int64_t{512} * 3 * 3 * 512 * 4;
  EXPECT_GE(workspace.bytes, kLargestWeights) << "oneDNN packs the weights";
  EXPECT_LT(workspace.bytes, kMostCpuWorkspace);
  EXPECT_TRUE(workspace.shortages.empty());
  EXPECT_EQ(engine.config().workspace_bytes, workspace.bytes);
  EXPECT_EQ(engine.facts().plans[0].peak_by_category[static_cast<size_t>(Category::workspace)], workspace.bytes);
  const std::vector<float> sized = train(engine, model);

  // With the most that a plan takes, every operation runs by the same algorithm: the same bits.
  EngineConfig config = unsized(model);
  config.workspace_bytes = kMostCpuWorkspace;
  DeviceGroup other(cpu_group(kPlenty));
  Engine large(model, other, config, kWorkload);
  EXPECT_EQ(train(large, model), sized);
}

TEST(WorkspacePlan, ShrinksToTheCapacityAndNamesWhatGetsSlower) {
  if (!has_onednn()) GTEST_SKIP() << "without oneDNN, convolutions use what there is";
  const Model model = wide_model();
  DeviceGroup probe(cpu_group(kPlenty));
  const DevicePlan full = plan_memory(model, probe, unsized(model), kWorkload)[0];
  const int64_t fixed = full.peak_bytes - full.workspace.bytes;
  for (const int64_t less : {int64_t{1}, full.workspace.bytes / 3, full.workspace.bytes - full.workspace.least_bytes}) {
    DeviceGroup group(cpu_group(full.peak_bytes - less));
    Engine engine(model, group, unsized(model), kWorkload);
    const DevicePlan& plan = engine.facts().plans[0];
    EXPECT_LE(plan.workspace.bytes, full.workspace.bytes - less);
    EXPECT_EQ(plan.workspace.least_bytes, full.workspace.least_bytes);
    ASSERT_FALSE(plan.workspace.shortages.empty()) << less;
    for (const WorkspaceShortage& shortage : plan.workspace.shortages) {
      expect_contains(shortage.operation, "conv2d_");
      EXPECT_GT(shortage.needed_bytes, plan.workspace.bytes);
      EXPECT_LE(shortage.needed_bytes, full.workspace.bytes);
    }
    train(engine, model);
  }
  DeviceGroup too_small(cpu_group(fixed + full.workspace.least_bytes - 1));
  EXPECT_THROW(Engine(model, too_small, unsized(model), kWorkload), OutOfMemory);
}

TEST(WorkspacePlan, NamesTheProductsThatGetSlower) {
  const Model model = make_model("mlp", {.image_size = 32});
  DeviceGroup probe(cpu_group(kPlenty));
  const DevicePlan full = plan_memory(model, probe, unsized(model, DType::f16), kWorkload)[0];
  ASSERT_GT(full.workspace.bytes, full.workspace.least_bytes);
  DeviceGroup group(cpu_group(full.peak_bytes - (full.workspace.bytes - full.workspace.least_bytes) / 2));
  const WorkspacePlan shrunken = plan_memory(model, group, unsized(model, DType::f16), kWorkload)[0].workspace;
  EXPECT_LT(shrunken.bytes, full.workspace.bytes);
  ASSERT_FALSE(shrunken.shortages.empty());
  expect_contains(shrunken.shortages[0].operation, "a product of ");
  EXPECT_GT(shrunken.shortages[0].needed_bytes, shrunken.bytes);
}

EngineConfig exact(EngineConfig config, int leaves) {
  config.scheme.split.leaves = leaves;
  config.leaf_threads = 1;
  return config;
}

TEST(WorkspacePlan, OfExactModeIsForAllLeavesOfTheRun) {
  const Model model = make_model("mlp", {.image_size = 24});
  EngineConfig config = exact(unsized(model, DType::f16), 3);
  config.batch_size = 17;  // leaves of 5, 6 and 6
  const auto planned = [&](int process, int processes) {
    DeviceGroupOptions options = cpu_group(kPlenty);
    options.place = ProcessGroupPlace{process, std::vector<int>(static_cast<size_t>(processes), 1)};
    return plan_memory(model, *DeviceGroup::planned(options), config, {{17}, {17, 4}})[0].workspace.bytes;
  };
  for (int process = 0; process < 3; ++process) EXPECT_EQ(planned(process, 3), planned(0, 1)) << process;
}

TEST(WorkspacePlan, OfExactModeDoesNotShrink) {
  for (const DType compute : {DType::f32, DType::f16}) {
    const Model model = wide_model();
    const EngineConfig config = exact(unsized(model, compute), 2);
    DeviceGroup probe(cpu_group(kPlenty));
    Engine whole(model, probe, config, kWorkload);
    const DevicePlan full = whole.facts().plans[0];
    EXPECT_EQ(full.workspace.least_bytes, full.workspace.bytes);
    const std::vector<float> trained = train(whole, model);
    DeviceGroup enough(cpu_group(full.peak_bytes));
    Engine tight(model, enough, config, kWorkload);
    EXPECT_EQ(train(tight, model), trained);

    DeviceGroup group(cpu_group(full.peak_bytes - 1));
    const std::string refusal = error_of<OutOfMemory>([&] { Engine(model, group, config, kWorkload); });
    expect_contains(refusal, "its workspace of ");
    expect_contains(refusal, " does not shrink in exact mode");
    // The remedy is another identity, and works.
    const std::string proposal = "EngineConfig::workspace_bytes ";
    const size_t at = refusal.find(proposal);
    ASSERT_NE(at, std::string::npos) << refusal;
    EngineConfig smaller = config;
    smaller.workspace_bytes = std::stoll(refusal.substr(at + proposal.size()));
    EXPECT_LT(*smaller.workspace_bytes, full.workspace.bytes);
    Engine other(model, group, smaller, kWorkload);
    train(other, model);
  }
}

TEST(WorkspacePlan, AGivenWorkspaceBelowTheLeastIsRefusedByThePlanAsByTheOperation) {
  const Model model = wide_model();
  for (const DType compute : {DType::f16, DType::bf16}) {
    EngineConfig config = unsized(model, compute);
    DeviceGroup group(cpu_group(kPlenty));
    const auto plan = [&] { return plan_memory(model, group, config, kWorkload); };
    config.workspace_bytes = std::nullopt;
    const int64_t least = plan()[0].workspace.least_bytes;
    for (const int64_t bytes : {int64_t{300}, least / 2}) {
      config.workspace_bytes = bytes;
      const std::string refusal = error_of<OutOfMemory>(plan);
      expect_contains(refusal, " needs a workspace of at least ");
      expect_contains(refusal, fmt::format("but {} bytes are reserved; reserve more with EngineConfig::", bytes));
      EXPECT_EQ(error_of<OutOfMemory>([&] { Engine(model, group, config, kWorkload); }), refusal);
    }
  }
}

TEST(WorkspacePlan, AGivenWorkspaceIsObeyed) {
  const Model model = wide_model();
  for (const int64_t bytes : {int64_t{2} << 20, int64_t{64} << 20}) {
    EngineConfig config = unsized(model);
    config.workspace_bytes = bytes;
    DeviceGroup group(cpu_group(kPlenty));
    const DevicePlan plan = plan_memory(model, group, config, kWorkload)[0];
    EXPECT_EQ(plan.workspace.bytes, bytes);
    EXPECT_EQ(plan.peak_by_category[static_cast<size_t>(Category::workspace)], bytes);
    DeviceGroup smaller(cpu_group(plan.peak_bytes - 1));
    EXPECT_THROW(Engine(model, smaller, config, kWorkload), OutOfMemory) << "it does not shrink";
  }
}

TEST(WorkspacePlan, DependsOnTheThreadsOfTheDeviceNotOnThoseOfThePlanner) {
  const Model model = wide_model();
  const auto planned = [&](int threads) {
    return plan_memory(model, *DeviceGroup::planned(cpu_group(kPlenty, threads)), unsized(model), kWorkload)[0];
  };
  for (const int threads : {1, 2, 4}) {
    DeviceGroup group(cpu_group(kPlenty, threads));
    EXPECT_EQ(planned(threads).peak_bytes, plan_memory(model, group, unsized(model), kWorkload)[0].peak_bytes);
    Engine engine(model, group, unsized(model), kWorkload);
    EXPECT_EQ(engine.facts().plans[0].peak_bytes, planned(threads).peak_bytes);
    train(engine, model);
  }
}

TEST(WorkspacePlan, SixteenBitRunsWithinIt) {
  const Model model = wide_model();
  for (const DType compute : {DType::f16, DType::bf16}) {
    DeviceGroup group(cpu_group(kPlenty));
    Engine engine(model, group, unsized(model, compute), kWorkload);
    EXPECT_LE(engine.facts().plans[0].workspace.bytes, kMostCpuWorkspace) << dtype_name(compute);
    train(engine, model);
    // The least is enough for every operation.
    EngineConfig config = unsized(model, compute);
    config.workspace_bytes = engine.facts().plans[0].workspace.least_bytes;
    DeviceGroup small(cpu_group(kPlenty));
    Engine least(model, small, config, kWorkload);
    train(least, model);
  }
}

TEST(WorkspacePlan, HasWhatWinogradTakesAndShrinksWithoutIt) {
  if (!winograd_refusal().empty()) GTEST_SKIP() << winograd_refusal().str();
  const Model model = wide_model();
  constexpr int64_t kSamples = 8;  // enough for Winograd in the layers with 64 and 128 channels
  const Workload workload = {{kSamples}, {kSamples}};
  EngineConfig config = unsized(model);
  config.batch_size = kSamples;
  const auto options = [](int64_t memory_bytes) {
    DeviceGroupOptions with = cpu_group(memory_bytes);
    with.winograd = true;
    return with;
  };
  const auto by_winograd = [](DeviceGroup& group) {
    int64_t count = 0;
    for (const Conv2dChoice& choice : conv2d_choices(group[0].compute())) count += choice.implementation == "Winograd";
    return count;
  };
  DeviceGroup group(options(kPlenty));
  Engine engine(model, group, config, workload);
  const DevicePlan full = engine.facts().plans[0];
  EXPECT_TRUE(full.workspace.shortages.empty());
  EXPECT_LE(full.workspace.bytes, kMostWinogradWorkspace);
  const std::vector<float> trained = train(engine, model);
  EXPECT_EQ(by_winograd(group), 6) << "three passes of two shapes";
  DeviceGroup again(options(kPlenty));
  Engine second(model, again, config, workload);
  EXPECT_EQ(train(second, model), trained);
  // The direct convolutions need less, and other layers keep theirs.
  DeviceGroup less(options(full.peak_bytes - 1));
  Engine smaller(model, less, config, workload);
  const WorkspacePlan& workspace = smaller.facts().plans[0].workspace;
  EXPECT_FALSE(workspace.shortages.empty());
  EXPECT_LT(workspace.bytes, full.workspace.bytes);
  train(smaller, model);
  EXPECT_LT(by_winograd(less), 6);
  EXPECT_GT(by_winograd(less), 0);
}

TEST(WorkspacePlan, ARecordAnswersAsTheLibrariesDoAndNothingElse) {
  const Model model = wide_model();
  const auto group = [](int64_t bytes) { return DeviceGroup::planned(cpu_group(bytes)); };
  for (const DType compute : {DType::f32, DType::bf16}) {
    EngineConfig config = unsized(model, compute);
    config.accumulate = 2;
    WorkspaceRecord asked("a library");
    for (const int64_t samples : {1, 2, 3, 6}) {
      config.batch_size = 2 * samples;
      record_workspaces(model, *group(kPlenty), config, {{config.batch_size}, {samples}}, asked);
    }
    const std::string text = asked.text();
    const auto record = std::make_shared<const WorkspaceRecord>(WorkspaceRecord::parse(text));
    EXPECT_EQ(record->text(), text);
    config.batch_size = 6;  // micro-batches of 3
    const Workload workload = {{6}, {2}};
    const auto expect_equal = [&](int64_t bytes) {
      config.workspace_record = nullptr;
      const WorkspacePlan here = plan_memory(model, *group(bytes), config, workload)[0].workspace;
      config.workspace_record = record;
      const WorkspacePlan there = plan_memory(model, *group(bytes), config, workload)[0].workspace;
      EXPECT_EQ(there.unknown, "");
      EXPECT_EQ(there.bytes, here.bytes);
      EXPECT_EQ(there.least_bytes, here.least_bytes);
      EXPECT_EQ(there.shortages, here.shortages);
      return here.bytes;
    };
    const int64_t full = expect_equal(kPlenty);
    config.workspace_bytes = full;
    const int64_t peak = plan_memory(model, *group(kPlenty), config, workload)[0].peak_bytes;
    config.workspace_bytes = std::nullopt;
    expect_equal(peak - full / 2);
    // Nobody has asked for four samples, or for two threads.
    config.batch_size = 8;
    const auto assumed = [&](int threads) {
      const std::unique_ptr<DeviceGroup> devices = DeviceGroup::planned(cpu_group(kPlenty, threads));
      return plan_memory(model, *devices, config, {{config.batch_size}, {}})[0].workspace;
    };
    EXPECT_EQ(assumed(1).bytes, kMostCpuWorkspace);
    expect_contains(assumed(1).unknown.str(), "a library was not asked for conv2d_forward x (4, ");
    config.batch_size = 6;
    expect_contains(assumed(2).unknown.str(), " on 2 threads");
    EXPECT_EQ(assumed(1).unknown, "");
  }
}

TEST(WorkspaceRecord, IsReadAsItWasWrittenAndDamageIsNamed) {
  WorkspaceRecord record("oneDNN");
  for (int64_t size = 1; size <= 64; ++size) record.add("1 conv2d 0", size, {640, 128, 64});
  for (int64_t size = 72; size <= 128; size += 8) record.add("1 conv2d 0", size, {size * 10, -1, 0});
  const std::string text = record.text();
  EXPECT_TRUE(text.starts_with("oneDNN\n1 conv2d 0: 1 64 1 640 128 64 72 72 1 720 -1 0 ")) << text;
  const WorkspaceRecord read = WorkspaceRecord::parse(text);
  EXPECT_EQ(read.text(), text);
  EXPECT_EQ(read.find("1 conv2d 0", 64), (WorkspaceRecord::Answer{640, 128, 64}));
  EXPECT_EQ(read.find("1 conv2d 0", 65), std::nullopt);
  EXPECT_EQ(read.find("2 conv2d 0", 64), std::nullopt);
  for (const char* damaged : {"", "oneDNN\nconv2d", "oneDNN\nconv2d 0: 1 2", "oneDNN\nconv2d 0: 2 1 1 0 0 0",
                              "oneDNN\nconv2d 0: 1 2 0 0 0 0", "oneDNN\nconv2d 0: 1 2 1 0 0 x"})
    EXPECT_THROW(WorkspaceRecord::parse(damaged), DataError) << damaged;
}

TEST(WorkspacePlan, AGpuThatIsNotHereCannotBeAsked) {
  const Model model = wide_model();
  DeviceGroupOptions options;
  options.devices = {DeviceId{Backend::cuda, 97}};
  const DevicePlan plan = plan_memory(model, *DeviceGroup::planned(options), unsized(model), kWorkload)[0];
  EXPECT_EQ(plan.workspace.bytes, kUnaskedGpuWorkspace);
  EXPECT_FALSE(plan.workspace.unknown.empty());
  // Without convolutions there is nothing to ask.
  const Model linear = make_model("mlp", {.image_size = 6});
  EXPECT_EQ(plan_memory(linear, *DeviceGroup::planned(options), unsized(linear), kWorkload)[0].workspace.bytes,
            kLeastGpuWorkspace);
  EXPECT_EQ(full_workspace_bytes(linear, *DeviceGroup::planned(options), unsized(linear), kWorkload),
            kLeastGpuWorkspace)
      << "searches plan with it";
  EXPECT_EQ(full_workspace_bytes(model, *DeviceGroup::planned(options), unsized(model), kWorkload),
            kUnaskedGpuWorkspace);
}

}  // namespace
}  // namespace vitrine::test
