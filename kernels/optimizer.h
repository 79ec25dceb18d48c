// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include <vitrine/kernels/step_values.h>
#include <vitrine/runtime/exec_context.h>

/// Optimizer updates over flat buffers: one call updates all parameters. For each of them:
///   param, grad and states (n) f32, equal lengths
///   step (1) i32: number of updates so far; incremented on the device. Empty: decide_step() had it as its UpdateCount,
///          with lr and betas of Adam, and has counted this update; on CUDA that saves a launch
///   control (StepControl::kCount) f32, from decide_step. grad is multiplied by kFactor before use. Unless kActive is
///          1, nothing changes, including the step count. If kKeepsFinite is 1, an element whose new parameter or state
///          would not be finite keeps all its values, and kStopped becomes kByUpdate
/// The configuration is double, as in PyTorch: 1 - 0.999F is wrong in its fifth digit.
/// requires  no two buffers overlap
/// ensures   the same bits in every run
///   ranges  null, or ranges that follow one another from 0 to n: each is updated with lr * lr_factor and its own
///           weight decay, by one launch
///   values  empty, or (StepValues::kCount) i32: lr and momentum
///   half_param  empty, or (n) f16 or bf16: receives the new parameters, rounded as by cast() (kernels/cast.h), unless
///               the step is not taken
/// throws    ShapeError, DtypeError, DeviceError, OutOfMemory (workspace)
namespace vitrine {

/// Elements [begin, end) of the flat buffers with separate constants.
struct UpdateRange {
  int64_t begin = 0, end = 0;
  double lr_factor = 1.0;
  double weight_decay = 0.0;
};
using UpdateRanges = std::shared_ptr<const std::vector<UpdateRange>>;

struct SgdConfig {
  double lr = 1e-3;
  double momentum = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
};
/// torch.optim.SGD (dampening 0): g += weight_decay * p; momentum buffer = first update ? g : momentum * buffer + g; p
/// -= lr * (...). momentum_buffer is empty when momentum is 0.
void sgd_update(ExecContext& ctx, const SgdConfig& config, View param, ConstView grad, View momentum_buffer, View step,
                View control, const UpdateRanges& ranges = nullptr, View half_param = {}, ConstView values = {});

struct AdamConfig {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
  bool decoupled = false;  // AdamW: p -= lr * weight_decay * p, instead of g += weight_decay * p
};
/// torch.optim.Adam and AdamW (no amsgrad).   source  Kingma and Ba 2015; Loshchilov and Hutter 2019
void adam_update(ExecContext& ctx, const AdamConfig& config, View param, ConstView grad, View exp_avg, View exp_avg_sq,
                 View step, View control, const UpdateRanges& ranges = nullptr, View half_param = {},
                 ConstView values = {});

}  // namespace vitrine
