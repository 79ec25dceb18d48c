// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/exec_context.h>

namespace vitrine {

inline constexpr int64_t kLargestHead = 128;  // elements of a query

/// Causal self-attention: y[i] is the sum of p_ij * v[j] over j <= i with p_ij = exp(s_ij) / sum_k exp(s_ik) and
/// s_ij = q[i] . k[j] / sqrt(D), for every head. No (T, T) matrix is held: scores are computed tile by tile, and the
/// sums are scaled again when a larger score comes.
///   x (N, T, 3 * H * D): queries, keys, values, each (H, D)   y (N, T, H * D)   log_sums (N, H, T) f32: the logarithms
///     of sum_k exp(s_ik), for backward
/// requires  x and y both f32, f16 or bf16; 1 <= D <= kLargestHead; y and log_sums overlap nothing
/// ensures   computes in f32, in an order that depends on the shape alone
/// throws    ShapeError, DtypeError, DeviceError
/// source    Milakov & Gimelshein 2018, Dao et al. 2022
void attention_forward(ExecContext& ctx, int64_t heads, ConstView x, View y, View log_sums);

/// The gradient by x, from what forward has written. Scores are computed again.
///   dots (N, H, T) f32, scratch: the dot products of grad_y and y for each head
/// requires  grad_x and dots overlap nothing
void attention_backward(ExecContext& ctx, int64_t heads, ConstView x, ConstView y, ConstView log_sums, ConstView grad_y,
                        View dots, View grad_x);

}  // namespace vitrine
