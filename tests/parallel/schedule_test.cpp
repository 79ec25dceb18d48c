// SPDX-License-Identifier: Apache-2.0
// What an engine issues on CPU devices in its whole life (setup, steps, evaluation, averages, checkpoints, a failure
// and the recovery from it), proven by tools/check_schedule.
#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>

#include "runtime/error.h"
#include "runtime/order_checker.h"
#include "runtime/schedule_writer.h"
#include "tests/parallel/planted_layer.h"
#include "tests/parallel/random_model.h"
#include "tests/support/expect_contains.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

namespace vitrine::test {
namespace {

/// The identity, which fails on device 1 when it is armed.
class Fails final : public Identity {
 public:
  explicit Fails(const bool& armed) : armed_(armed) {}

 private:
  void begin(ExecContext& ctx, bool backward) const override {
    if (armed_ && backward && ctx.ordinal() == 1) throw DataError("planted failure");
  }

  const bool& armed_;
};

/// Writes the schedule of an engine's life on three CPU devices. Returns the number of waits that streams requested.
int64_t write_life(const std::string& path, const char* mode, bool exact) {
  bool armed = false;
  const Model model = planted_model(std::make_unique<Fails>(armed));
  DeviceGroupOptions options = test_group(3);
  options.threads_per_device = {1};
  DeviceGroup group(options);
  std::ofstream file(path);
  ScheduleWriter writer(group, file);
  group.checker()->mute();
  EngineConfig config = small_config(model, 12);
  config.scheme = scheme_preset(mode);
  config.accumulate = 4;
  config.ema_decay = 0.9;
  if (exact) config.scheme.split.leaves = 12;
  {
    Engine engine(model, group, config, {{12, 7}, {5}});
    for (const int64_t samples : {12, 12, 12, 7}) engine.train_step(random_batch(model, samples, 1, 0).view());
    engine.take_step_results(true);
    std::vector<float> logits;
    engine.evaluate(random_batch(model, 5, 2, 0).view(), &logits);
    {
      const Engine::AverageScope averages(engine);
      engine.evaluate(random_batch(model, 5, 3, 0).view());
    }
    armed = true;
    EXPECT_THROW(engine.train_step(random_batch(model, 12, 1, 0).view()), DataError);
    armed = false;
    for (const int64_t samples : {7, 12, 12}) engine.train_step(random_batch(model, samples, 1, 0).view());
    engine.evaluate(random_batch(model, 5, 2, 0).view());
    engine.parameters().set(engine.parameters().values());
    engine.checkpointer().load_state(engine.checkpointer().state());
    engine.train_step(random_batch(model, 12, 1, 0).view());
    engine.finish();
    for (int d = 0; d < 3; ++d) writer.state_peak(d, engine.facts().plans[static_cast<size_t>(d)].peak_bytes);
  }
  return group.checker()->wait_count();
}

class Schedule : public ::testing::TestWithParam<std::tuple<const char*, bool>> {};

TEST_P(Schedule, OfAnEnginesWholeLifeIsProven) {
  if (on_gpu()) GTEST_SKIP() << "records CPU devices, whatever is tested";
  const auto [mode, exact] = GetParam();
  const TempFolder folder;
  const std::string path = folder.path("schedule.jsonl");
  EXPECT_GT(write_life(path, mode, exact), 0);
  const std::string check = source_path("tools/check_schedule") + " " + path;
  EXPECT_EQ(WEXITSTATUS(std::system(check.c_str())), 0) << check;  // NOLINT: a test
  expect_contains(content(path), "\"do\":\"recover\"");
}

INSTANTIATE_TEST_SUITE_P(Modes, Schedule,
                         ::testing::Combine(::testing::Values("dp", "criterion", "ddp"), ::testing::Bool()));

}  // namespace
}  // namespace vitrine::test
