// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/kernels/accumulate.h>
#include <vitrine/runtime/exec_context.h>

/// Batch normalization over all dimensions but the last, in steps: what lies between them may add up the values of
/// several devices. x is read as `rows` rows of C channels. Activations are f32, f16 or bf16; statistics, running
/// statistics, weight, bias and their gradients are f32. Sums are added in a fixed order: the same arguments give the
/// same bits, also with another number of CPU threads.
///
/// One device:       moments, statistics, forward; then backward_sums, backward_data
/// Several devices:  moments, sums (all-reduce sums), recenter (all-reduce row 1 of the moments), statistics, forward;
///                   then backward_sums (all-reduce sums), backward_data
///
/// All functions throw ShapeError, DtypeError, DeviceError.   source  Ioffe & Szegedy 2015; merging of moments: Chan,
/// Golub & LeVeque 1983
namespace vitrine {

struct BatchNormConfig {
  float eps = 1e-5F;
  float momentum = 0.1F;  // weight of a batch in the running statistics
  bool relu = false;      // merged ReLU
};

/// moments (2, C) = mean of each channel, and sum of its squared deviations from it.
/// requires  x (..., C) with at least one row
void batch_norm_moments(ExecContext& ctx, ConstView x, View moments);

/// sums (C) = rows * mean.   requires  rows >= 0
void batch_norm_sums(ExecContext& ctx, int64_t rows, ConstView moments, View sums);

/// Moves this device's moments to the mean of all rows: mean = sums / total_rows, where sums is added up over all
/// devices; the squared deviations are now from that mean, so that they may be added up too.   requires  rows >= 0 of
/// this device, total_rows >= 1
void batch_norm_recenter(ExecContext& ctx, int64_t rows, int64_t total_rows, ConstView sums, View moments);

/// statistics (2, C) = mean and 1 / sqrt(biased variance + eps). running_mean and running_var (C), unless empty, become
/// (1 - momentum) * running + momentum * (mean or unbiased variance); a channel whose batch is not finite keeps its
/// running statistics.
/// requires  total_rows >= 2
void batch_norm_statistics(ExecContext& ctx, const BatchNormConfig& config, int64_t total_rows, ConstView moments,
                           View statistics, View running_mean, View running_var);

/// statistics (2, C) = running_mean and 1 / sqrt(running_var + eps), for evaluation.
void batch_norm_running(ExecContext& ctx, const BatchNormConfig& config, ConstView running_mean, ConstView running_var,
                        View statistics);

/// y = (x - mean) * invstd * weight + bias, then ReLU if merged; NaN stays NaN.
/// requires  x and y (..., C) of one dtype, y is x or does not overlap it; weight and bias (C)
void batch_norm_forward(ExecContext& ctx, const BatchNormConfig& config, ConstView x, ConstView statistics,
                        ConstView weight, ConstView bias, View y);

/// sums (2, C) = sum of grad_y, and sum of grad_y * (x - mean) * invstd. They are the gradients of bias and weight,
/// which are overwritten or added to. With a merged ReLU, grad_y is the gradient before it (relu_backward). requires  x
/// and grad_y (..., C) of one dtype with at least one row; grad_weight and grad_bias (C)
void batch_norm_backward_sums(ExecContext& ctx, ConstView x, ConstView grad_y, ConstView statistics, View sums,
                              View grad_weight, View grad_bias, GradMode mode);

/// grad_x = weight * invstd * (grad_y - sums[0] / total_rows - (x - mean) * invstd * sums[1] / total_rows).
/// requires  x, grad_y and grad_x (..., C) of one dtype; grad_x is grad_y or overlaps neither; total_rows >= 1
void batch_norm_backward_data(ExecContext& ctx, ConstView x, ConstView grad_y, ConstView statistics, ConstView weight,
                              ConstView sums, int64_t total_rows, View grad_x);

}  // namespace vitrine
