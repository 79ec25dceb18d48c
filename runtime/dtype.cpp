// SPDX-License-Identifier: Apache-2.0
#include "runtime/dtype.h"

#include "runtime/error.h"

namespace vitrine {

int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::u8:
      return 1;
    case DType::i64:
      return 8;
  }
  VITRINE_ASSERT(false, "not a dtype");
  return 0;
}

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::i32:
      return "i32";
    case DType::u8:
      return "u8";
    case DType::i64:
      return "i64";
  }
  VITRINE_ASSERT(false, "not a dtype");
  return "";
}

}  // namespace vitrine
