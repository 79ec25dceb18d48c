// SPDX-License-Identifier: Apache-2.0
#include "runtime/dtype.h"

namespace vitrine {

int64_t size_of(DType dtype) {
  static constexpr int64_t kSizes[] = {4, 2, 2, 4, 1, 8};
  return kSizes[static_cast<int>(dtype)];
}

const char* dtype_name(DType dtype) {
  static constexpr const char* kNames[] = {"f32", "f16", "bf16", "i32", "u8", "i64"};
  return kNames[static_cast<int>(dtype)];
}

}  // namespace vitrine
