// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/scratch.cuh"
#include "kernels/optimizer.h"
#include "kernels/step_control.h"

namespace vitrine::cuda {
namespace {

/// Scalars of an update that are known only on the device.
struct UpdateScalars {
  int32_t active;  // the step is taken
  int32_t guards;  // elements whose new values are not finite keep the old ones
  int32_t step;    // number of this update, from 1
  float factor;    // multiplies the summed gradient
  float step_size;
  float correction;  // 1 / sqrt(1 - beta2^step)
  double lr, momentum;
};
static_assert(static_cast<int64_t>(sizeof(UpdateScalars)) <= kOptimizerWorkspaceBytes);

/// Increments the step count if the step is taken. One thread; a separate kernel because all blocks of the update read the count.
///   momentum  beta1 of adam      values  null, or lr and momentum
__global__ void begin_update(double lr, double momentum, double beta2, const StepValues* values, const float* control, int32_t* step,
                             UpdateScalars* scalars) {
  UpdateScalars s{};
  s.lr = values != nullptr ? values->lr : lr;
  s.momentum = values != nullptr ? values->momentum : momentum;
  if (control[StepControl::kActive] == 1.0F) {
    s.active = 1;
    s.guards = control[StepControl::kKeepsFinite] == 1.0F ? 1 : 0;
    s.step = *step + 1;
    s.factor = control[StepControl::kFactor];
    s.step_size = static_cast<float>(s.lr / (1.0 - pow(s.momentum, static_cast<double>(s.step))));
    s.correction = static_cast<float>(1.0 / sqrt(1.0 - pow(beta2, static_cast<double>(s.step))));
    *step = s.step;
  }
  *scalars = s;
}

/// Keeps elements finite if the step requires it.
struct Guard {
  float* stopped;  // StepControl::kStopped
  bool on;

  /// If one of the new values is not finite, restores the old ones and stops training. All threads write the same value.
  template <int N>
  __device__ void keep(const float (&old)[N], float (&out)[N]) const {
    if (!on) return;
    bool finite = true;
    for (int i = 0; i < N; ++i) finite = finite && isfinite(out[i]);
    if (finite) return;
    for (int i = 0; i < N; ++i) out[i] = old[i];
    *stopped = StepControl::kByUpdate;
  }
};

/// p -= lr * (g + weight_decay * p).   in: p, g   out: p
struct Sgd {
  static constexpr int kReads = 2, kWrites = 1;
  const UpdateScalars* scalars;
  Guard guard;
  double lr_factor;
  float weight_decay;
  float factor, lr;

  __device__ bool begin() {
    factor = scalars->factor;
    lr = static_cast<float>(__dmul_rn(scalars->lr, lr_factor));
    guard.on = scalars->guards != 0;
    return scalars->active != 0;
  }
  __device__ void operator()(const float (&in)[2], float (&out)[1]) const {
    out[0] = in[0] - lr * (in[1] * factor + weight_decay * in[0]);
    guard.keep({in[0]}, out);
  }
};

/// in: p, g, buffer   out: p, buffer
struct SgdMomentum {
  static constexpr int kReads = 3, kWrites = 2;
  const UpdateScalars* scalars;
  Guard guard;
  double lr_factor;
  float weight_decay;
  bool nesterov;
  float factor, lr, momentum;
  bool first;

  __device__ bool begin() {
    factor = scalars->factor;
    lr = static_cast<float>(__dmul_rn(scalars->lr, lr_factor));
    momentum = static_cast<float>(scalars->momentum);
    first = scalars->step == 1;
    guard.on = scalars->guards != 0;
    return scalars->active != 0;
  }
  __device__ void operator()(const float (&in)[3], float (&out)[2]) const {
    const float update = in[1] * factor + weight_decay * in[0];
    const float buffer = first ? update : momentum * in[2] + update;  // before the first update the content of the buffer is undefined
    out[0] = in[0] - lr * (nesterov ? update + momentum * buffer : buffer);
    out[1] = buffer;
    guard.keep({in[0], first ? 0.0F : in[2]}, out);
  }
};

/// in: p, g, m, v   out: p, m, v
struct Adam {
  static constexpr int kReads = 4, kWrites = 3;
  const UpdateScalars* scalars;
  Guard guard;
  float beta2, rest2, eps;
  double lr_factor;
  double coupled, decoupled;  // weight decay: one is 0, because it changes the gradient (Adam) or the parameter (AdamW)
  float factor, step_size, correction, beta1, rest1, decay, shrink;

