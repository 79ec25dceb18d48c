// SPDX-License-Identifier: Apache-2.0
#include "tests/parallel/device_losses.h"

#include <chrono>
#include <memory>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "nn/parallel/state/state_hash.h"
#include "runtime/error.h"
#include "tests/parallel/random_model.h"

namespace vitrine::test {
namespace {

constexpr int kDevices = 4, kSteps = 9;
constexpr int64_t kBatch = 22, kShortBatch = 5;

/// Draws when a device is lost, and delays that put devices ahead of each other.
struct Draw {
  std::mt19937 random;
  int left = 0;      // losses to come
  int instants = 0;  // of a step
  int reached = 0;   // in this step
  int lost_at = -1;  // the instant of this step's loss

  bool one_of(uint32_t count) { return random() % count == 0; }
  ExecContext& any_stream(Device& device) {
    const uint32_t role = random() % 4;  // the compute stream twice as often
    return role == 0 ? device.copy() : role == 1 ? device.communication() : device.compute();
  }

  void begin_step(const DeviceGroup& devices) {
    reached = 0;
    const bool loses = left > 0 && devices.size() > 1 && one_of(2);
    lost_at = loses ? static_cast<int>(random() % static_cast<uint32_t>(instants)) : -1;
  }

  void reach_instant(DeviceGroup& devices) {
    Device& device = devices[static_cast<int>(random() % static_cast<uint32_t>(devices.size()))];
    if (one_of(3)) {
      any_stream(device).dispatch(
          {"delay", {}, {}}, [us = random() % 2000] { std::this_thread::sleep_for(std::chrono::microseconds(us)); });
    }
    if (reached++ != lost_at) return;
    --left;
    any_stream(device).dispatch({"planted", {}, {}}, [] { throw DeviceError("planted loss"); });
  }
};

/// default_step() with an instant before and after each of its parts.
TrainingStep step_with(const std::shared_ptr<Draw>& draw) {
  return [draw](Engine& engine, const HostBatch& batch) {
    DeviceGroup& devices = engine.devices();
    if (devices[0].id().backend == Backend::meta) return default_step(engine, batch);
    draw->begin_step(devices);
    const auto reach_instant = [&] { draw->reach_instant(devices); };
    for (const MicroBatch& micro_batch : engine.micro_batches()) {
      reach_instant();
      engine.stage(batch, micro_batch);
      reach_instant();
      engine.replay_or_issue([&] {
        engine.forward();
        reach_instant();
        engine.loss();
        reach_instant();
        engine.backward_and_reduce(micro_batch.last);
        reach_instant();
        if (!micro_batch.last) return;
        engine.finish_reduction();
        reach_instant();
        engine.decide_step();
        reach_instant();
        engine.clip_gradients(engine.config().precision.clip_norm);
        reach_instant();
        engine.update_parameters();
        reach_instant();
        engine.distribute_parameters();
        reach_instant();
      });
    }
  };
}

constexpr int instants_of(int micro_batches) { return 5 * micro_batches + 5; }

struct Trained {
  StateHash state;
  std::vector<double> losses, norms;
  double test_loss = 0, average_loss = 0;
  int lost = 0;
};

Trained train(const Model& model, EngineConfig config) {
  DeviceGroup group(test_group(kDevices));
  Engine engine(model, group, std::move(config), Workload{{kBatch, kShortBatch}, {kBatch}});
  Trained result;
  for (uint32_t step = 0; step < kSteps; ++step) {
    engine.set_learning_rate(0.05 / (1 + step));  // a repeated step has its own
    engine.train_step(random_batch(model, step % 3 == 1 ? kShortBatch : kBatch, step, 0.1).view());
    EXPECT_EQ(engine.steps_issued(), step + 1);
    if (step == kSteps / 2) result.test_loss = engine.evaluate(random_batch(model, kBatch, 99, 0.0).view()).loss_sum;
  }
  for (const StepResult& step : engine.take_step_results(true)) {
    result.losses.push_back(step.loss_sum);
    result.norms.push_back(step.gradient_norm);
  }
  result.state =
      hash_state(engine.parameters().layout(), engine.parameters().buffer_layout(), engine.checkpointer().state());
  {
    const Engine::AverageScope averages(engine);
    result.average_loss = engine.evaluate(random_batch(model, kBatch, 98, 0.0).view()).loss_sum;
  }
  for (int d = 1; d < group.size(); ++d) EXPECT_EQ(engine.parameters().values(d), engine.parameters().values(0));
  engine.finish();  // planned == measured
  result.lost = static_cast<int>(engine.facts().losses.size());
  EXPECT_EQ(group.size(), kDevices - result.lost);
  return result;
}

}  // namespace

void expect_one_hash_in_spite_of_losses(const Model& model, DType dtype, int accumulate, int losses, uint32_t seed) {
  EngineConfig config = small_config(model, kBatch);
  config.scheme.split.leaves = 8;
  config.batch_norm_leaves = 4;
  config.accumulate = accumulate;
  compute_in(config, dtype);
  config.precision.clip_norm = 0.5;
  config.precision.loss_scaling.scale = 65536.0;  // the first steps may be skipped
  config.ema_decay = 0.9;
  const Trained expected = train(model, config);
  EXPECT_EQ(expected.lost, 0);
  EXPECT_EQ(expected.losses.size(), static_cast<size_t>(kSteps));
  config.survive_device_loss = true;
  for (int lost = 0; lost < losses; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto draw = std::make_shared<Draw>();
    draw->random.seed(seed);
    draw->left = std::min(kDevices - 1, losses - lost);
    draw->instants = instants_of(accumulate);
    config.step = step_with(draw);
    const Trained found = train(model, config);
    ASSERT_GT(found.lost, 0);
    lost += found.lost;
    EXPECT_EQ(found.state.parts, expected.state.parts);
    EXPECT_EQ(found.state.hash, expected.state.hash);
    EXPECT_EQ(found.losses, expected.losses);
    EXPECT_EQ(found.norms, expected.norms);
    EXPECT_EQ(found.test_loss, expected.test_loss);
    EXPECT_EQ(found.average_loss, expected.average_loss);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace vitrine::test
