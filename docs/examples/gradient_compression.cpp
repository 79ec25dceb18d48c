// SPDX-License-Identifier: Apache-2.0
// A custom Reducer: trains a perceptron on two CPU devices with compressed gradients (sparse_reducer.h). A quarter of
// the gradient bytes is sent per step; exit status 1 unless the loss falls.
#include <cstdio>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include <vitrine/nn/parallel/engine.h>
#include <vitrine/runtime/philox.h>

#include "points.h"
#include "sparse_reducer.h"

using namespace vitrine;

namespace {

constexpr int64_t kClasses = 2, kHidden = 64, kBatch = 64, kSlices = 4;
constexpr int kSteps = 400;

/// Points inside and outside a circle.
HostBatch draw(uint64_t seed) {
  PhiloxSequence random(seed, 0);
  Points points;
  for (int64_t i = 0; i < kBatch; ++i) {
    const float x = random.next_normal(), y = random.next_normal();
    points.add(x, y, x * x + y * y < 1.4F ? 1 : 0);
  }
  return batch_of(std::move(points));
}

int run() {
  DeviceGroupOptions options;
  options.devices = parse_device_list("cpu:0-1", 0);
  options.memory_bytes = {int64_t{64} << 20};
  options.check_order = true;  // reports a missing wait between the reducer's two streams
  DeviceGroup devices(options);
  const Model model = make_perceptron(kHidden, kClasses);
  EngineConfig config;
  config.batch_size = kBatch;
  config.image_dtype = DType::f32;
  config.workspace_bytes = int64_t{1} << 20;
  config.optimizer = make_optimizer_config("sgd", 0.1, {}, false, {});
  config.reducer = [](const ReducerContext& replica) { return std::make_unique<SparseReducer>(replica, kSlices); };
  Engine engine(model, devices, config, {.train_batches = {kBatch}});
  for (int step = 0; step < kSteps; ++step) engine.train_step(draw(static_cast<uint64_t>(step)));
  const std::vector<StepResult> results = engine.take_step_results(true);
  engine.parameters().verify();
  engine.finish();
  const int64_t elements = engine.parameters().layout().parameter_elements();
  std::printf("gradients sent per step: %lld of %lld elements\n", static_cast<long long>(elements / kSlices),
              static_cast<long long>(elements));
  double last = 0;
  for (size_t step = results.size() - 20; step < results.size(); ++step) last += results[step].mean_loss() / 20;
  std::printf("loss: %.4f at first, %.4f in the last 20 steps\n", results.front().mean_loss(), last);
  return last < 0.5 * results.front().mean_loss() ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gradient_compression: %s\n", error.what());
    return 1;
  }
}
