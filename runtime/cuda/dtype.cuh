// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "runtime/cuda/launch.cuh"
#include "runtime/dtype.h"

/// Storage types of device code, which computes in f32: from_float<T>(f(to_float(x))).
namespace vitrine::cuda {

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__half value) { return __half2float(value); }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <class T>
__device__ inline T from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline __half from_float<__half>(float value) {
  return __float2half_rn(value);
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}

/// Calls body<T>() with the type of f32, f16 or bf16 elements.
template <class Body>
void with_storage(DType dtype, const Body& body) {
  if (dtype == DType::f16) return body.template operator()<__half>();
  if (dtype == DType::bf16) return body.template operator()<__nv_bfloat16>();
  body.template operator()<float>();
}

}  // namespace vitrine::cuda
