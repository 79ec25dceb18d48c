// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace vitrine {

/// i64 is for host memory (weight files); no operation computes with it.
enum class DType : uint8_t { f32, f16, bf16, i32, u8, i64 };

/// Bytes of one element.
constexpr int64_t size_of(DType dtype) {
  constexpr int64_t kSizes[] = {4, 2, 2, 4, 1, 8};
  return kSizes[static_cast<int>(dtype)];
}

/// "f32", "f16", "bf16", "i32", "u8", "i64".
constexpr const char* dtype_name(DType dtype) {
  constexpr const char* kNames[] = {"f32", "f16", "bf16", "i32", "u8", "i64"};
  return kNames[static_cast<int>(dtype)];
}

}  // namespace vitrine
