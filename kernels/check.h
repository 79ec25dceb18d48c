// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <string>

#include "runtime/exec_context.h"

/// Checks of an operation's arguments, made before it is dispatched. Messages name the operation and the argument, and
/// give its actual and expected value.
namespace vitrine::check {

struct Argument {
  const char* name;
  ConstView view;
};

/// throws ShapeError unless v has this rank or shape. `layout` describes it: "(N, H, W, C)".
void rank(const char* operation, const char* argument, const ConstView& v, int rank, const char* layout);
void shape(const char* operation, const char* argument, const ConstView& v, const Shape& shape);

/// throws DeviceError unless v has memory on ctx's device; any dtype is accepted.
void device(const char* operation, const char* argument, const ConstView& v, const ExecContext& ctx);

/// A tensor on ctx's device. throws DeviceError unless it is; DtypeError unless it is f32, f16 or bf16 (or `dtype`);
/// ShapeError unless it has `shape`.
void tensor(const char* operation, const char* argument, const ConstView& v, const ExecContext& ctx);
void tensor(const char* operation, const char* argument, const ConstView& v, DType dtype, const ExecContext& ctx);
void tensor(const char* operation, const char* argument, const ConstView& v, const Shape& shape, DType dtype,
            const ExecContext& ctx);

/// The same for `sums`, (C) f32 or empty, the sums of x (..., C) over all dimensions but the last.
void column_sums(const char* operation, const View& sums, const ConstView& x, const ExecContext& ctx);

/// throws ShapeError when a shares memory with one of the others. Empty views share none.
void no_overlap(const char* operation, const Argument& a, std::initializer_list<Argument> others);
/// The same, except that others may start where a starts: a is computed in place.
void same_or_apart(const char* operation, const Argument& a, std::initializer_list<Argument> others);

/// throws OutOfMemory: ctx.workspace() is smaller than the `needed` bytes of an operation, and `proposed` bytes are
///        enough to run it at speed.
///   what  needs them, such as "f16"; empty: the operation itself
[[noreturn]] void throw_small_workspace(const ExecContext& ctx, const char* operation, const std::string& what,
                                        int64_t needed, int64_t proposed);

}  // namespace vitrine::check
