// SPDX-License-Identifier: Apache-2.0
#include "tests/parallel/left_out_wait.h"

#include "runtime/error.h"

namespace vitrine::test {
namespace {

constexpr int64_t kSamples = 6;

struct Run {
  Run(Backend backend, const char* mode) : model(random_model(8)) {
    DeviceGroupOptions options = test_group(2);
    for (int i = 0; i < 2; ++i) options.devices[static_cast<size_t>(i)] = {backend, i};
    group = std::make_unique<DeviceGroup>(options);
    EngineConfig config = small_config(model, kSamples);
    config.scheme = scheme_preset(mode);
    engine = std::make_unique<Engine>(model, *group, config, Workload{{kSamples}, {}});
    step(0);
    step(1);
  }
  void step(uint32_t seed) {
    engine->train_step(random_batch(model, kSamples, seed, 0).view());
    engine->take_step_results(true);
  }

  Model model;
  std::unique_ptr<DeviceGroup> group;
  std::unique_ptr<Engine> engine;
};

}  // namespace

bool finds_left_out_wait(Backend backend, const char* mode, int64_t wait, bool muted) {
  Run run(backend, mode);
  if (muted) run.group->checker()->mute();
  run.group->checker()->leave_out_wait(wait);
  try {
    run.step(2);
    run.group->checker()->leave_out_wait(-1);
    run.step(3);
    return false;
  } catch (const OrderError&) {
    return true;
  }
}

int64_t waits_of_a_step(const char* mode) {
  Run run(Backend::meta, mode);
  const int64_t before = run.group->checker()->wait_count();
  run.step(2);
  return run.group->checker()->wait_count() - before;
}

}  // namespace vitrine::test
