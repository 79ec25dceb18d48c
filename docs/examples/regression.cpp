// SPDX-License-Identifier: Apache-2.0
// Mean squared error: a loss of one's own on real-valued targets, in a training loop without the engine (whose labels
// are classes). Fits y = 3 a - 2 b + 1.
#include <cstdio>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include <vitrine/nn/layers/linear.h>
#include <vitrine/nn/parameter_store.h>
#include <vitrine/nn/sequential.h>
#include <vitrine/runtime/copy.h>
#include <vitrine/runtime/device.h>
#include <vitrine/runtime/host_buffer.h>
#include <vitrine/runtime/philox.h>

using namespace vitrine;

namespace {

/// loss becomes the mean of (y - target)^2, and y its gradient, 2 (y - target) / count. f32, on CPU devices.
void mean_squared_error(ExecContext& ctx, const View& y, const ConstView& target, const View& loss) {
  ctx.dispatch({"mean_squared_error", {y, target}, {y, loss}}, [y, target, loss] {
    float* const values = y.as<float>();
    const float* const wanted = target.as<float>();
    const auto count = static_cast<float>(y.numel());
    double sum = 0;
    for (int64_t i = 0; i < y.numel(); ++i) {
      const float difference = values[i] - wanted[i];
      sum += static_cast<double>(difference) * static_cast<double>(difference);
      values[i] = 2.0F * difference / count;
    }
    loss.as<float>()[0] = static_cast<float>(sum / static_cast<double>(count));
  });
}

int run() {
  constexpr int64_t kSamples = 64, kInputs = 2;
  DeviceGroupOptions options;
  options.devices = parse_device_list("cpu:0", 0);
  options.memory_bytes = {int64_t{16} << 20};
  DeviceGroup devices(options);
  ExecContext& ctx = devices[0].compute();
  ctx.reserve_workspace(int64_t{1} << 20);

  LinearConfig linear;
  linear.in_features = kInputs;
  linear.out_features = 1;
  std::vector<Sequential::Part> parts;
  parts.push_back({"linear", std::make_unique<Linear>(linear)});
  const Sequential net(std::move(parts));
  const FlatLayout layout(net.parameters(), 0);
  const int64_t n = layout.total_elements();
  const auto tensor = [&](const Shape& shape, Category category, const char* name) {
    const Tensor made = ctx.allocate(shape, DType::f32, category, name);
    zero(ctx, made);
    return made;
  };
  const Tensor params = tensor({n}, Category::parameters, "parameters");
  const Tensor grads = tensor({n}, Category::gradients, "gradients");
  const Tensor x = tensor({kSamples, kInputs}, Category::activations, "x");
  const Tensor target = tensor({kSamples, 1}, Category::activations, "target");
  const Tensor loss = tensor({1}, Category::activations, "loss");

  HostBuffer inputs(kSamples * kInputs * 4), targets(kSamples * 4), result(4);
  PhiloxSequence random(1, 0);
  for (int64_t i = 0; i < kSamples; ++i) {
    float* const sample = inputs.view({kSamples, kInputs}, DType::f32).as<float>() + i * kInputs;
    sample[0] = random.next_normal();
    sample[1] = random.next_normal();
    targets.view({kSamples}, DType::f32).as<float>()[i] = 3.0F * sample[0] - 2.0F * sample[1] + 1.0F;
  }
  copy(ctx, inputs.view({kSamples, kInputs}, DType::f32), x);
  copy(ctx, targets.view({kSamples, 1}, DType::f32), target);

  const std::vector<View> weights = layout.views(params), grad_weights = layout.views(grads);
  for (int step = 0; step < 200; ++step) {
    Pass pass;
    pass.step = step;
    Tensor y;
    Saved saved = net.forward_from(ctx, weights, x, y, pass);
    mean_squared_error(ctx, y, target, loss);  // y becomes its gradient
    net.backward_from(ctx, weights, std::move(saved), std::move(y), grad_weights, GradMode::overwrite, pass, {});
    ctx.dispatch({"sgd", {params, grads}, {params}}, [p = View(params), g = ConstView(grads)] {
      for (int64_t i = 0; i < p.numel(); ++i) p.as<float>()[i] -= 0.1F * g.as<float>()[i];
    });
  }
  copy(ctx, loss, result.view({1}, DType::f32));
  devices.synchronize();
  const float last = result.view({1}, DType::f32).as<float>()[0];
  std::printf("mean squared error %.1e\n", static_cast<double>(last));
  return last < 1e-6F ? 0 : 1;
}

}  // namespace

int main() try { return run(); } catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
