// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace vitrine {

/// i64 is for host memory (weight files); no operation computes with it.
enum class DType : uint8_t { f32, f16, bf16, i32, u8, i64 };

/// Bytes of one element.
int64_t size_of(DType dtype);

/// "f32", "f16", "bf16", "i32", "u8", "i64".
const char* dtype_name(DType dtype);

}  // namespace vitrine
