// SPDX-License-Identifier: Apache-2.0
// What only the stand-ins show of steps that are replayed as CUDA graphs: the calls of a step, and that nothing is
// left.
#include <gtest/gtest.h>

#include "runtime/copy.h"
#include "runtime/error.h"
#include "tests/parallel/graph_training.h"
#include "tests/standins/controls.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

/// Checks at the end of the program, which is that of a test under ctest, that all objects of CUDA have been destroyed.
class LeavesNoObjects final : public ::testing::Environment {
  void TearDown() override { EXPECT_EQ(standins::live_objects(), 0); }
};
::testing::Environment* const kLeavesNoObjects = ::testing::AddGlobalTestEnvironment(new LeavesNoObjects);

TEST(CudaGraph, IsLaunchedOncePerStep) {
  const Model model = random_model(1);
  DeviceGroup group(test_group(1, false));
  EngineConfig config = with(small_config(model, 4), DType::f32, "adamw");
  Engine engine(model, group, config, {{4}, {}});
  const OwnedBatch batch = random_batch(model, 4, 1, 0);
  for (int step = 0; step < 8; ++step) {
    engine.take_step_results(true);
    standins::take_call_counts();
    engine.train_step(batch.view());
    const standins::CallCounts counts = standins::take_call_counts();
    EXPECT_EQ(counts.graph_launches, step < 2 ? 0 : 1) << step;
    if (step < 4) continue;
    EXPECT_EQ(counts.launches + counts.products, 0) << step;
    EXPECT_EQ(counts.copies, 2) << step;  // images and labels
    EXPECT_EQ(counts.waits, 2) << step;
  }
  engine.take_step_results(true);
}

/// An engine that replays steps whose images the GPU holds.
struct ReplayedTraining {
  ReplayedTraining() {
    for (int number = 10; number < 16; ++number) engine.train_step(batch_of(model, config, 4, number));
    engine.take_step_results(true);
    EXPECT_EQ(engine.graph_counts().launched, 4);
  }
  static EngineConfig config_of(const Model& model) {
    EngineConfig config = small_config(model, 4);
    config.resident_images = random_images(model, 20);
    return config;
  }

  Model model = random_model(1);
  DeviceGroup group{test_group(1, false)};
  EngineConfig config = config_of(model);
  Engine engine{model, group, config, {{4}, {}}};
};

TEST(CudaGraph, EndsWithTheErrorOfAGpuThatIsLostMeanwhile) {
  {
    ReplayedTraining training;
    ExecContext& ctx = training.group[0].compute();
    const Tensor pair = ctx.allocate({2}, DType::i32, Category::activations, "a pair");
    standins::fail_launch(0, 1);
    copy_blocks(ctx, {{CopiedBlock{pair.rows(0, 1), pair.rows(1, 2)}}});
    const std::string error = error_of<CudaError>([&] {
      for (int number = 16; number < 20; ++number)
        training.engine.train_step(batch_of(training.model, training.config, 4, number));
    });
    expect_contains(error, "cudaErrorIllegalAddress");
  }
  standins::reset();
}

/// Which a kernel finds.
TEST(CudaGraph, ReportsALabelThatIsNoClass) {
  ReplayedTraining training;
  const std::vector<float> before = training.engine.parameters().values();
  const HostBatch batch = batch_of(training.model, training.config, 4, 16);
  const std::vector<int32_t> labels{0, 5, 1, 2};
  HostBatch wrong = batch;
  wrong.labels = ConstView(labels.data(), batch.labels.shape, DType::i32, DeviceId::host());
  training.engine.train_step(wrong);
  expect_contains(error_of<DataError>([&] { training.engine.take_step_results(true); }),
                  "target 5 in row 1 is out of range");
  training.engine.train_step(batch);
  EXPECT_EQ(training.engine.take_step_results(true).size(), 1U);
  EXPECT_NE(training.engine.parameters().values(), before);
}

}  // namespace
}  // namespace vitrine::test
