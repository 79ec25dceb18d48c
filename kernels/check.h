// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "runtime/exec_context.h"

/// Argument checks that every kernel's dispatcher makes; messages: operation, argument, actual, expected.
namespace vitrine::check {

/// throws ShapeError unless v has exactly this shape.
void shape(const char* operation, const char* argument, const ConstView& v, const Shape& expected);
/// throws ShapeError unless v has this rank; `layout` is how to read it, "(N, H, W, C)".
void rank(const char* operation, const char* argument, const ConstView& v, int rank, const char* layout);
/// throws DtypeError.
void dtype(const char* operation, const char* argument, const ConstView& v, DType expected);
/// throws DtypeError unless v is f32, f16 or bf16: a storage type of activations and parameters, computed with in f32.
void storage(const char* operation, const char* argument, const ConstView& v);
/// throws DeviceError unless v is there and lies on ctx's device.
void device(const char* operation, const char* argument, const ConstView& v, const ExecContext& ctx);
/// throws ShapeError (with both arguments named) when the two share memory.
void no_overlap(const char* operation, const char* a_name, const ConstView& a, const char* b_name, const ConstView& b);
/// device + dtype + shape, the usual three.
void tensor(const char* operation, const char* argument, const ConstView& v, const Shape& shape, DType dtype, const ExecContext& ctx);

/// The message of a DataError: what every backend says of a target that names no class.
std::string target_out_of_range(int64_t target, int64_t row, int64_t classes, int64_t ignore_index);

}  // namespace vitrine::check
