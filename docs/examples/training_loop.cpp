// SPDX-License-Identifier: Apache-2.0
// A custom layer in a custom training loop, without the engine: classifies points on the three arms of a spiral.
#include <cmath>
#include <cstdio>
#include <exception>
#include <vector>

#include <vitrine/kernels/cross_entropy.h>
#include <vitrine/kernels/optimizer.h>
#include <vitrine/kernels/step_control.h>
#include <vitrine/nn/layers/linear.h>
#include <vitrine/nn/parameter_store.h>
#include <vitrine/nn/sequential.h>
#include <vitrine/runtime/copy.h>
#include <vitrine/runtime/device.h>
#include <vitrine/runtime/host_buffer.h>
#include <vitrine/runtime/philox.h>

#include "leaky_relu.h"

using namespace vitrine;

namespace {

constexpr int64_t kSamples = 300;
constexpr int64_t kClasses = 3;
constexpr int64_t kHidden = 64;
constexpr int kSteps = 400;

Sequential make_net() {
  std::vector<Sequential::Part> parts;
  LinearConfig in, out;
  in.in_features = 2;
  in.out_features = out.in_features = kHidden;
  out.out_features = kClasses;
  parts.push_back({"in", std::make_unique<Linear>(in)});
  parts.push_back({"activation", std::make_unique<LeakyReLU>(0.01F)});
  parts.push_back({"out", std::make_unique<Linear>(out)});
  return Sequential(std::move(parts));
}

void draw_spirals(float* points, int32_t* labels) {
  PhiloxSequence random(7, 0);
  for (int64_t i = 0; i < kSamples; ++i) {
    const auto arm = static_cast<int32_t>(i % kClasses);
    const float radius = static_cast<float>(i) / kSamples;
    const float angle = 2.1F * static_cast<float>(arm) + 3.0F * radius + 0.1F * random.next_normal();
    points[2 * i] = radius * std::cos(angle);
    points[2 * i + 1] = radius * std::sin(angle);
    labels[i] = arm;
  }
}

/// Trains and returns the mean loss of each step.
std::vector<float> train() {
  DeviceGroupOptions options;
  options.devices = {{Backend::cpu, 0}};
  options.memory_bytes = {int64_t{64} << 20};
  options.check_order = true;
  DeviceGroup devices(options);
  ExecContext& ctx = devices[0].compute();
  ctx.reserve_workspace(int64_t{8} << 20);

  const Sequential net = make_net();
  const FlatLayout layout(net.parameters(), 0);
  const int64_t n = layout.total_elements();
  const auto flat = [&](Category category, const char* name) {
    Tensor tensor = ctx.allocate({n}, DType::f32, category, name);
    zero(ctx, tensor);
    return tensor;
  };
  const Tensor params = flat(Category::parameters, "parameters"), grads = flat(Category::gradients, "gradients");
  const Tensor exp_avg = flat(Category::optimizer, "exp_avg"), exp_avg_sq = flat(Category::optimizer, "exp_avg_sq");
  const Tensor step_count = ctx.allocate({1}, DType::i32, Category::optimizer, "step");
  const Tensor control = ctx.allocate({StepControl::kCount}, DType::f32, Category::optimizer, "step control");
  zero(ctx, step_count);
  zero(ctx, control);
  const Tensor x = ctx.allocate({kSamples, 2}, DType::f32, Category::activations, "x");
  const Tensor labels = ctx.allocate({kSamples}, DType::i32, Category::activations, "labels");
  const Tensor totals = ctx.allocate({LossTotals::kCount}, DType::f32, Category::gradients, "totals");

  HostBuffer start(n * 4), points(kSamples * 2 * 4), classes(kSamples * 4), result(LossTotals::kCount * 4);
  const View host_params = start.view({n}, DType::f32), host_x = points.view({kSamples, 2}, DType::f32);
  const View host_labels = classes.view({kSamples}, DType::i32),
             host_totals = result.view({LossTotals::kCount}, DType::f32);
  initialize(layout, 1, {host_params.as<float>(), static_cast<size_t>(n)});
  draw_spirals(host_x.as<float>(), host_labels.as<int32_t>());
  copy(ctx, host_params, params);
  copy(ctx, host_x, x);
  copy(ctx, host_labels, labels);

  const std::vector<View> param_views = layout.views(params), grad_views = layout.views(grads);
  CrossEntropyConfig loss_config;
  loss_config.grad_scale = 1.0F / kSamples;
  AdamConfig adam;
  adam.lr = 0.02F;
  std::vector<float> losses;
  for (int step = 0; step < kSteps; ++step) {
    Pass pass;
    pass.step = step;
    Tensor logits;
    Saved saved = net.forward_from(ctx, param_views, x, logits, pass);
    zero(ctx, totals);
    softmax_cross_entropy(ctx, loss_config, logits, labels, {}, logits, totals);
    net.backward_from(ctx, param_views, std::move(saved), std::move(logits), grad_views, GradMode::overwrite, pass,
                      [](int) {});
    decide_step(ctx, kSamples, NonFinite::accept, totals, {}, control);
    adam_update(ctx, adam, params, grads, exp_avg, exp_avg_sq, step_count, control);
    copy(ctx, totals, host_totals);
    devices.synchronize();
    losses.push_back(host_totals.as<float>()[LossTotals::kLossSum] /
                     static_cast<float>(LossTotals::count(host_totals.as<float>(), LossTotals::kValid)));
  }
  return losses;
}

}  // namespace

int main() {
  try {
    const std::vector<float> losses = train();
    for (size_t step = 0; step < losses.size(); step += 50)
      std::printf("step %3zu  loss %.4f\n", step, static_cast<double>(losses[step]));
    std::printf("last      loss %.4f\n", static_cast<double>(losses.back()));
    const bool fell = losses.front() > 0.8F && losses.back() < 0.25F;
    std::puts(fell ? "the loss fell" : "the loss did not fall as it should");
    return fell ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "training_loop: %s\n", error.what());
    return 1;
  }
}
