// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <library_types.h>

/// Arithmetic of the stand-ins for cuBLASLt, cuDNN and NCCL.
namespace vitrine::standins {

/// A matrix in memory: element (i, j) at i * row_stride + j * column_stride; one of the strides is 1.
struct MatrixAt {
  const void* data = nullptr;
  cudaDataType_t type = CUDA_R_32F;  // or CUDA_R_16F, CUDA_R_16BF
  int64_t rows = 0, columns = 0;
  int64_t row_stride = 1, column_stride = 0;

  /// From the first element to the end of the last.
  int64_t bytes() const;
  MatrixAt transposed() const { return {data, type, columns, rows, column_stride, row_stride}; }
};
int64_t element_bytes(cudaDataType_t type);
/// The i-th element of an array of the type.
float load_element(const void* data, cudaDataType_t type, int64_t i);

struct Product {
  MatrixAt a, b, c, d;  // shapes in the product: (m, k), (k, n), (m, n); d's data is written
  float alpha = 1, beta = 0;
  const void* bias = nullptr;                 // (m), of d's type, added to each column
  void* column_sums = nullptr;                // (n) of d's type: receives the sums of b's columns
  bool relu = false, relu_keeps_nan = false;  // otherwise it turns NaN into 0
  bool tf32 = false;
  int64_t more_parts = 0;  // in which the terms are summed, beyond those for the sizes
};

/// d = alpha * a b + beta * c, plus bias, then ReLU; sums in f32, for some sizes in up to four parts.
void multiply(const Product& product);

enum class Combination { sum, least, most, average };
/// Sets every output to the combination of the inputs in their order; an output may be an input. type: CUDA_R_32F, 64F,
/// 16F, 16BF, 32I, 64I. The sum of every two is rounded to the type, as at each hop of NCCL's ring; an average is the
/// sum, divided at the end.
void combine(Combination combination, std::span<const void* const> inputs, std::span<void* const> outputs, size_t count,
             cudaDataType_t type);

}  // namespace vitrine::standins
