// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/kernels/accumulate.h>
#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// The gradient of the table of which gather_rows() has taken rows: grad_table[r] = the sum of grad_y[i] over all i
/// with rows[i] = r, overwritten or added to.
///   rows (N) i32   grad_y (N, C) f32, f16 or bf16   grad_table (V, C) f32
/// requires  0 <= rows[i] < V, which the forward pass has checked; others add nothing
/// determinism  adds in ascending i, without atomics      aliasing  none
/// throws  ShapeError, DtypeError, DeviceError
void embedding_backward(ExecContext& ctx, ConstView rows, ConstView grad_y, View grad_table, GradMode mode);

/// y[n] = x[n] + the first rows of the table: learned positions.
///   x, y (N, T, C) of one of f32, f16, bf16   table (P, C) likewise, P >= T      aliasing  y is x or overlaps nothing
/// throws  ShapeError, DtypeError, DeviceError
void add_positions(ExecContext& ctx, ConstView x, ConstView table, View y);

/// grad_table[t] = the sum of grad_y[n][t] over all n, and 0 for the rows after the first T; overwritten or added to.
///   grad_y (N, T, C)   grad_table (P, C) f32
/// throws  ShapeError, DtypeError, DeviceError
void add_positions_backward(ExecContext& ctx, ConstView grad_y, View grad_table, GradMode mode);

}  // namespace vitrine
