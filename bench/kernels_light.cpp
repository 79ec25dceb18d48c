// SPDX-License-Identifier: Apache-2.0
// Memory-bound kernels: bytes/s of each (every tensor counts once for each read or write), and the ratio to a copy of
// as many bytes in the same run.
#include "bench/kernel_bench.h"
#include "kernels/batch_norm.h"
#include "kernels/cast.h"
#include "kernels/cross_entropy.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/image.h"
#include "kernels/optimizer.h"
#include "kernels/pool2d.h"
#include "kernels/step_control.h"

namespace vitrine::bench {
namespace {

using State = benchmark::State;

using Map = void (*)(ExecContext& ctx, const Tensor& x, const Tensor& y, const Tensor& result);

/// A pass over flat buffers: x, and y if there are two inputs. The result takes the place of the last input, or has a
/// buffer of its own.
void add_map(const Place& place, const std::string& name, int64_t elements, int inputs, bool in_place, Map map) {
  add_kernel(name, place, [=](KernelBench& b, State& state) {
    const Tensor x = b.filled({elements}), y = inputs > 1 ? b.filled({elements}) : x,
                 result = in_place ? y : b.make({elements});
    b.run_bytes(state, (inputs + 1) * x.bytes(), [&] { map(b.ctx(), x, y, result); });
  });
}

void add_elementwise(const Place& place, int64_t elements, const std::string& size) {
  add_map(place, "copy_peer/" + size, elements, 1, false,
          [](auto& ctx, auto& x, auto&, auto& to) { copy(ctx, x, to); });
  add_map(place, "relu_forward_in_place/" + size, elements, 1, true,
          [](auto& ctx, auto& x, auto&, auto& to) { relu_forward(ctx, x, to); });
  add_map(place, "relu_forward/" + size, elements, 1, false,
          [](auto& ctx, auto& x, auto&, auto& to) { relu_forward(ctx, x, to); });
  add_map(place, "relu_backward_in_place/" + size, elements, 2, true,
          [](auto& ctx, auto& y, auto& g, auto& to) { relu_backward(ctx, y, g, to); });
  add_map(place, "gelu_forward/" + size, elements, 1, false,
          [](auto& ctx, auto& x, auto&, auto& to) { gelu_forward(ctx, x, to); });
  add_map(place, "gelu_backward/" + size, elements, 2, true,
          [](auto& ctx, auto& x, auto& g, auto& to) { gelu_backward(ctx, x, g, to); });
  add_map(place, "add_three/" + size, elements, 2, false,
          [](auto& ctx, auto& x, auto& y, auto& to) { add(ctx, x, y, to); });
}

/// The passes of a batch norm over one activation.
void add_batch_norm(const Place& place, const Shape& shape) {
  const int64_t channels = shape[3];
  add_kernel("batch_norm_moments/" + shape.str(), place, [=](KernelBench& b, State& state) {
    const Tensor x = b.filled(shape), moments = b.make({2, channels});
    b.run_bytes(state, x.bytes(), [&] { batch_norm_moments(b.ctx(), x, moments); });
  });
  add_kernel("batch_norm_forward/" + shape.str(), place, [=](KernelBench& b, State& state) {
    const Tensor x = b.filled(shape), y = b.make(shape), statistics = b.filled({2, channels}),
                 weight = b.filled({channels});
    b.run_bytes(state, 2 * x.bytes(),
                [&] { batch_norm_forward(b.ctx(), {.relu = true}, x, statistics, weight, weight, y); });
  });
  add_kernel("batch_norm_backward_sums/" + shape.str(), place, [=](KernelBench& b, State& state) {
    const Tensor x = b.filled(shape), g = b.filled(shape), statistics = b.filled({2, channels}),
                 sums = b.make({2, channels});
    const Tensor weight = b.make({channels}), bias = b.make({channels});
    b.run_bytes(state, 2 * x.bytes(),
                [&] { batch_norm_backward_sums(b.ctx(), x, g, statistics, sums, weight, bias, GradMode::overwrite); });
  });
  add_kernel("batch_norm_backward_data/" + shape.str(), place, [=](KernelBench& b, State& state) {
    const Tensor x = b.filled(shape), g = b.filled(shape), statistics = b.filled({2, channels}),
                 sums = b.filled({2, channels});
    const Tensor weight = b.filled({channels});
    b.run_bytes(state, 3 * x.bytes(), [&] {
      batch_norm_backward_data(b.ctx(), x, g, statistics, weight, sums, shape[0] * shape[1] * shape[2], g);
    });
  });
}

/// All pooling kernels on one activation.
void add_pools(const Place& place, const Shape& shape) {
  const Pool2dConfig config{3, 2, 0};
  const Shape y_shape = pool2d_output_shape(config, shape);
  add_kernel("max_pool_forward/" + shape.str(), place, [=](KernelBench& b, State& state) {
    const Tensor x = b.filled(shape), y = b.make(y_shape), indices = b.make(y_shape, DType::u8);
    b.run_bytes(state, x.bytes() + y.bytes() + indices.bytes(),
                [&] { max_pool2d_forward(b.ctx(), config, x, y, indices); });
  });
  add_kernel("max_pool_backward/" + shape.str(), place, [=](KernelBench& b, State& state) {
    const Tensor x = b.filled(shape), y = b.make(y_shape), indices = b.make(y_shape, DType::u8);
    max_pool2d_forward(b.ctx(), config, x, y, indices);
    b.run_bytes(state, x.bytes() + y.bytes() + indices.bytes(),
                [&] { max_pool2d_backward(b.ctx(), config, y, indices, x); });
  });
  add_kernel("max_pool_2x2_backward_and_sums/" + shape.str(), place, [=](KernelBench& b, State& state) {
    const Pool2dConfig side_by_side{2, 2, 0};
    const Shape small = pool2d_output_shape(side_by_side, shape);
    const Tensor x = b.filled(shape), y = b.make(small), indices = b.make(small, DType::u8),
                 sums = b.make({shape[3]}, DType::f32);
    max_pool2d_forward(b.ctx(), side_by_side, x, y, indices);
    b.run_bytes(state, x.bytes() + y.bytes() + indices.bytes(),
                [&] { max_pool2d_backward(b.ctx(), side_by_side, y, indices, x, sums); });
  });
  add_kernel("avg_pool_forward/" + shape.str(), place, [=](KernelBench& b, State& state) {
    const Tensor x = b.filled(shape), y = b.make(y_shape);
    b.run_bytes(state, x.bytes() + y.bytes(), [&] { avg_pool2d_forward(b.ctx(), config, x, y); });
  });
  add_kernel("avg_pool_backward/" + shape.str(), place, [=](KernelBench& b, State& state) {
    const Tensor x = b.make(shape), y = b.filled(y_shape);
    b.run_bytes(state, x.bytes() + y.bytes(), [&] { avg_pool2d_backward(b.ctx(), config, y, x); });
  });
  add_kernel("global_avg_pool_forward/" + shape.str(), place, [=](KernelBench& b, State& state) {
    const Tensor x = b.filled(shape), y = b.make({shape[0], 1, 1, shape[3]});
    b.run_bytes(state, x.bytes() + y.bytes(), [&] { adaptive_avg_pool2d_forward(b.ctx(), x, y); });
  });
}

void add_dropout(const Place& place, const Shape& shape) {
  add_kernel("dropout/" + shape.str(), place, [=](KernelBench& b, State& state) {
    const Tensor x = b.filled(shape);
    b.run_bytes(state, 2 * x.bytes(), [&] { dropout(b.ctx(), {0.5F, 1, 2, 3, 0}, x, x); });
  });
}

void add_cross_entropy(const Place& place, const Shape& shape) {
  add_kernel("cross_entropy/" + shape.str(), place, [=](KernelBench& b, State& state) {
    const Tensor logits = b.filled(shape), grad = b.make(shape);
    const Tensor targets = b.make({shape[0]}, DType::i32), totals = b.make({LossTotals::kCount});
    b.run_bytes(state, 2 * logits.bytes(),
                [&] { softmax_cross_entropy(b.ctx(), {}, logits, targets, {}, grad, totals); });
  });
}

constexpr int64_t kParameters = 57035456;  // AlexNet's

/// Control of a step that is taken.
std::vector<float> taken_step() {
  std::vector<float> control(StepControl::kCount, 0.0F);
  control[StepControl::kFactor] = control[StepControl::kActive] = 1.0F;
  return control;
}

void add_optimizers(const Place& place) {
  const std::vector<float> taken = taken_step();
  add_kernel("sgd_momentum", place, [=](KernelBench& b, State& state) {
    const Tensor p = b.filled({kParameters}), g = b.filled({kParameters}), m = b.make({kParameters});
    const Tensor step = b.make({1}, DType::i32), control = b.from_host({StepControl::kCount}, taken);
    b.run_bytes(state, 5 * p.bytes(), [&] { sgd_update(b.ctx(), {0.01, 0.9, 1e-4, false}, p, g, m, step, control); });
  });
  add_kernel("adamw", place, [=](KernelBench& b, State& state) {
    const Tensor p = b.filled({kParameters}), g = b.filled({kParameters}), m = b.make({kParameters}),
                 v = b.make({kParameters});
    const Tensor step = b.make({1}, DType::i32), control = b.from_host({StepControl::kCount}, taken);
    b.run_bytes(state, 7 * p.bytes(), [&] {
      adam_update(b.ctx(), {1e-3, 0.9, 0.999, 1e-8, 0.01, true}, p, g, m, v, step, control);
    });
  });
}

/// Additional kernels of mixed precision: casts, the update that also writes the 16-bit copy, and the check of the
/// gradients.
void add_mixed_precision(const Place& place) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    add_kernel(std::string("cast/f32_to_") + dtype_name(dtype), place, [=](KernelBench& b, State& state) {
      const Tensor p = b.filled({kParameters}), half_parameters = b.make({kParameters}, dtype);
      b.run_bytes(state, p.bytes() + half_parameters.bytes(), [&] { cast(b.ctx(), p, half_parameters); });
    });
  }
  for (const DType dtype : {DType::f16, DType::bf16}) {
    add_kernel(std::string("adamw_and_copy/") + dtype_name(dtype), place, [=](KernelBench& b, State& state) {
      const Tensor p = b.filled({kParameters}), g = b.filled({kParameters}), m = b.make({kParameters}),
                   v = b.make({kParameters});
      const Tensor half_parameters = b.make({kParameters}, dtype), step = b.make({1}, DType::i32);
      const Tensor control = b.from_host({StepControl::kCount}, taken_step());
      b.run_bytes(state, 7 * p.bytes() + half_parameters.bytes(), [&] {
        adam_update(b.ctx(), {1e-3, 0.9, 0.999, 1e-8, 0.01, true}, p, g, m, v, step, control, nullptr, half_parameters);
      });
    });
  }
  add_kernel("check_gradients", place, [=](KernelBench& b, State& state) {
    const Tensor g = b.filled({kParameters}), control = b.make({StepControl::kCount});
    b.run_bytes(state, g.bytes(), [&] { check_gradients(b.ctx(), g, control); });
  });
}

