// SPDX-License-Identifier: Apache-2.0
// What only the stand-ins show of steps that are replayed as CUDA graphs: the calls of a step, and that nothing is
// left.
#include <gtest/gtest.h>

#include "tests/parallel/graph_training.h"
#include "tests/standins/controls.h"

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

}  // namespace
}  // namespace vitrine::test
