// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "runtime/dtype.h"

/// Private to runtime and kernels.
namespace vitrine::cpu {

/// For i < count: sets element i of every output to the inputs' elements i, added along the tree whose order is
/// `folds` (TreeOrder), in f32, and each sum rounded to `dtype`, which is f32, f16 or bf16. An output may be an input.
void tree_sum(DType dtype, std::span<const uint8_t> folds, std::span<const void* const> inputs,
              std::span<void* const> outputs, int64_t count);

}  // namespace vitrine::cpu
