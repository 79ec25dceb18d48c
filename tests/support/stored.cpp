// SPDX-License-Identifier: Apache-2.0
#include "tests/support/stored.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace vitrine::test {
namespace {

struct Format {
  int digits;          // of the significand, including the leading one
  int least_exponent;  // of normal numbers
  int exponents;       // codes of the exponent; the last is for infinity and NaN
};
Format format_of(DType dtype) { return dtype == DType::f16 ? Format{11, -14, 32} : Format{8, -126, 256}; }

}  // namespace

uint16_t to_bits(DType dtype, double value) {
  const Format f = format_of(dtype);
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const int infinity = (f.exponents - 1) << (f.digits - 1);
  if (std::isnan(value)) return static_cast<uint16_t>(sign | infinity | 1 << (f.digits - 2));
  if (std::isinf(value)) return static_cast<uint16_t>(sign | infinity);
  const int exponent = value == 0 ? f.least_exponent : std::max(f.least_exponent, std::ilogb(value));
  // In steps of the last digit; ties go to even.
  const auto steps = static_cast<int64_t>(std::nearbyint(std::ldexp(std::abs(value), f.digits - 1 - exponent)));
  const int64_t magnitude = (static_cast<int64_t>(exponent - f.least_exponent) << (f.digits - 1)) + steps;
  return static_cast<uint16_t>(sign | static_cast<int>(std::min<int64_t>(magnitude, infinity)));
}

double from_bits(DType dtype, uint16_t bits) {
  const Format f = format_of(dtype);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int code = (bits & 0x7FFF) >> (f.digits - 1);
  const int fraction = bits & ((1 << (f.digits - 1)) - 1);
  if (code == f.exponents - 1) return std::copysign(fraction == 0 ? INFINITY : NAN, sign);
  const int steps = code == 0 ? fraction : fraction + (1 << (f.digits - 1));
  return sign * std::ldexp(steps, std::max(code, 1) - 1 + f.least_exponent - f.digits + 1);
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

std::vector<float> stored(DType dtype, const std::vector<float>& values) {
  return dtype == DType::f32 ? values : from_bits(dtype, to_bits(dtype, values));
}

std::vector<float> random_stored(DType dtype, int64_t count, uint64_t seed, float low, float high) {
  return stored(dtype, random_floats(count, seed, low, high));
}

std::vector<float> random_with_specials(DType dtype, int64_t count, uint64_t seed) {
  const float largest = dtype == DType::f32   ? std::numeric_limits<float>::max()
                        : dtype == DType::f16 ? 65504.0F
                                              : 0x1.FEp127F;
  const auto smallest = static_cast<float>(2 * half_smallest(dtype));
  std::vector<float> x = random_stored(dtype, count, seed);
  for (size_t i = 0; i < x.size(); i += 5) {
    const float specials[] = {NAN, INFINITY, 0.0F, largest, smallest};
    const size_t kind = i / 5 + seed;
    x[i] = std::copysign(specials[kind / 2 % std::size(specials)], kind % 2 == 0 ? 1.0F : -1.0F);
  }
  return x;
}

Tensor stored_tensor(TestDevice& device, DType dtype, const Shape& shape, const std::vector<float>& values) {
  return dtype == DType::f32 ? device.tensor(shape, values) : device.tensor(shape, to_bits(dtype, values), dtype);
}

GuardedTensor stored_guarded(TestDevice& device, DType dtype, const Shape& shape, const std::vector<float>& values) {
  return dtype == DType::f32 ? device.guarded(shape, values) : device.guarded(shape, to_bits(dtype, values), dtype);
}

std::vector<float> stored_values(TestDevice& device, const GuardedTensor& guarded) {
  const DType dtype = guarded.view.dtype;
  return dtype == DType::f32 ? device.values(guarded) : from_bits(dtype, device.values<uint16_t>(guarded));
}

namespace {

std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float v : values) bits.push_back(std::bit_cast<uint32_t>(v));
  return bits;
}
template <class T>
std::vector<uint32_t> bits_of(const std::vector<T>& values) {
  return {values.begin(), values.end()};
}

}  // namespace

std::vector<uint32_t> stored_bits(TestDevice& device, const GuardedTensor& guarded) {
  return guarded.view.dtype == DType::f32 ? bits_of(device.values(guarded)) : bits_of(device.values<uint16_t>(guarded));
}

std::vector<uint32_t> stored_bits(DType dtype, const std::vector<float>& values) {
  return dtype == DType::f32 ? bits_of(values) : bits_of(to_bits(dtype, values));
}

void expect_same_bits(const std::vector<uint32_t>& actual, const std::vector<uint32_t>& expected,
                      const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i], expected[i]) << what << " element " << i << ": got the bits " << std::hex << actual[i]
                                      << ", expected " << expected[i];
  }
}

namespace {

template <class T>
std::vector<T> to_integers(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

}  // namespace

ShiftedStored::ShiftedStored(TestDevice& device, DType dtype, const Shape& shape, int64_t offset,
                             const std::vector<float>& values)
    : dtype_(dtype), tensor_([&]() -> AnyShifted {
        if (dtype == DType::f32) return Shifted<>(device, shape, offset, values);
        if (dtype == DType::i32) return Shifted<int32_t>(device, shape, offset, to_integers<int32_t>(values));
        if (dtype == DType::u8) return Shifted<uint8_t>(device, shape, offset, to_integers<uint8_t>(values));
        return Shifted<uint16_t>(device, shape, offset, to_bits(dtype, values), dtype);
      }()) {}

ShiftedStored::ShiftedStored(TestDevice& device, DType dtype, const Shape& shape, int64_t offset)
    : ShiftedStored(device, dtype, shape, offset, std::vector<float>(static_cast<size_t>(shape.numel()), 77.0F)) {}

ShiftedStored::operator View() const {
  return std::visit([](const auto& t) -> View { return t; }, tensor_);
}
ShiftedStored::operator ConstView() const { return View(*this); }

std::vector<float> ShiftedStored::values() const {
  return std::visit(
      [this](const auto& t) -> std::vector<float> {
        const auto content = t.values();
        if constexpr (std::is_same_v<decltype(content), const std::vector<uint16_t>>)
          return from_bits(dtype_, content);
        else
          return {content.begin(), content.end()};
      },
      tensor_);
}

std::vector<uint32_t> ShiftedStored::bits() const {
  return std::visit([](const auto& t) { return bits_of(t.values()); }, tensor_);
}

}  // namespace vitrine::test
