// SPDX-License-Identifier: Apache-2.0
// A custom training step, from the engine's parts: a custom loss (cross-entropy with label smoothing, computed on
// device 1 of two CPU devices) and a custom order (each batch is trained on twice before the update). Planning runs the
// same step, so the engine takes exactly the memory that it needs. Exit status 1 unless the loss falls.
#include <cmath>
#include <cstdio>
#include <exception>
#include <utility>
#include <vector>

#include <vitrine/kernels/cross_entropy.h>
#include <vitrine/nn/parallel/engine.h>
#include <vitrine/runtime/copy.h>
#include <vitrine/runtime/philox.h>

#include "points.h"

using namespace vitrine;

namespace {

constexpr int64_t kClasses = 3, kHidden = 32, kBatch = 48;
constexpr int kSteps = 300, kLossDevice = 1;
constexpr float kSmoothing = 0.1F;

/// Cross-entropy against targets of 1 - kSmoothing for the label and kSmoothing / kClasses for all. Writes the gradient
/// of the sum of losses, times `scale`, over the logits (N, kClasses), and the loss and counts to `totals`. A custom
/// operation declares what it reads and writes; with another lambda for CUDA it would run on GPUs too.
void smoothed_cross_entropy(ExecContext& ctx, const View& logits, const ConstView& labels, float scale,
                            const View& totals) {
  ctx.dispatch({"smoothed_cross_entropy", {labels}, {logits, totals}}, [=] {
    float* const z = logits.as<float>();
    const int32_t* const label = labels.as<int32_t>();
    float* const sums = totals.as<float>();
    int64_t correct = 0;
    double loss = 0;
    for (int64_t i = 0; i < labels.numel(); ++i) {
      float* const row = z + i * kClasses;
      double sum = 0;
      int best = 0;
      for (int c = 0; c < kClasses; ++c) {
        sum += std::exp(static_cast<double>(row[c]));
        if (row[c] > row[best]) best = c;
      }
      if (best == label[i]) ++correct;
      for (int c = 0; c < kClasses; ++c) {
        const double target = (c == label[i] ? 1.0 - kSmoothing : 0.0) + kSmoothing / kClasses;
        const double probability = std::exp(static_cast<double>(row[c])) / sum;
        loss -= target * std::log(probability);
        row[c] = scale * static_cast<float>(probability - target);
      }
    }
    sums[LossTotals::kLossSum] += static_cast<float>(loss);
    LossTotals::add_to_count(sums, LossTotals::kValid, labels.numel());
    LossTotals::add_to_count(sums, LossTotals::kCorrect, correct);
  });
}

void forward_and_backward(Engine& engine, const HostBatch& batch, const MicroBatch& micro_batch, bool last) {
  engine.stage(batch, micro_batch);
  engine.forward();
  {
    ExecContext& ctx = engine.devices()[kLossDevice].compute();
    const int64_t samples = micro_batch.samples();
    const Tensor logits = engine.outputs().gather(kLossDevice);
    const Tensor labels = ctx.allocate({samples}, DType::i32, Category::staging, "labels");
    const Tensor totals = ctx.allocate({LossTotals::kCount}, DType::f32, Category::staging, "totals");
    copy(ctx, batch.labels.rows(micro_batch.first_row, micro_batch.first_row + samples), labels);
    zero(ctx, totals);
    // Half of it, because the gradients of two passes add up.
    smoothed_cross_entropy(ctx, logits, labels, 0.5F / static_cast<float>(engine.outputs().nominal_targets()), totals);
    if (last) engine.outputs().add_totals(totals, kLossDevice);
    engine.outputs().scatter(logits, kLossDevice);
  }
  engine.backward_and_reduce(last);
}

/// default_step() with another loss and order.
void smoothed_step(Engine& engine, const HostBatch& batch) {
  for (const MicroBatch& micro_batch : engine.micro_batches()) {
    forward_and_backward(engine, batch, micro_batch, false);
    forward_and_backward(engine, batch, micro_batch, micro_batch.last);
  }
  engine.finish_reduction();
  engine.decide_step();
  engine.update_parameters();
  engine.distribute_parameters();
}

/// Points in three clouds.
HostBatch draw(uint64_t seed) {
  PhiloxSequence random(seed, 0);
  Points points;
  for (int64_t i = 0; i < kBatch; ++i) {
    const auto label = static_cast<int32_t>(i % kClasses);
    const float angle = 2.1F * static_cast<float>(label);
    const float x = std::cos(angle) + 0.3F * random.next_normal();
    const float y = std::sin(angle) + 0.3F * random.next_normal();
    points.add(x, y, label);
  }
  return batch_of(std::move(points));
}

int run() {
  DeviceGroupOptions options;
  options.devices = parse_device_list("cpu:0-1", 0);
  options.memory_bytes = {int64_t{64} << 20};
  options.check_order = true;
  DeviceGroup devices(options);
  const Model model = make_perceptron(kHidden, kClasses);
  EngineConfig config;
  config.batch_size = kBatch;
  config.image_dtype = DType::f32;
  config.workspace_bytes = int64_t{1} << 20;
  config.optimizer.set_learning_rate(0.01);
  config.step = smoothed_step;
  Engine engine(model, devices, config, {.train_batches = {kBatch}});
  for (int step = 0; step < kSteps; ++step) engine.train_step(draw(static_cast<uint64_t>(step)));
  const std::vector<StepResult> results = engine.take_step_results(true);
  engine.finish();
  const StepResult& last = results.back();
  std::printf("loss: %.4f at first, %.4f at last; %lld of %lld right\n", results.front().mean_loss(), last.mean_loss(),
              static_cast<long long>(last.correct), static_cast<long long>(last.valid));
  return last.mean_loss() < 0.7 * results.front().mean_loss() && last.valid == kBatch ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "custom_step: %s\n", error.what());
    return 1;
  }
}
