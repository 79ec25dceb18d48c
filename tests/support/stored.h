// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "tests/support/device_fixture.h"
#include "tests/support/reference.h"
#include "tests/support/shifted.h"

/// Numbers and tensors of the storage types f32, f16 and bf16. The formats of f16 and bf16 are computed from their
/// definition in double precision, without the library's conversions.
namespace vitrine::test {

/// f16 and bf16: the nearest number, ties to even; NaN to a quiet NaN.
uint16_t to_bits(DType dtype, double value);
double from_bits(DType dtype, uint16_t bits);

std::vector<uint16_t> to_bits(DType dtype, const std::vector<float>& values);
std::vector<float> from_bits(DType dtype, const std::vector<uint16_t>& bits);

/// Half the distance from 1 to the next number.
double unit_roundoff(DType dtype);
/// Half the distance from 0 to the next number.
double half_smallest(DType dtype);

/// The values, each rounded to the dtype.
std::vector<float> stored(DType dtype, const std::vector<float>& values);
/// Uniform numbers in [low, high], each rounded to the dtype.
std::vector<float> random_stored(DType dtype, int64_t count, uint64_t seed, float low = -1.0F, float high = 1.0F);

/// Random numbers, every fifth of which is NaN, an infinity, a zero, the largest or the smallest number (a denormal).
std::vector<float> random_with_specials(DType dtype, int64_t count, uint64_t seed);

Tensor stored_tensor(TestDevice& device, DType dtype, const Shape& shape, const std::vector<float>& values);
GuardedTensor stored_guarded(TestDevice& device, DType dtype, const Shape& shape, const std::vector<float>& values);
/// The content as f32.
std::vector<float> stored_values(TestDevice& device, const GuardedTensor& guarded);
/// The bits of the content, which distinguish signs of zero and NaN payloads. 16-bit patterns are in the lower half.
std::vector<uint32_t> stored_bits(TestDevice& device, const GuardedTensor& guarded);
/// The bits of the values, each rounded to the dtype.
std::vector<uint32_t> stored_bits(DType dtype, const std::vector<float>& values);

/// Fails at the first element whose bits differ.
void expect_same_bits(const std::vector<uint32_t>& actual, const std::vector<uint32_t>& expected,
                      const std::string& what = "");

/// Shifted of a dtype that is known at run time; integers are given and returned as floats.
class ShiftedStored {
 public:
  ShiftedStored(TestDevice& device, DType dtype, const Shape& shape, int64_t offset, const std::vector<float>& values);
  ShiftedStored(TestDevice& device, DType dtype, const Shape& shape, int64_t offset);

  operator View() const;       // NOLINT: used as the View it is
  operator ConstView() const;  // NOLINT
  std::vector<float> values() const;
  std::vector<uint32_t> bits() const;

 private:
  using AnyShifted = std::variant<Shifted<float>, Shifted<uint16_t>, Shifted<int32_t>, Shifted<uint8_t>>;
  DType dtype_;
  AnyShifted tensor_;
};

inline constexpr DType kStorageTypes[] = {DType::f32, DType::f16, DType::bf16};
inline constexpr DType kHalfTypes[] = {DType::f16, DType::bf16};

/// Fixture of tests that run for several storage types, on one device; a CPU device has two threads.
class DtypeTest : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  bool is_half() const { return dtype() != DType::f32; }
  /// A storage type that is not the tested one.
  DType other() const { return is_half() ? DType::f32 : DType::f16; }
  ExecContext& ctx() { return device.ctx(); }
  Tensor tensor(const Shape& shape, const std::vector<float>& values) {
    return stored_tensor(device, dtype(), shape, values);
  }
  Tensor empty(const Shape& shape) { return device.empty(shape, dtype()); }
  GuardedTensor guarded(const Shape& shape, const std::vector<float>& values) {
    return stored_guarded(device, dtype(), shape, values);
  }
  GuardedTensor guarded(const Shape& shape) { return device.guarded(shape, dtype()); }
  ShiftedStored shifted(const Shape& shape, int64_t offset, const std::vector<float>& values) {
    return {device, dtype(), shape, offset, values};
  }
  ShiftedStored shifted(const Shape& shape, int64_t offset) { return {device, dtype(), shape, offset}; }
  std::vector<float> values(const GuardedTensor& g) { return stored_values(device, g); }
  std::vector<uint32_t> bits(const GuardedTensor& g) { return stored_bits(device, g); }
  /// The content without the check that every element was written: a NaN may have the bits of the poison.
  std::vector<float> unchecked_values(const GuardedTensor& g) {
    return is_half() ? from_bits(dtype(), device.values<uint16_t>(ConstView(g.view)))
                     : device.values(ConstView(g.view));
  }
  std::vector<float> random(int64_t count, uint64_t seed, float low = -1.0F, float high = 1.0F) {
    return random_stored(dtype(), count, seed, low, high);
  }
  std::vector<float> with_specials(int64_t count, uint64_t seed) { return random_with_specials(dtype(), count, seed); }
  /// Error of rounding an f32 result to the dtype: relative, and near 0. None for f32.
  double roundoff() const { return is_half() ? unit_roundoff(dtype()) : 0; }
  double underflow() const { return is_half() ? half_smallest(dtype()) : 0; }
  /// Fails unless `actual` is a sum computed in f32, then rounded once.
  void expect_stored(const std::vector<float>& actual, const Reference& expected, const std::string& what) {
    expect_rounded(actual, expected, dtype_name(dtype()) + (" " + what), roundoff(), underflow());
  }
  void expect_equal(const std::vector<float>& actual, const std::vector<float>& expected, const std::string& what) {
    expect_close(actual, expected, 0, 0, dtype_name(dtype()) + (" " + what));
  }

  TestDevice device;
};
inline std::string dtype_test_name(const ::testing::TestParamInfo<DType>& info) { return dtype_name(info.param); }

}  // namespace vitrine::test
