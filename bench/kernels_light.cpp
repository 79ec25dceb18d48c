// SPDX-License-Identifier: Apache-2.0
// The kernels that move bytes rather than compute: bytes/s of each (every tensor counted once for each read or write), and of a copy in the
// same run to divide by. The first argument is the number of threads.
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "kernels/cross_entropy.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/image.h"
#include "kernels/optimizer.h"
#include "kernels/pool2d.h"
#include "kernels/relu.h"
#include "runtime/copy.h"
#include "runtime/device.h"

namespace vitrine {
namespace {

/// A CPU device whose kernels are timed from issue to synchronize.
class Bench {
 public:
  explicit Bench(int64_t threads) : group_(options(static_cast<int>(threads))) {}
  ExecContext& ctx() { return group_[0].compute(); }

  Tensor make(const Shape& shape, DType dtype = DType::f32) {
    Tensor t = ctx().allocate(shape, dtype, Category::activations, "bench");
    zero(ctx(), t);
    group_.synchronize();
    return t;
  }
  /// Values that repeat with a period of 1009, between -1 and 1.
  Tensor filled(const Shape& shape) {
    Tensor t = make(shape);
    float* p = t.view().as<float>();
    for (int64_t i = 0; i < t.numel(); ++i) p[i] = static_cast<float>(i % 1009) / 504.5F - 1.0F;
    return t;
  }

  template <class Issue>
  void run(benchmark::State& state, int64_t bytes, const Issue& issue) {
    issue();
    group_.synchronize();
    for (auto _ : state) {
      issue();
      group_.synchronize();
    }
    state.SetBytesProcessed(state.iterations() * bytes);
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

constexpr int64_t kElements = int64_t{16} << 20;

void copy_peer(benchmark::State& state) {
  Bench b(state.range(0));
  const Tensor x = b.filled({kElements});
  const Tensor y = b.make({kElements});
  b.run(state, 2 * x.bytes(), [&] { copy(b.ctx(), x, y); });
}

void relu_forward_in_place(benchmark::State& state) {
  Bench b(state.range(0));
  const Tensor x = b.filled({kElements});
  b.run(state, 2 * x.bytes(), [&] { relu_forward(b.ctx(), x, x); });
}

void relu_backward_in_place(benchmark::State& state) {
  Bench b(state.range(0));
  const Tensor y = b.filled({kElements});
  const Tensor g = b.filled({kElements});
  b.run(state, 3 * y.bytes(), [&] { relu_backward(b.ctx(), y, g, g); });
}

void add_three(benchmark::State& state) {
  Bench b(state.range(0));
  const Tensor x = b.filled({kElements});
  const Tensor y = b.filled({kElements});
  const Tensor z = b.make({kElements});
  b.run(state, 3 * x.bytes(), [&] { add(b.ctx(), x, y, z); });
}

// The pools of AlexNet at 227 pixels, batch 64.
const std::vector<Shape> kPools{{64, 56, 56, 64}, {64, 27, 27, 192}, {64, 13, 13, 256}};

void max_pool_forward(benchmark::State& state) {
  Bench b(state.range(0));
  const Shape& shape = kPools[static_cast<size_t>(state.range(1))];
  const Shape y_shape = pool2d_output_shape({3, 2, 0}, shape);
  const Tensor x = b.filled(shape);
  const Tensor y = b.make(y_shape);
  const Tensor indices = b.make(y_shape, DType::u8);
  b.run(state, x.bytes() + y.bytes() + indices.bytes(), [&] { max_pool2d_forward(b.ctx(), {3, 2, 0}, x, y, indices); });
}

void max_pool_backward(benchmark::State& state) {
  Bench b(state.range(0));
  const Shape& shape = kPools[static_cast<size_t>(state.range(1))];
  const Shape y_shape = pool2d_output_shape({3, 2, 0}, shape);
  const Tensor x = b.filled(shape);
  const Tensor y = b.make(y_shape);
  const Tensor indices = b.make(y_shape, DType::u8);
  max_pool2d_forward(b.ctx(), {3, 2, 0}, x, y, indices);
  b.run(state, x.bytes() + y.bytes() + indices.bytes(), [&] { max_pool2d_backward(b.ctx(), {3, 2, 0}, y, indices, x); });
}

void dropout_alexnet(benchmark::State& state) {
  Bench b(state.range(0));
  const Tensor x = b.filled({64, 9216});
  b.run(state, 2 * x.bytes(), [&] { dropout(b.ctx(), {0.5F, 1, 2, 3, 0}, x, x); });
}

void cross_entropy(benchmark::State& state) {
  Bench b(state.range(0));
  const Tensor logits = b.filled({512, 1000});
  const Tensor grad = b.make({512, 1000});
  const Tensor targets = b.make({512}, DType::i32);
  const Tensor totals = b.make({LossTotals::kCount});
  b.run(state, 2 * logits.bytes(), [&] { softmax_cross_entropy(b.ctx(), {}, logits, targets, grad, totals); });
}

constexpr int64_t kParameters = 57035456;  // AlexNet's

/// Totals with one valid target.
Tensor one_valid(Bench& b) {
  Tensor totals = b.make({LossTotals::kCount});
  totals.view().as<float>()[LossTotals::kValid] = 1.0F;
  return totals;
}

void sgd_momentum(benchmark::State& state) {
  Bench b(state.range(0));
  const Tensor p = b.filled({kParameters});
  const Tensor g = b.filled({kParameters});
  const Tensor m = b.make({kParameters});
  const Tensor step = b.make({1}, DType::i32);
  const Tensor totals = one_valid(b);
  b.run(state, 5 * p.bytes(), [&] { sgd_update(b.ctx(), {0.01, 0.9, 1e-4, false}, 1.0F, p, g, m, step, totals); });
}

void adamw(benchmark::State& state) {
  Bench b(state.range(0));
  const Tensor p = b.filled({kParameters});
  const Tensor g = b.filled({kParameters});
  const Tensor m = b.make({kParameters});
  const Tensor v = b.make({kParameters});
  const Tensor step = b.make({1}, DType::i32);
  const Tensor totals = one_valid(b);
  b.run(state, 7 * p.bytes(), [&] { adam_update(b.ctx(), {1e-3, 0.9, 0.999, 1e-8, 0.01, true}, 1.0F, p, g, m, v, step, totals); });
}

void resize(benchmark::State& state) {
  Bench b(state.range(0));
  const Tensor images = b.make({64, 32, 32, 3}, DType::u8);
  const Tensor y = b.make({64, state.range(1), state.range(1), 3});
  const Normalization normalization{{0.5F, 0.5F, 0.5F}, {0.25F, 0.25F, 0.25F}};
  b.run(state, images.bytes() + y.bytes(), [&] { resize_normalize(b.ctx(), normalization, images, y); });
}

const std::vector<int64_t> kThreads{1, 4};
BENCHMARK(copy_peer)->ArgsProduct({kThreads})->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(relu_forward_in_place)->ArgsProduct({kThreads})->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(relu_backward_in_place)->ArgsProduct({kThreads})->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(add_three)->ArgsProduct({kThreads})->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(max_pool_forward)->ArgsProduct({kThreads, {0, 1, 2}})->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(max_pool_backward)->ArgsProduct({kThreads, {0, 1, 2}})->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(dropout_alexnet)->ArgsProduct({kThreads})->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(cross_entropy)->ArgsProduct({kThreads})->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(sgd_momentum)->ArgsProduct({kThreads})->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(adamw)->ArgsProduct({kThreads})->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(resize)->ArgsProduct({kThreads, {32, 227}})->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace vitrine
