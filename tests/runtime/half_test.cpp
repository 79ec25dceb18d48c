// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>
#include <random>

#include "runtime/cpu/half_lanes.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

using cpu::BFloat16;
using cpu::BitLanes;
using cpu::FloatLanes;
using cpu::Half;

template <class T>
class HalfTest : public ::testing::Test {
 protected:
  static constexpr DType kDtype = std::is_same_v<T, Half> ? DType::f16 : DType::bf16;
  static uint32_t bits_of(float value) { return std::bit_cast<uint32_t>(value); }

  /// Equal bits, or any quiet NaN of the same sign.
  static void expect_narrow(uint16_t actual, float from, const char* how) {
    const uint16_t expected = to_bits(kDtype, static_cast<double>(from));
    if (std::isnan(from)) {
      ASSERT_EQ(actual & expected, expected) << how << " of a NaN with the bits " << bits_of(from);
      ASSERT_TRUE(std::isnan(from_bits(kDtype, actual)));
    } else {
      ASSERT_EQ(actual, expected) << how << " of " << from << " with the bits " << bits_of(from);
    }
  }
  static void expect_wide(float actual, uint16_t from, const char* how) {
    const double expected = from_bits(kDtype, from);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(actual)) << how << " of " << from;
      ASSERT_EQ(std::signbit(actual), (from & 0x8000) != 0) << how << " of " << from;
    } else {
      ASSERT_EQ(bits_of(actual), bits_of(static_cast<float>(expected))) << how << " of " << from;
    }
  }
};
using Types = ::testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(HalfTest, Types);

#ifdef __FLT16_MANT_DIG__
/// The compiler's conversions, against which the tests compare, are correct.
TEST(Float16Test, AgreesWithTheReferenceOfTheTests) {
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const auto half = static_cast<uint16_t>(i);
    const auto compilers = static_cast<double>(std::bit_cast<_Float16>(half));
    const double ours = from_bits(DType::f16, half);
    ASSERT_EQ(std::isnan(ours), std::isnan(compilers)) << i;
    if (std::isnan(ours)) continue;
    ASSERT_EQ(std::bit_cast<uint64_t>(ours), std::bit_cast<uint64_t>(compilers)) << i;
    for (const double factor : {1.0, 1.0 + 0x1p-11, 1.0 + 0x1p-12, 1.0 + 0x3p-12, 1.0 - 0x1p-40}) {
      const double value = ours * factor;
      ASSERT_EQ(to_bits(DType::f16, value), std::bit_cast<uint16_t>(static_cast<_Float16>(value))) << value;
    }
  }
}
#endif

/// Every number of type T, and the floats around the midpoint between it and the next.
template <class T>
std::vector<float> floats_around_ties(DType dtype) {
  std::vector<float> floats;
  for (uint32_t i = 0; i < 0xFFFF; ++i) {
    const double here = from_bits(dtype, static_cast<uint16_t>(i));
    double next = from_bits(dtype, static_cast<uint16_t>(i + 1));
    if (std::isfinite(here) && std::isinf(next)) next = 2 * here - from_bits(dtype, static_cast<uint16_t>(i - 1));
    const auto middle = static_cast<float>((here + next) / 2);
    for (const float f :
         {static_cast<float>(here), middle, std::nextafter(middle, 0.0F), std::nextafter(middle, 2 * middle)})
      floats.push_back(f);
  }
  std::mt19937_64 engine(1);
  for (int i = 0; i < 200'000; ++i) floats.push_back(std::bit_cast<float>(static_cast<uint32_t>(engine())));
  return floats;
}

TYPED_TEST(HalfTest, WideningIsExactForEveryNumber) {
  std::vector<TypeParam> all;
  for (uint32_t i = 0; i < 0x10000; ++i) all.push_back(TypeParam{static_cast<uint16_t>(i)});
  std::vector<float> bulk(all.size());
  cpu::widen(all.data(), bulk.data(), static_cast<int64_t>(all.size()));
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const auto half = static_cast<uint16_t>(i);
    this->expect_wide(cpu::to_float(all[i]), half, "to_float");
    this->expect_wide(bulk[i], half, "widen");
    float wide = 0.0F;
    cpu::bits::widen(TypeParam{}, i, wide);
    this->expect_wide(wide, half, "bits");
    FloatLanes lanes{};
    cpu::bits::widen(TypeParam{}, BitLanes{} + i, lanes);
    this->expect_wide(lanes[5], half, "lanes");
    if (this->HasFatalFailure()) return;
  }
}

TYPED_TEST(HalfTest, NarrowingRoundsToNearestWithTiesToEven) {
  const std::vector<float> floats = floats_around_ties<TypeParam>(this->kDtype);
  std::vector<TypeParam> bulk(floats.size());
  cpu::narrow(floats.data(), bulk.data(), static_cast<int64_t>(floats.size()));
  for (size_t i = 0; i < floats.size(); ++i) {
    const float f = floats[i];
    this->expect_narrow(cpu::from_float<TypeParam>(f).bits, f, "from_float");
    this->expect_narrow(bulk[i].bits, f, "narrow");
    uint32_t half = 0;
    cpu::bits::narrow(TypeParam{}, f, half);
    this->expect_narrow(static_cast<uint16_t>(half), f, "bits");
    const FloatLanes all{f, f, f, f, f, f, f, f};
    BitLanes lanes{};
    cpu::bits::narrow(TypeParam{}, all, lanes);
    this->expect_narrow(static_cast<uint16_t>(lanes[2]), f, "lanes");
    if (this->HasFatalFailure()) return;
  }
}

TYPED_TEST(HalfTest, BulkConversionAcceptsAnyCountAndAddress) {
  for (int64_t offset = 0; offset < 3; ++offset) {
    for (int64_t count = 0; count < 35; ++count) {
      std::vector<float> floats(static_cast<size_t>(offset + count + 1), 7.0F);
      std::vector<TypeParam> halves(floats.size(), TypeParam{0x1234});
      for (int64_t i = 0; i < count; ++i) floats[static_cast<size_t>(offset + i)] = static_cast<float>(i) * 0.5F;
      cpu::narrow(floats.data() + offset, halves.data() + offset, count);
      for (size_t i = 0; i < halves.size(); ++i) {
        const bool written = i >= static_cast<size_t>(offset) && i < static_cast<size_t>(offset + count);
        ASSERT_EQ(halves[i].bits, written ? to_bits(this->kDtype, static_cast<double>(floats[i])) : 0x1234) << i;
      }
      std::vector<float> back(floats.size(), 7.0F);
      cpu::widen(halves.data() + offset, back.data() + offset, count);
      ASSERT_EQ(back, floats);
    }
  }
}

}  // namespace
}  // namespace vitrine::test
