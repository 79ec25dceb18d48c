// SPDX-License-Identifier: Apache-2.0
#include "tests/support/stored.h"

#include <bit>
#include <cmath>
#include <limits>

namespace vitrine::test {
namespace {

uint16_t sign_of(double value) { return std::signbit(value) ? 0x8000 : 0; }

uint16_t to_bf16(double value) {
  if (std::isnan(value)) return static_cast<uint16_t>(sign_of(value) | 0x7FC0);
  const int exponent = value == 0 ? -126 : std::max(-126, std::ilogb(value));
  const double digit = std::ldexp(1.0, std::isinf(value) ? 0 : exponent - 7);
  const double rounded = std::isinf(value) ? value : std::nearbyint(value / digit) * digit;
  if (std::abs(rounded) >= 0x1p128) return static_cast<uint16_t>(sign_of(value) | 0x7F80);
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(rounded)) >> 16);
}

}  // namespace

uint16_t to_bits(DType dtype, double value) {
  if (dtype == DType::bf16) return to_bf16(value);
  if (std::isnan(value)) return static_cast<uint16_t>(sign_of(value) | 0x7E00);
  return std::bit_cast<uint16_t>(static_cast<_Float16>(value));
}

double from_bits(DType dtype, uint16_t bits) {
  if (dtype == DType::bf16) return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits) << 16));
  return static_cast<double>(std::bit_cast<_Float16>(bits));
}

std::vector<uint16_t> to_bits(DType dtype, const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (const float v : values) bits.push_back(to_bits(dtype, static_cast<double>(v)));
  return bits;
}

std::vector<float> from_bits(DType dtype, const std::vector<uint16_t>& bits) {
  std::vector<float> values;
  for (const uint16_t b : bits) values.push_back(static_cast<float>(from_bits(dtype, b)));
  return values;
}

double unit_roundoff(DType dtype) {
  if (dtype == DType::f32) return 0x1p-24;
  return dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
}

double half_smallest(DType dtype) {
  if (dtype == DType::f32) return 0x1p-150;
  return dtype == DType::f16 ? 0x1p-25 : 0x1p-134;
}

std::vector<float> stored(DType dtype, const std::vector<float>& values) { return from_bits(dtype, to_bits(dtype, values)); }

std::vector<float> random_stored(DType dtype, int64_t count, uint64_t seed, float low, float high) {
  return stored(dtype, random_floats(count, seed, low, high));
}

Tensor stored_tensor(TestDevice& device, DType dtype, const Shape& shape, const std::vector<float>& values) {
  return device.tensor(shape, to_bits(dtype, values), dtype);
}

GuardedTensor stored_guarded(TestDevice& device, DType dtype, const Shape& shape, const std::vector<float>& values) {
  return device.guarded(shape, to_bits(dtype, values), dtype);
}

std::vector<float> stored_values(TestDevice& device, const GuardedTensor& guarded) {
  return from_bits(guarded.view.dtype, device.values<uint16_t>(guarded));
}

}  // namespace vitrine::test
