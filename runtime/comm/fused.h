// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "runtime/comm/reduce_op.h"
#include "runtime/dtype.h"

namespace vitrine::comm {

/// For i in [begin, end): sets element i of every output to the inputs' elements i combined in the order of `inputs`,
/// in f32 registers, rounded once to `to`; i32 in i32. Any number of inputs and outputs.
///   from, to  f32, f16, bf16 or i32: equal, or one of them f32 and the other a 16-bit type
///   aliasing  an output may be an input if the dtypes are equal
void combine_to_all(DType from, DType to, Combination combination, std::span<const void* const> inputs,
                    std::span<void* const> outputs, int64_t begin, int64_t end);

/// combine_to_all() of f32 that also sums the squares of the result by tiles (runtime/square_sums.h), while a tile is
/// in the cache.
///   begin    a multiple of kSquareTile      squared  only elements below it are squared
///   squares  each gets the sums of the tiles in [begin, end)
void combine_and_square(Combination combination, std::span<const void* const> inputs, std::span<void* const> outputs,
                        int64_t begin, int64_t end, int64_t squared, std::span<double* const> squares);

/// Copies `bytes` bytes of the source to every output and reads them from memory once. Skips an output that is the
/// source.
void copy_to_all(const void* source, std::span<void* const> outputs, int64_t bytes);

/// Part `part` of `parts` of [0, count): consecutive, multiples of `grain` except at the end, as equal as possible.
struct Slice {
  int64_t begin = 0;
  int64_t end = 0;
};
Slice slice_of(int64_t count, int64_t grain, int part, int parts);

}  // namespace vitrine::comm
