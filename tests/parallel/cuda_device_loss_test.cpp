// SPDX-License-Identifier: Apache-2.0
// A GPU that is lost in the middle of a step, on the stand-ins: the others go on with the bits of a run without the
// loss.
#include <cstdlib>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "nn/parallel/state/state_hash.h"
#include "runtime/error.h"
#include "runtime/gpu_features.h"
#include "tests/parallel/random_model.h"
#include "tests/standins/controls.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

constexpr int kDevices = 3, kSteps = 3;
constexpr int64_t kBatch = 6;

/// Checks at its end that no CUDA object was leaked, not even one of a lost GPU.
class CudaDeviceLoss : public ::testing::Test {
 protected:
  CudaDeviceLoss() { setenv(variable_of(GpuFeature::device_loss), "on", 1); }
  ~CudaDeviceLoss() override {
    unsetenv(variable_of(GpuFeature::device_loss));
    EXPECT_EQ(standins::live_objects(), 0);
    standins::reset();
  }
  void SetUp() override {
    if (test_device_choice() == "cuda:0") GTEST_SKIP() << "devices that share a GPU are lost together";
  }
};

EngineConfig exact_config(const Model& model, bool survives) {
  EngineConfig config = small_config(model, kBatch);
  config.scheme.split.leaves = 3;
  config.optimizer = make_optimizer_config("adamw", 0.05, {}, false, {});
  config.precision.clip_norm = 0.5;
  config.survive_device_loss = survives;
  return config;
}

struct Trained {
  StateHash state;
  std::vector<double> losses;
  std::vector<DeviceLoss> lost;
};

Trained train(const Model& model, const EngineConfig& config, const std::function<void(int)>& before_step) {
  Trained result;
  {
    DeviceGroup group(test_group(kDevices));
    Engine engine(model, group, config, {{kBatch}, {}});
    for (int step = 0; step < kSteps; ++step) {
      before_step(step);
      engine.train_step(random_batch(model, kBatch, static_cast<uint32_t>(step), 0.1).view());
    }
    for (const StepResult& step : engine.take_step_results(true)) result.losses.push_back(step.loss_sum);
    result.state =
        hash_state(engine.parameters().layout(), engine.parameters().buffer_layout(), engine.checkpointer().state());
    engine.finish();
    result.lost = engine.facts().losses;
    EXPECT_EQ(group.size(), kDevices - static_cast<int>(result.lost.size()));
  }
  standins::reset();  // the lost GPU works again
  return result;
}

void expect_equal(const Trained& found, const Trained& expected) {
  EXPECT_EQ(found.state.parts, expected.state.parts);
  EXPECT_EQ(found.losses, expected.losses);
}

/// Fails every `stride`-th launch from the second step on, one in each run, until a run has none that fails.
void expect_one_hash_whichever_launch_fails(const Model& model, int64_t stride) {
  const Trained expected = train(model, exact_config(model, false), [](int) {});
  const EngineConfig config = exact_config(model, true);
  expect_equal(train(model, config, [](int) {}), expected);
  bool any_fails = true;
  for (int64_t n = 1; any_fails && !::testing::Test::HasFailure(); n += stride) {
    SCOPED_TRACE("launch " + std::to_string(n));
    const int culprit = static_cast<int>(n % kDevices);
    const Trained found = train(model, config, [&](int step) {
      if (step == 1) standins::fail_launch(culprit, n);
    });
    any_fails = !found.lost.empty();
    expect_equal(found, expected);
    if (!any_fails) {
      EXPECT_GT(n, 20);
      continue;
    }
    EXPECT_EQ(found.lost[0].device, "cuda:" + std::to_string(culprit));
    expect_contains(found.lost[0].error, "cudaErrorIllegalAddress");
  }
}

TEST_F(CudaDeviceLoss, LeavesTheBitsWhicheverLaunchFails) {
  expect_one_hash_whichever_launch_fails(random_model(2), 3);
}

TEST_F(CudaDeviceLoss, LeavesTheBitsOfBatchNorm) { expect_one_hash_whichever_launch_fails(tiny_resnet(), 151); }

TEST_F(CudaDeviceLoss, IsSurvivedByOneGpu) {
  const Model model = random_model(2);
  const Trained expected = train(model, exact_config(model, false), [](int) {});
  const Trained found = train(model, exact_config(model, true), [](int step) {
    if (step > 0) standins::fail_launch(step == 1 ? 0 : 2, 3);
  });
  EXPECT_EQ(found.lost.size(), 2U);
  expect_equal(found, expected);
}

TEST_F(CudaDeviceLoss, IsRefusedWithoutProof) {
  const Model model = random_model(2);
  const auto error = [&](int devices, const std::function<void(DeviceGroupOptions&, EngineConfig&)>& change) {
    DeviceGroupOptions options = test_group(devices);
    EngineConfig config = exact_config(model, true);
    change(options, config);
    DeviceGroup group(options);
    return error_of<ConfigError>([&] { Engine(model, group, config, Workload{{kBatch}, {}}); });
  };
  expect_contains(error(2, [](auto& options, auto&) { options.devices[1] = options.devices[0]; }), "lost together");
  expect_contains(error(2, [](auto&, auto& config) { config.autotune.enabled = true; }), "leave out autotune");
  unsetenv(variable_of(GpuFeature::device_loss));
  expect_contains(error(2, [](auto&, auto&) {}), "no GPU has proven it", "VITRINE_SURVIVE_GPU_LOSS=on");
}

}  // namespace
}  // namespace vitrine::test
