// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/step_scalars.cuh"
#include "kernels/optimizer.h"
#include "kernels/step_control.h"

namespace vitrine::cuda {
namespace {

/// For an update that the decision has not begun. One thread.
__global__ void begin_update(CountedUpdate count, float* control) {
  wait_for_earlier_work();
  count.begin(control);
}

/// Keeps elements finite if the step requires it.
struct Guard {
  float* control;
  bool on;

  /// False: the step is not taken.
  __device__ bool begin() {
    on = control[StepControl::kKeepsFinite] == 1.0F;
    return control[StepControl::kActive] == 1.0F;
  }
  /// If one of the new values is not finite, restores the old ones and stops training. All threads write the same
  /// value.
  template <int N>
  __device__ void keep(const float (&old)[N], float (&out)[N]) const {
    if (!on) return;
    bool finite = true;
    for (int i = 0; i < N; ++i) finite = finite && isfinite(out[i]);
    if (finite) return;
    for (int i = 0; i < N; ++i) out[i] = old[i];
    control[StepControl::kStopped] = StepControl::kByUpdate;
  }
};

/// lr and momentum (beta1 of adam): those in device memory if there are any, because the arguments of a captured launch
/// are fixed.
struct Rates {
  const StepValues* values;
  double configured_lr, configured_momentum;

  __device__ double lr() const { return values != nullptr ? values->lr : configured_lr; }
  __device__ double momentum() const { return values != nullptr ? values->momentum : configured_momentum; }
};

/// p -= lr * (g + weight_decay * p).   in: p, g   out: p
struct Sgd {
  static constexpr int kReads = 2, kWrites = 1;
  Guard guard;
  Rates rates;
  double lr_factor;
  float weight_decay;
  float factor, lr;

  __device__ bool begin() {
    factor = guard.control[StepControl::kFactor];
    lr = static_cast<float>(__dmul_rn(rates.lr(), lr_factor));
    return guard.begin();
  }
  __device__ void operator()(const float (&in)[2], float (&out)[1]) const {
    out[0] = in[0] - lr * (in[1] * factor + weight_decay * in[0]);
    guard.keep({in[0]}, out);
  }
};

/// in: p, g, buffer   out: p, buffer
struct SgdMomentum {
  static constexpr int kReads = 3, kWrites = 2;
  Guard guard;
  Rates rates;
  double lr_factor;
  float weight_decay;
  bool nesterov;
  float factor, lr, momentum;
  bool first;

  __device__ bool begin() {
    factor = guard.control[StepControl::kFactor];
    lr = static_cast<float>(__dmul_rn(rates.lr(), lr_factor));
    momentum = static_cast<float>(rates.momentum());
    first = __float_as_int(guard.control[StepControl::kUpdate]) == 1;
    return guard.begin();
  }
  __device__ void operator()(const float (&in)[3], float (&out)[2]) const {
    const float update = in[1] * factor + weight_decay * in[0];
    const float buffer =
        first ? update : momentum * in[2] + update;  // before the first update the content of the buffer is undefined
    out[0] = in[0] - lr * (nesterov ? update + momentum * buffer : buffer);
    out[1] = buffer;
    guard.keep({in[0], first ? 0.0F : in[2]}, out);
  }
};

/// in: p, g, m, v   out: p, m, v
struct Adam {
  static constexpr int kReads = 4, kWrites = 3;
  Guard guard;
  Rates rates;
  float beta2, rest2, eps;
  double lr_factor;
  double coupled, decoupled;  // weight decay: one is 0, because it changes the gradient (Adam) or the parameter (AdamW)
  float factor, step_size, correction, beta1, rest1, decay, shrink;