void add_resize(const Place& place, int64_t images, int64_t size) {
  add_kernel("resize/" + std::to_string(images) + "x32x32x3/" + std::to_string(size), place,
             [=](KernelBench& b, State& state) {
               const Tensor from = b.make({images, 32, 32, 3}, DType::u8), y = b.make({images, size, size, 3});
               const Normalization normalization{{0.5F, 0.5F, 0.5F}, {0.25F, 0.25F, 0.25F}};
               b.run_bytes(state, from.bytes() + y.bytes(), [&] { resize_normalize(b.ctx(), normalization, from, y); });
             });
}

}  // namespace

void add_light_kernels(const Place& place) {
  // A GPU's cache holds as much as a CPU benchmark touches, so sizes begin at 64 MiB there.
  for (const int64_t mib : place.on_gpu() ? std::vector<int64_t>{64, 256} : std::vector<int64_t>{64}) {
    const int64_t elements = mib << 18;
    const std::string size = std::to_string(mib) + "MiB";
    add_elementwise(place, elements, size);
  }
  const int64_t batch = place.on_gpu() ? 512 : 64;
  for (const Shape& shape : {Shape{batch, 56, 56, 64}, Shape{batch, 27, 27, 192}, Shape{batch, 13, 13, 256}})
    add_pools(place, shape);  // AlexNet's
  for (const Shape& shape : {Shape{batch, 56, 56, 64}, Shape{batch, 14, 14, 256}})
    add_batch_norm(place, shape);  // ResNet's
  if (place.on_gpu()) {
    add_dropout(place, {4096, 9216});
    for (const Shape& shape : {Shape{1 << 20, 10}, Shape{65536, 1000}, Shape{16384, 5000}, Shape{2048, 50257}})
      add_cross_entropy(place, shape);
  } else {
    add_dropout(place, {64, 9216});
    add_cross_entropy(place, {512, 1000});
  }
  add_optimizers(place);
  add_mixed_precision(place);
  add_resize(place, batch, 227);
  add_resize(place, place.on_gpu() ? 8192 : 64, 32);
}

}  // namespace vitrine::bench
