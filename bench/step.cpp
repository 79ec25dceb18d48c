// SPDX-License-Identifier: Apache-2.0
// One training step: the engine on N devices, compared with the same layers and kernels in a hand-written loop on one
// device.
//
//   bench_step [--device=cuda] --benchmark_filter=alexnet
//
// With several devices on GPUs, logical devices are assigned to the GPUs in turn.
//
// Counters: samples/s; for engine steps, the planned peak bytes of device 0.
#include <algorithm>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "bench/device_choice.h"
#include "bench/host_data.h"
#include "kernels/cross_entropy.h"
#include "kernels/optimizer.h"
#include "kernels/step_control.h"
#include "nn/parallel/engine.h"
#include "nn/parallel/plan/memory_plan.h"
#include "runtime/copy.h"

namespace {

using namespace vitrine;
using bench::half_normalization;
using bench::HostData;
using bench::kImage;

struct Job {
  const char* name;
  const char* model;
  int64_t batch;
  int64_t image_size;  // of the model's input; the data set's images are 32x32
};

constexpr Job kJobs[] = {{"alexnet_227_b64", "alexnet", 64, 227},
                         {"small_cnn_b128", "small-cnn", 128, 32},
                         {"mlp_b128", "mlp", 128, 32},
                         {"alexnet_227_b512", "alexnet", 512, 227}};
constexpr int64_t kLargestOnCpu = 128;  // samples

Backend backend = Backend::cpu;  // set once, in main

DeviceGroupOptions devices_of(int count, TraceLevel trace) {
  DeviceGroupOptions options;
  const int gpus = backend == Backend::cuda ? cuda_device_count() : count;
  for (int i = 0; i < count; ++i) options.devices.push_back({backend, i % gpus});
  options.trace = trace;
  return options;
}

void engine_step(benchmark::State& state, const Job& job, const char* mode, int devices, TraceLevel trace,
                 DType precision = DType::f32) {
  const Model model = make_model(job.model, {job.image_size, 3, 10, {}});
  DeviceGroup group(devices_of(devices, trace));
  EngineConfig config = bench::step_config(mode, job.batch);
  config.precision.compute = precision;
  if (precision == DType::f16) config.precision.loss_scaling.kind = LossScaling::Kind::dynamic;
  Engine engine(model, group, config, {{job.batch}, {}});
  const HostData data(job.batch, group.host_memory());
  const auto step = [&] {
    engine.train_step(data.batch());
    benchmark::DoNotOptimize(engine.take_step_results(false));
  };
  for (int i = 0; i < 3; ++i) step();
  engine.take_step_results(true);
  for (auto _ : state) step();
  engine.take_step_results(true);
  state.counters["samples/s"] =
      benchmark::Counter(static_cast<double>(state.iterations() * job.batch), benchmark::Counter::kIsRate);
  state.counters["peak_bytes"] = static_cast<double>(engine.facts().plans[0].peak_bytes);
}

/// The same step without the engine: one context, one stream, explicit tensors. As in the engine, the host waits for
/// each step's loss one step later.
void bare_step(benchmark::State& state, const Job& job) {
  const Model model = make_model(job.model, {job.image_size, 3, 10, {}});
  DeviceGroup group(devices_of(1, TraceLevel::off));
  ExecContext& ctx = group[0].compute();
  const FlatLayout layout(model.net->parameters(), LossTotals::kCount);
  const auto flat = [&](int64_t elements, Category category) {
    Tensor t = ctx.allocate({elements}, DType::f32, category, "flat");
    zero(ctx, t);
    return t;
  };
  const Tensor parameters = flat(layout.parameter_elements(), Category::parameters),
               gradients = flat(layout.total_elements(), Category::gradients);
  const Tensor first = flat(layout.parameter_elements(), Category::optimizer),
               second = flat(layout.parameter_elements(), Category::optimizer);
  const Tensor count = ctx.allocate({1}, DType::i32, Category::optimizer, "step");
  const Tensor control = ctx.allocate({StepControl::kCount}, DType::f32, Category::optimizer, "step control");
  zero(ctx, count);
  zero(ctx, control);
  ctx.reserve_workspace(kMostCpuWorkspace);
  std::vector<float> start(static_cast<size_t>(layout.parameter_elements()), 0.0F);
  initialize(layout, 0, start);
  copy(ctx, ConstView(start.data(), {layout.parameter_elements()}, DType::f32, DeviceId::host()), parameters);
  const std::vector<View> parameter_views = layout.views(parameters), gradient_views = layout.views(gradients);
  const View totals = gradients.view().rows(layout.parameter_elements(), layout.total_elements());
  const Tensor images = ctx.allocate({job.batch, kImage, kImage, 3}, DType::u8, Category::staging, "images");
  const Tensor labels = ctx.allocate({job.batch}, DType::i32, Category::staging, "labels");
  const HostData data(job.batch, group.host_memory());
  const HostBuffer host_totals(LossTotals::kCount * size_of(DType::f32), group.host_memory());
  const auto done = ctx.stream().make_event();
  AdamConfig adam;
  adam.weight_decay = 0.01F;
  adam.decoupled = true;
  int64_t number = 0;
  const auto step = [&] {
    const Pass pass{true, 0, number++, 0};
    copy(ctx, data.batch().images, images);
    copy(ctx, data.batch().labels, labels);
    zero(ctx, totals);
    const Tensor input = ctx.allocate(model.input_shape(job.batch), DType::f32, Category::activations, "input");
    resize_normalize(ctx, half_normalization(), images, input);
    Tensor output;
    Saved saved = model.net->forward_from(ctx, parameter_views, input, output, pass);
    softmax_cross_entropy(ctx, {-100, 1.0F / static_cast<float>(job.batch)}, output, labels, {}, output, totals);
    model.net->backward_from(ctx, parameter_views, std::move(saved), std::move(output), gradient_views,
                             GradMode::overwrite, pass, {});
    decide_step(ctx, static_cast<double>(job.batch), NonFinite::accept, totals, {}, control);
    adam_update(ctx, adam, parameters, gradients.view().rows(0, layout.parameter_elements()), first, second, count,
                control);
    done->synchronize();
    copy(ctx, totals, host_totals.view({LossTotals::kCount}, DType::f32));
    ctx.record(*done);
  };
  for (int i = 0; i < 3; ++i) step();
  group.synchronize();
  for (auto _ : state) step();
  group.synchronize();
  state.counters["samples/s"] =
      benchmark::Counter(static_cast<double>(state.iterations() * job.batch), benchmark::Counter::kIsRate);
}

}  // namespace