  __device__ bool begin() {
    factor = scalars->factor;
    step_size = scalars->step_size * static_cast<float>(lr_factor);
    beta1 = static_cast<float>(scalars->momentum);
    rest1 = static_cast<float>(__dsub_rn(1.0, scalars->momentum));
    decay = static_cast<float>(coupled);
    shrink = static_cast<float>(__dsub_rn(1.0, __dmul_rn(__dmul_rn(scalars->lr, lr_factor), decoupled)));
    correction = scalars->correction;
    guard.on = scalars->guards != 0;
    return scalars->active != 0;
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
void queue_update(ExecContext& ctx, const Pointers<const float*, Update::kReads>& in, const Pointers<float*, Update::kWrites>& out,
                  const UpdateRange& range, const View& half_param, const Update& update) {
  const int64_t count = range.end - range.begin;
  const auto queue_with = [&]<class Half>() {
    map_elements<float, WithHalf<Update, Half>>(ctx, in, out, count, {update}, half_param.as<Half>() + range.begin);
  };
  if (!half_param) return map_elements<float, Update>(ctx, in, out, count, update);
  if (half_param.dtype == DType::f16) return queue_with.template operator()<__half>();
  queue_with.template operator()<__nv_bfloat16>();
}

UpdateScalars* queue_begin(ExecContext& ctx, const char* operation, double lr, double momentum, double beta2, const View& step, const View& control,
                           const ConstView& values) {
  auto* scalars = scratch<UpdateScalars>(ctx, operation);
  launch(native_stream(ctx), begin_update, dim3(1), dim3(1), lr, momentum, beta2,
         values ? reinterpret_cast<const StepValues*>(values.as<int32_t>()) : nullptr, control.as<float>(), step.as<int32_t>(), scalars);
  return scalars;
}

/// Calls queue(range, lr factor, weight decay) for each range.
template <class Queue>
void for_each_range(const UpdateRanges& ranges, int64_t count, double weight_decay, const Queue& queue) {
  if (ranges == nullptr) return queue(UpdateRange{0, count, 1.0, weight_decay});
  for (const UpdateRange& range : *ranges) queue(range);
}

}  // namespace

void sgd_update(ExecContext& ctx, const SgdConfig& config, View param, ConstView grad, View momentum_buffer, View step, View control,
                const UpdateRanges& ranges, View half_param, ConstView values) {
  const UpdateScalars* scalars = queue_begin(ctx, "sgd_update", config.lr, config.momentum, 0.0, step, control, values);
  const Guard guard{control.as<float>() + StepControl::kStopped, false};
  for_each_range(ranges, param.numel(), config.weight_decay, [&](const UpdateRange& range) {
    const auto weight_decay = static_cast<float>(range.weight_decay);
    auto* p = param.as<float>() + range.begin;
    const auto* g = grad.as<float>() + range.begin;
    if (!momentum_buffer) {
      queue_update(ctx, {{p, g}}, {{p}}, range, half_param, Sgd{scalars, guard, range.lr_factor, weight_decay, 0.0F, 0.0F});
      return;
    }
    auto* buffer = momentum_buffer.as<float>() + range.begin;
    queue_update(ctx, {{p, g, buffer}}, {{p, buffer}}, range, half_param,
                 SgdMomentum{scalars, guard, range.lr_factor, weight_decay, config.nesterov, 0.0F, 0.0F, 0.0F, false});
  });
}

void adam_update(ExecContext& ctx, const AdamConfig& config, View param, ConstView grad, View exp_avg, View exp_avg_sq, View step, View control,
                 const UpdateRanges& ranges, View half_param, ConstView values) {
  Adam adam{};
  adam.scalars = queue_begin(ctx, "adam_update", config.lr, config.beta1, config.beta2, step, control, values);
  adam.guard = {control.as<float>() + StepControl::kStopped, false};
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
