// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/cpu/half_lanes.h"
#include "runtime/dtype.h"
#include "runtime/error.h"

namespace vitrine::cpu {

/// Calls body with a value of the type that stores `dtype` (f32, f16 or bf16): with_storage(x.dtype, [&]<class T>(T) {
/// ... }).
template <class Body>
void with_storage(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::f32:
      return body(float{});
    case DType::f16:
      return body(Half{});
    case DType::bf16:
      return body(BFloat16{});
    default:
      VITRINE_ASSERT(false, "not a storage type");
  }
}

/// Calls body(value, i) for the elements [begin, end), kLanes at a time and the last ones one by one. `value` is a zero
/// FloatLanes or float to load into.
template <class Body>
void for_lanes(int64_t begin, int64_t end, const Body& body) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    FloatLanes zeros{};
    body(zeros, i);
  }
  for (; i < end; ++i) {
    float zero = 0.0F;
    body(zero, i);
  }
}

}  // namespace vitrine::cpu
