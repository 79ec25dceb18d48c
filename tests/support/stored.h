// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/device_fixture.h"

/// What f16 and bf16 can hold, by the definition of their formats and in double precision, without the library's conversions.
namespace vitrine::test {

/// The nearest number, ties to even; NaN to a quiet NaN.
uint16_t to_bits(DType dtype, double value);
double from_bits(DType dtype, uint16_t bits);

std::vector<uint16_t> to_bits(DType dtype, const std::vector<float>& values);
std::vector<float> from_bits(DType dtype, const std::vector<uint16_t>& bits);

/// Half the distance from 1 to the next number; and from 0 to the smallest.
double unit_roundoff(DType dtype);
double half_smallest(DType dtype);

/// The numbers that are next to these.
std::vector<float> stored(DType dtype, const std::vector<float>& values);
/// Uniform numbers in [low, high], each as it is stored.
std::vector<float> random_stored(DType dtype, int64_t count, uint64_t seed, float low = -1.0F, float high = 1.0F);

Tensor stored_tensor(TestDevice& device, DType dtype, const Shape& shape, const std::vector<float>& values);
GuardedTensor stored_guarded(TestDevice& device, DType dtype, const Shape& shape, const std::vector<float>& values);
/// The content, widened.
std::vector<float> stored_values(TestDevice& device, const GuardedTensor& guarded);

/// Fixture of tests with one device and a storage type of 16 bits; a CPU device has two threads.
class StoredTest : public ::testing::TestWithParam<DType> {
 protected:
  DType dtype() const { return GetParam(); }
  ExecContext& ctx() { return device.ctx(); }
  Tensor tensor(const Shape& shape, const std::vector<float>& values) { return stored_tensor(device, dtype(), shape, values); }
  GuardedTensor guarded(const Shape& shape, const std::vector<float>& values) { return stored_guarded(device, dtype(), shape, values); }
  GuardedTensor guarded(const Shape& shape) { return device.guarded(shape, dtype()); }
  std::vector<float> values(const GuardedTensor& g) { return stored_values(device, g); }
  std::vector<float> random(int64_t count, uint64_t seed, float low = -1.0F, float high = 1.0F) {
    return random_stored(dtype(), count, seed, low, high);
  }

  TestDevice device;
};
inline constexpr DType kStoredTypes[] = {DType::f16, DType::bf16};
inline std::string stored_type_name(const ::testing::TestParamInfo<DType>& info) { return dtype_name(info.param); }

}  // namespace vitrine::test
