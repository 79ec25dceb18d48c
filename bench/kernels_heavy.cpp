// SPDX-License-Identifier: Apache-2.0
// Convolution and linear layers of AlexNet at 227 x 227, batch 32, and of small-cnn at batch 128, pass by pass: GFLOP/s, a multiplication and
// an addition counted as two. The first argument is the number of threads, the second the layer.
#include <string>

#include <benchmark/benchmark.h>

#include "kernels/conv2d.h"
#include "kernels/linear.h"
#include "runtime/copy.h"
#include "runtime/device.h"

namespace vitrine {
namespace {

struct ConvolutionLayer {
  const char* name;
  Shape x, w;
  Conv2dConfig config;
};
const ConvolutionLayer kConvolutions[] = {
    {"alexnet features.0", {32, 227, 227, 3}, {64, 11, 11, 3}, {4, 2, true}},
    {"alexnet features.3", {32, 27, 27, 64}, {192, 5, 5, 64}, {1, 2, true}},
    {"alexnet features.6", {32, 13, 13, 192}, {384, 3, 3, 192}, {1, 1, true}},
    {"alexnet features.8", {32, 13, 13, 384}, {256, 3, 3, 384}, {1, 1, true}},
    {"alexnet features.10", {32, 13, 13, 256}, {256, 3, 3, 256}, {1, 1, true}},
    {"small-cnn features.0", {128, 32, 32, 3}, {32, 3, 3, 3}, {1, 1, true}},
    {"small-cnn features.3", {128, 16, 16, 32}, {64, 3, 3, 32}, {1, 1, true}},
};

struct LinearLayer {
  const char* name;
  int64_t samples, in, out;
};
const LinearLayer kLinears[] = {{"alexnet classifier.1", 32, 9216, 4096},
                                {"alexnet classifier.4", 32, 4096, 4096},
                                {"alexnet classifier.6", 32, 4096, 10},
                                {"small-cnn classifier.0", 128, 4096, 128}};

// A CPU device whose kernels are timed from issue to synchronize.
class HeavyBench {
 public:
  explicit HeavyBench(const benchmark::State& state) : group_(options(static_cast<int>(state.range(0)))) {
    ctx().reserve_workspace(int64_t{64} << 20);
  }
  ExecContext& ctx() { return group_[0].compute(); }

  // Values that repeat with a period of 1009, between -1 and 1.
  Tensor filled(const Shape& shape) {
    Tensor t = ctx().allocate(shape, DType::f32, Category::activations, "bench");
    zero(ctx(), t);
    group_.synchronize();
    for (int64_t i = 0; i < t.numel(); ++i) t.view().as<float>()[i] = static_cast<float>(i % 1009) / 504.5F - 1.0F;
    return t;
  }

  template <class Issue>
  void run(benchmark::State& state, const char* label, double flop, const Issue& issue) {
    issue();
    group_.synchronize();
    for (auto _ : state) {
      issue();
      group_.synchronize();
    }
    state.SetLabel(label);
    state.counters["GFLOP/s"] = benchmark::Counter(flop * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  }

 private:
  static DeviceGroupOptions options(int threads) {
    DeviceGroupOptions o;
    o.devices = {DeviceId{Backend::cpu, 0}};
    o.memory_bytes = {int64_t{2} << 30};
    o.threads_per_device = {threads};
    o.trace = TraceLevel::off;
    return o;
  }
  DeviceGroup group_;
};

enum class Pass { forward, backward_data, backward_weight };

void convolution(benchmark::State& state, Pass pass) {
  const ConvolutionLayer& layer = kConvolutions[state.range(1)];
  HeavyBench bench(state);
  const Shape y_shape = conv2d_output_shape(layer.config, layer.x, layer.w);
  const Tensor x = bench.filled(layer.x), w = bench.filled(layer.w), bias = bench.filled({layer.w[0]}), y = bench.filled(y_shape);
  const double flop = 2.0 * static_cast<double>(y_shape.numel()) * static_cast<double>(layer.w.numel() / layer.w[0]);
  bench.run(state, layer.name, flop, [&] {
    if (pass == Pass::forward) conv2d_forward(bench.ctx(), layer.config, x, w, bias, y);
    if (pass == Pass::backward_data) conv2d_backward_data(bench.ctx(), layer.config, y, w, x);
    if (pass == Pass::backward_weight) conv2d_backward_weight(bench.ctx(), layer.config, x, y, w, bias, GradMode::overwrite);
  });
}

void linear(benchmark::State& state, Pass pass) {
  const LinearLayer& layer = kLinears[state.range(1)];
  HeavyBench bench(state);
  const Tensor x = bench.filled({layer.samples, layer.in}), w = bench.filled({layer.out, layer.in});
  const Tensor bias = bench.filled({layer.out}), y = bench.filled({layer.samples, layer.out});
  const double flop = 2.0 * static_cast<double>(layer.samples) * static_cast<double>(layer.in) * static_cast<double>(layer.out);
  bench.run(state, layer.name, flop, [&] {
    if (pass == Pass::forward) linear_forward(bench.ctx(), x, w, bias, true, y);
    if (pass == Pass::backward_data) linear_backward_data(bench.ctx(), y, w, x);
    if (pass == Pass::backward_weight) linear_backward_weight(bench.ctx(), x, y, w, bias, GradMode::overwrite);
  });
}

void convolutions(benchmark::internal::Benchmark* b) { b->ArgsProduct({{1, 4}, benchmark::CreateDenseRange(0, 6, 1)})->UseRealTime(); }
void linears(benchmark::internal::Benchmark* b) { b->ArgsProduct({{1, 4}, benchmark::CreateDenseRange(0, 3, 1)})->UseRealTime(); }

BENCHMARK_CAPTURE(convolution, forward, Pass::forward)->Apply(convolutions)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(convolution, backward_data, Pass::backward_data)->Apply(convolutions)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(convolution, backward_weight, Pass::backward_weight)->Apply(convolutions)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(linear, forward, Pass::forward)->Apply(linears)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(linear, backward_data, Pass::backward_data)->Apply(linears)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(linear, backward_weight, Pass::backward_weight)->Apply(linears)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace vitrine
