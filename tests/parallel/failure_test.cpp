// SPDX-License-Identifier: Apache-2.0
// A failing replica ends the step on all devices, is named in the error, and leaves an engine that can train.
#include <chrono>
#include <filesystem>
#include <thread>

#include <gtest/gtest.h>

#include "nn/parallel/settings.h"
#include "runtime/error.h"
#include "tests/parallel/planted_layer.h"
#include "tests/parallel/random_model.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test::failure_test {
namespace {

enum class Where { forward_issue, backward_issue, forward_worker, backward_worker, backward_memory };

/// The identity, until it is armed to fail on one device.
class Planted final : public Identity {
 public:
  struct Trigger {
    bool armed = false;
    int device = 0;
    Where where = Where::forward_issue;
  };
  explicit Planted(const Trigger& trigger) : trigger_(trigger) {}

 private:
  void begin(ExecContext& ctx, bool backward) const override {
    if (!trigger_.armed || ctx.ordinal() != trigger_.device) return;
    if (trigger_.where == (backward ? Where::backward_issue : Where::forward_issue)) throw DataError("planted failure");
    if (trigger_.where == (backward ? Where::backward_worker : Where::forward_worker))
      ctx.dispatch({"planted", {}, {}}, [] { throw DataError("planted failure"); });
    if (trigger_.where == Where::backward_memory && backward)
      ctx.dispatch({"planted", {}, {}}, [] {
        throw OutOfMemory({"planted: reserve more with ", propose(settings::kWorkspaceBytes, "8MiB")},
                          {.needed_bytes = 65536});
      });
  }

  const Trigger& trigger_;
};

std::string error_of_step(Engine& engine, const OwnedBatch& batch) {
  return error_of<DataError>([&] {
    engine.train_step(batch.view());
    engine.take_step_results(true);
  });
}

int thread_count() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++count;
  return count;
}

class Failure : public ::testing::TestWithParam<std::tuple<const char*, Where>> {};

TEST_P(Failure, EndsTheStepOnAllDevicesAndTrainingContinues) {
  const auto [mode, where] = GetParam();
  if (on_gpu() && (where == Where::forward_worker || where == Where::backward_worker))
    GTEST_SKIP() << "kernels of a GPU throw nothing";
  Planted::Trigger trigger;
  const Model model = planted_model(std::make_unique<Planted>(trigger));
  { const DeviceGroup warm_up(test_group(1)); }  // sanitizers start a thread of their own with the first one
  const int threads_before = thread_count();
  for (int culprit = 0; culprit < 3; ++culprit) {
    DeviceGroup group(test_group(3));
    EngineConfig config = small_config(model, 9);
    config.scheme = scheme_preset(mode);
    Engine engine(model, group, config, {{9}, {}});
    const OwnedBatch batch = random_batch(model, 9, 1, 0);
    engine.train_step(batch.view());
    engine.take_step_results(true);
    const std::vector<float> before = engine.parameters().values();
    trigger = {true, culprit, where};
    const std::string text = error_of_step(engine, batch);
    EXPECT_TRUE(text.starts_with(group[culprit].name() + ": ")) << text;
    expect_contains(text, "planted failure");
    trigger.armed = false;
    for (int d = 0; d < 3; ++d)
      EXPECT_EQ(engine.parameters().values(d), before) << "device " << d << " took half a step";
    for (int i = 0; i < 3; ++i) engine.train_step(batch.view());
    EXPECT_EQ(engine.take_step_results(true).size(), 3U);
    const std::vector<float> after = engine.parameters().values();
    EXPECT_NE(after, before);
    for (int d = 1; d < 3; ++d) EXPECT_EQ(engine.parameters().values(d), after);
    engine.finish();
  }
  // A joined thread may stay listed for a moment.
  for (int i = 0; i < 500 && thread_count() > threads_before; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_LE(thread_count(), threads_before);
}

INSTANTIATE_TEST_SUITE_P(Places, Failure,
                         ::testing::Combine(::testing::Values("dp", "criterion", "ddp", "zero1", "zero2", "zero3"),
                                            ::testing::Values(Where::forward_issue, Where::backward_issue,
                                                              Where::forward_worker, Where::backward_worker)));

TEST(Failure, FactsOfAnErrorOfAWorkerReachTheCaller) {
  if (on_gpu()) GTEST_SKIP() << "kernels of a GPU throw nothing";
  Planted::Trigger trigger;
  const Model model = planted_model(std::make_unique<Planted>(trigger));
  DeviceGroup group(test_group(2));
  Engine engine(model, group, small_config(model, 8), {{8}, {}});
  trigger = {true, 1, Where::backward_memory};
  try {
    engine.train_step(random_batch(model, 8, 1, 0).view());
    engine.take_step_results(true);
    FAIL() << "the planted failure went unnoticed";
  } catch (const OutOfMemory& error) {
    EXPECT_EQ(std::string(error.what()),
              group[1].name() + ": layer 'planted': planted: reserve more with EngineConfig::workspace_bytes 8MiB");
    EXPECT_EQ(error.shortage().needed_bytes, 65536);
    EXPECT_EQ(error.shortage().layer, "planted");
    const auto proposed = error.reason().parts(Reason::Part::Kind::proposed);
    ASSERT_EQ(proposed.size(), 1U);
    EXPECT_EQ(proposed[0].setting, settings::kWorkspaceBytes);
  }
}

TEST(Failure, ATargetOutOfRangeNamesTheDevice) {
  const Model model = random_model(1);
  DeviceGroup group(test_group(2));
  Engine engine(model, group, small_config(model, 8), {{8}, {}});
  const std::vector<float> before = engine.parameters().values();
  OwnedBatch batch = random_batch(model, 8, 1, 0);
  batch.memory->labels[6] = 17;
  const std::string text = error_of_step(engine, batch);
  EXPECT_TRUE(text.starts_with(group[1].name() + ": ")) << text;
  expect_contains(text, "17");
  for (int d = 0; d < 2; ++d) EXPECT_EQ(engine.parameters().values(d), before);
  // The error appears when a later step is issued, or when the step is waited for.
  EXPECT_THROW(
      {
        for (int i = 0; i < 4; ++i) engine.train_step(batch.view());
        engine.take_step_results(true);
      },
      DataError);
  for (int d = 0; d < 2; ++d) EXPECT_EQ(engine.parameters().values(d), before);
  batch.memory->labels[6] = 1;
  engine.train_step(batch.view());
  EXPECT_EQ(engine.take_step_results(true).size(), 1U);
  EXPECT_NE(engine.parameters().values(), before);
}

}  // namespace
}  // namespace vitrine::test::failure_test