int main(int argc, char** argv) {
  backend = bench::take_device_choice(argc, argv);
  const bool on_gpus = backend == Backend::cuda;
  const int most = on_gpus ? 2 : static_cast<int>(DeviceGroup(devices_of(1, TraceLevel::off))[0].cores().size());
  for (const Job& job : kJobs) {
    if (!on_gpus && job.batch > kLargestOnCpu) continue;
    const std::string name = job.name;
    const auto add = [](const std::string& label, auto run) {
      benchmark::RegisterBenchmark(label.c_str(), run)->Unit(benchmark::kMillisecond)->UseRealTime();
    };
    add("step/" + name + "/bare", [job](benchmark::State& s) { bare_step(s, job); });
    for (const TraceLevel trace : {TraceLevel::off, TraceLevel::phase, TraceLevel::operation}) {
      const std::string level = trace == TraceLevel::off ? "off" : trace == TraceLevel::phase ? "phase" : "operation";
      add("step/" + name + "/engine/ddp/devices:1/trace:" + level,
          [job, trace](benchmark::State& s) { engine_step(s, job, "ddp", 1, trace); });
    }
    for (const DType precision : {DType::f16, DType::bf16}) {
      add("step/" + name + "/engine/ddp/devices:1/" + dtype_name(precision),
          [job, precision](benchmark::State& s) { engine_step(s, job, "ddp", 1, TraceLevel::off, precision); });
    }
    for (int devices = 2; devices <= std::max(2, most); devices *= 2) {
      for (const char* mode : {"dp", "criterion", "ddp"}) {
        add("step/" + name + "/engine/" + mode + "/devices:" + std::to_string(devices),
            [job, mode, devices](benchmark::State& s) { engine_step(s, job, mode, devices, TraceLevel::phase); });
      }
    }
  }
  return bench::run_benchmarks(argc, argv);
}
