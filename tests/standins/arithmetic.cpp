// SPDX-License-Identifier: Apache-2.0
// Compiled with optimization and without sanitizers, or products would take most of the tests' time; the callers report
// the accesses to the sanitizers.
#include "tests/standins/arithmetic.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace vitrine::standins {
namespace {

constexpr int64_t kRows = 16, kColumns = 4;  // of the block of d kept in registers

void store(void* data, cudaDataType_t type, int64_t i, float value) {
  switch (type) {
    case CUDA_R_16F:
      static_cast<__half*>(data)[i] = __float2half_rn(value);
      break;
    case CUDA_R_16BF:
      static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(value);
      break;
    default:
      static_cast<float*>(data)[i] = value;
  }
}

// To 10 fractional bits, to nearest.
float to_tf32(float value) {
  if ((std::bit_cast<uint32_t>(value) >> 23 & 0xFFU) == 0xFFU) return value;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(value) + 0x1000U) & ~0x1FFFU);
}

// Rows [first, first + kRows) as [column][row], zeros beyond the end of the matrix.
void pack_rows(const MatrixAt& m, int64_t first, int64_t count, bool tf32, float* out) {
  const int64_t rows = std::min(count, m.rows - first);
  for (int64_t j = 0; j < m.columns; ++j) {
    for (int64_t i = 0; i < count; ++i) {
      const float value =
          i < rows ? load_element(m.data, m.type, (first + i) * m.row_stride + j * m.column_stride) : 0.0F;
      out[j * count + i] = tf32 ? to_tf32(value) : value;
    }
  }
}

void multiply_block(const float* a, const float* b, int64_t k, float (&sums)[kColumns][kRows]) {
  for (auto& column : sums) std::fill(column, column + kRows, 0.0F);
  for (int64_t l = 0; l < k; ++l, a += kRows, b += kColumns) {
    for (int64_t j = 0; j < kColumns; ++j) {
      for (int64_t i = 0; i < kRows; ++i) sums[j][i] += a[i] * b[j];
    }
  }
}

// In how many parts the terms are summed: the real library chooses by the sizes too.
int64_t parts_of(const Product& p) {
  return p.a.columns < 16 ? 1 : 1 + (p.d.rows + p.d.columns + p.a.columns) % 4 + p.more_parts;
}

void multiply_in_parts(const float* a, const float* b, int64_t k, int64_t parts, float (&sums)[kColumns][kRows]) {
  multiply_block(a, b, k / parts, sums);
  for (int64_t part = 1; part < parts; ++part) {
    float more[kColumns][kRows];
    const int64_t begin = k * part / parts, end = k * (part + 1) / parts;
    multiply_block(a + begin * kRows, b + begin * kColumns, end - begin, more);
    for (int64_t j = 0; j < kColumns; ++j) {
      for (int64_t i = 0; i < kRows; ++i) sums[j][i] += more[j][i];
    }
  }
}

void store_block(const Product& p, const float (&sums)[kColumns][kRows], int64_t row, int64_t column) {
  for (int64_t j = 0; j < std::min(kColumns, p.d.columns - column); ++j) {
    for (int64_t i = 0; i < std::min(kRows, p.d.rows - row); ++i) {
      float value = p.alpha * sums[j][i];
      if (p.beta != 0)
        value +=
            p.beta * load_element(p.c.data, p.c.type, (row + i) * p.c.row_stride + (column + j) * p.c.column_stride);
      if (p.bias != nullptr) value += load_element(p.bias, p.d.type, row + i);
      if (p.relu && !(value > 0) && !(p.relu_keeps_nan && std::isnan(value))) value = 0;
      store(const_cast<void*>(p.d.data), p.d.type, (row + i) * p.d.row_stride + (column + j) * p.d.column_stride,
            value);
    }
  }
}

}  // namespace

float load_element(const void* data, cudaDataType_t type, int64_t i) {
  switch (type) {
    case CUDA_R_16F:
      return __half2float(static_cast<const __half*>(data)[i]);
    case CUDA_R_16BF:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
    default:
      return static_cast<const float*>(data)[i];
  }
}

int64_t element_bytes(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }

int64_t MatrixAt::bytes() const {
  return ((rows - 1) * row_stride + (columns - 1) * column_stride + 1) * element_bytes(type);
}

void multiply(const Product& p) {
  const int64_t k = p.a.columns, row_blocks = (p.d.rows + kRows - 1) / kRows;
  std::vector<float> rows(static_cast<size_t>(row_blocks * k * kRows)), columns(static_cast<size_t>(k * kColumns));
  for (int64_t r = 0; r < row_blocks; ++r) pack_rows(p.a, r * kRows, kRows, p.tf32, rows.data() + r * k * kRows);
  const MatrixAt b = p.b.transposed();
  float sums[kColumns][kRows];
  for (int64_t column = 0; column < p.d.columns; column += kColumns) {
    pack_rows(b, column, kColumns, p.tf32, columns.data());
    for (int64_t r = 0; r < row_blocks; ++r) {
      multiply_in_parts(rows.data() + r * k * kRows, columns.data(), k, parts_of(p), sums);
      store_block(p, sums, r * kRows, column);
    }
  }
  for (int64_t j = 0; p.column_sums != nullptr && j < p.b.columns; ++j) {
    float sum = 0.0F;
    for (int64_t i = 0; i < k; ++i) sum += load_element(p.b.data, p.b.type, i * p.b.row_stride + j * p.b.column_stride);
    store(p.column_sums, p.d.type, j, sum);
  }
}

namespace {

template <class T, class Sum>
void combine_as(Combination combination, std::span<const void* const> inputs, std::span<void* const> outputs,
                size_t count) {
  constexpr size_t kChunk = 2048;
  Sum totals[kChunk];
  for (size_t begin = 0; begin < count; begin += kChunk) {
    const size_t n = std::min(kChunk, count - begin);
    for (size_t r = 0; r < inputs.size(); ++r) {
      const T* const input = static_cast<const T*>(inputs[r]) + begin;
      for (size_t i = 0; i < n; ++i) {
        const auto value = static_cast<Sum>(input[i]);
        if (r == 0) {
          totals[i] = value;
        } else if (combination == Combination::sum || combination == Combination::average) {
          totals[i] = static_cast<Sum>(static_cast<T>(totals[i] + value));
        } else {
          totals[i] = combination == Combination::least ? std::min(totals[i], value) : std::max(totals[i], value);
        }
      }
    }
    for (size_t i = 0; i < n && combination == Combination::average; ++i) totals[i] /= static_cast<Sum>(inputs.size());
    for (void* output : outputs) {
      for (size_t i = 0; i < n; ++i) static_cast<T*>(output)[begin + i] = static_cast<T>(totals[i]);
    }
  }
}

}  // namespace

void combine(Combination combination, std::span<const void* const> inputs, std::span<void* const> outputs, size_t count,
             cudaDataType_t type) {
  switch (type) {
    case CUDA_R_64F:
      return combine_as<double, double>(combination, inputs, outputs, count);
    case CUDA_R_16F:
      return combine_as<__half, float>(combination, inputs, outputs, count);
    case CUDA_R_16BF:
      return combine_as<__nv_bfloat16, float>(combination, inputs, outputs, count);
    case CUDA_R_32I:
      return combine_as<int32_t, int32_t>(combination, inputs, outputs, count);
    case CUDA_R_64I:
      return combine_as<int64_t, int64_t>(combination, inputs, outputs, count);
    default:
      return combine_as<float, float>(combination, inputs, outputs, count);
  }
}

}  // namespace vitrine::standins