  __device__ bool begin() {
    factor = guard.control[StepControl::kFactor];
    step_size = guard.control[StepControl::kStepSize] * static_cast<float>(lr_factor);
    correction = guard.control[StepControl::kCorrection];
    beta1 = static_cast<float>(rates.momentum());
    rest1 = static_cast<float>(__dsub_rn(1.0, rates.momentum()));
    decay = static_cast<float>(coupled);
    shrink = static_cast<float>(__dsub_rn(1.0, __dmul_rn(__dmul_rn(rates.lr(), lr_factor), decoupled)));
    return guard.begin();
  }
  __device__ void operator()(const float (&in)[4], float (&out)[3]) const {
    const float decayed = in[0] * shrink;
    const float gradient = in[1] * factor + decay * decayed;
    const float mean = beta1 * in[2] + rest1 * gradient;
    const float square = beta2 * in[3] + rest2 * gradient * gradient;
    out[0] = decayed - step_size * mean / (sqrtf(square) * correction + eps);
    out[1] = mean;
    out[2] = square;
    guard.keep({in[0], in[2], in[3]}, out);
  }
};

/// An update that also writes its parameters in 16 bits.
template <class Update, class Half>
struct WithHalf : Update {
  using Narrow = Half;
};

/// Queues the update of one range. half_param: the 16-bit copy of all parameters, or empty.
template <class Update>
void queue_update(ExecContext& ctx, const Pointers<const float*, Update::kReads>& in,
                  const Pointers<float*, Update::kWrites>& out, const UpdateRange& range, const View& half_param,
                  const Update& update) {
  const int64_t count = range.end - range.begin;
  const auto queue_with = [&]<class Half>() {
    map_elements<float, WithHalf<Update, Half>>(ctx, in, out, count, {update}, half_param.as<Half>() + range.begin);
  };
  if (!half_param) return map_elements<float, Update>(ctx, in, out, count, update);
  if (half_param.dtype == DType::f16) return queue_with.template operator()<__half>();
  queue_with.template operator()<__nv_bfloat16>();
}

Guard queue_begin(ExecContext& ctx, const UpdateCount& count, const View& control) {
  if (count.step) launch(native_stream(ctx), begin_update, dim3(1), dim3(1), CountedUpdate(count), control.as<float>());
  return {control.as<float>(), false};
}

/// Calls queue(range, lr factor, weight decay) for each range.
template <class Queue>
void for_each_range(const UpdateRanges& ranges, int64_t count, double weight_decay, const Queue& queue) {
  if (ranges == nullptr) return queue(UpdateRange{0, count, 1.0, weight_decay});
  for (const UpdateRange& range : *ranges) queue(range);
}

}  // namespace

void sgd_update(ExecContext& ctx, const SgdConfig& config, View param, ConstView grad, View momentum_buffer, View step,
                View control, const UpdateRanges& ranges, View half_param, ConstView values) {
  const Guard guard = queue_begin(ctx, {.step = step}, control);
  const Rates rates{step_values(values), config.lr, config.momentum};
  for_each_range(ranges, param.numel(), config.weight_decay, [&](const UpdateRange& range) {
    const auto weight_decay = static_cast<float>(range.weight_decay);
    auto* p = param.as<float>() + range.begin;
    const auto* g = grad.as<float>() + range.begin;
    if (!momentum_buffer) {
      queue_update(ctx, {{p, g}}, {{p}}, range, half_param,
                   Sgd{guard, rates, range.lr_factor, weight_decay, 0.0F, 0.0F});
      return;
    }
    auto* buffer = momentum_buffer.as<float>() + range.begin;
    queue_update(ctx, {{p, g, buffer}}, {{p, buffer}}, range, half_param,
                 SgdMomentum{guard, rates, range.lr_factor, weight_decay, config.nesterov, 0.0F, 0.0F, 0.0F, false});
  });
}

void adam_update(ExecContext& ctx, const AdamConfig& config, View param, ConstView grad, View exp_avg, View exp_avg_sq,
                 View step, View control, const UpdateRanges& ranges, View half_param, ConstView values) {
  Adam adam{};
  adam.guard = queue_begin(ctx, {step, config.lr, config.beta1, config.beta2, values}, control);
  adam.rates = {step_values(values), config.lr, config.beta1};
  adam.beta2 = static_cast<float>(config.beta2);
  adam.rest2 = static_cast<float>(1.0 - config.beta2);
  adam.eps = static_cast<float>(config.eps);
  for_each_range(ranges, param.numel(), config.weight_decay, [&](const UpdateRange& range) {
    adam.lr_factor = range.lr_factor;
    adam.coupled = config.decoupled ? 0.0 : range.weight_decay;
    adam.decoupled = config.decoupled ? range.weight_decay : 0.0;
    auto* p = param.as<float>() + range.begin;
    auto* m = exp_avg.as<float>() + range.begin;
    auto* v = exp_avg_sq.as<float>() + range.begin;
    queue_update(ctx, {{p, grad.as<float>() + range.begin, m, v}}, {{p, m, v}}, range, half_param, adam);
  });
}

}  // namespace vitrine::cuda
