// SPDX-License-Identifier: Apache-2.0
#include "kernels/cast.h"

#include <bit>
#include <cmath>
#include <random>

#include "tests/support/shifted.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

class CastTest : public DtypeTest {
 protected:
  /// Equal bits, or both NaN.
  void expect_bits(const std::vector<uint16_t>& actual, const std::vector<uint16_t>& expected, DType type,
                   const std::string& what) {
    ASSERT_EQ(actual.size(), expected.size()) << what;
    for (size_t i = 0; i < actual.size(); ++i) {
      if (std::isnan(from_bits(type, expected[i])) && std::isnan(from_bits(type, actual[i]))) continue;
      ASSERT_EQ(actual[i], expected[i]) << what << ", element " << i << ": " << from_bits(type, actual[i]) << ", not "
                                        << from_bits(type, expected[i]);
    }
  }
};

std::vector<uint16_t> every_number() {
  std::vector<uint16_t> all(0x10000);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  return all;
}

TEST_P(CastTest, EveryNumberSurvivesARoundTripThroughF32) {
  const std::vector<uint16_t> all = every_number();
  const Shape shape{0x10000};
  const GuardedTensor wide = device.guarded(shape);
  cast(ctx(), device.tensor(shape, all, dtype()), wide);
  std::vector<float> expected(all.size());
  for (size_t i = 0; i < all.size(); ++i) expected[i] = static_cast<float>(from_bits(dtype(), all[i]));
  const std::vector<float> actual = device.values(wide);
  for (size_t i = 0; i < all.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(actual[i])) continue;
    ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]), std::bit_cast<uint32_t>(expected[i])) << "of " << i;
  }
  const GuardedTensor back = guarded(shape);
  cast(ctx(), wide, back);
  // A NaN may have the bits of the poison, which values() would report as not written.
  expect_bits(device.values<uint16_t>(ConstView(back.view)), all, dtype(), "back");
}

TEST_P(CastTest, RoundsToTheNearestWithTiesToEvenAndOverflowsToInfinity) {
  std::vector<float> floats;
  const std::vector<uint16_t> all = every_number();
  for (size_t i = 1; i < all.size(); ++i) {
    const double a = from_bits(dtype(), all[i - 1]);
    const double b = from_bits(dtype(), all[i]);
    if (!std::isfinite(a)) continue;
    // Beyond the largest number, rounding works as if there were a next one.
    const auto middle =
        static_cast<float>(std::isfinite(b) ? (a + b) / 2 : a + (a - from_bits(dtype(), all[i - 2])) / 2);
    for (const float f : {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, 2 * middle)})
      floats.push_back(f);
  }
  std::mt19937_64 engine(3);
  for (int i = 0; i < 100'000; ++i) floats.push_back(std::bit_cast<float>(static_cast<uint32_t>(engine())));
  const Shape shape{static_cast<int64_t>(floats.size())};
  const GuardedTensor y = guarded(shape);
  cast(ctx(), device.tensor(shape, floats), y);
  expect_bits(device.values<uint16_t>(ConstView(y.view)), to_bits(dtype(), floats), dtype(), "rounded");
}

TEST_P(CastTest, FromTheOtherTypeRoundsOnce) {
  const DType other = dtype() == DType::f16 ? DType::bf16 : DType::f16;
  const std::vector<uint16_t> all = every_number();
  const Shape shape{0x10000};
  const GuardedTensor y = guarded(shape);
  cast(ctx(), device.tensor(shape, all, other), y);
  expect_bits(device.values<uint16_t>(ConstView(y.view)), to_bits(dtype(), from_bits(other, all)), dtype(),
              "from the other");
}

TEST_P(CastTest, AcceptsAnyLengthAndAlignment) {
  for (const int64_t count : {1, 2, 3, 7, 8, 9, 31, 1023, 16384 + 13}) {
    const std::vector<float> x = random_floats(count, static_cast<uint64_t>(count), -100, 100);
    for (const auto& [from, to] : std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {1, 1}, {3, 2}, {0, 5}}) {
      const std::string what = std::to_string(count) + " from " + std::to_string(from) + " to " + std::to_string(to);
      const Shifted<uint16_t> narrow(device, {count}, to, dtype());
      cast(ctx(), Shifted<>(device, {count}, from, x), narrow);
      EXPECT_EQ(narrow.values(), to_bits(dtype(), x)) << what;
      const Shifted<> wide(device, {count}, to);
      cast(ctx(), Shifted<uint16_t>(device, {count}, from, to_bits(dtype(), x), dtype()), wide);
      EXPECT_EQ(wide.values(), stored(dtype(), x)) << what;
      const Shifted<uint16_t> same(device, {count}, to, dtype());
      cast(ctx(), Shifted<uint16_t>(device, {count}, from, to_bits(dtype(), x), dtype()), same);
      EXPECT_EQ(same.values(), to_bits(dtype(), x)) << what;
      const Shifted<> kept(device, {count}, to);
      cast(ctx(), Shifted<>(device, {count}, from, x), kept);
      EXPECT_EQ(kept.values(), x) << what;
      const DType other = dtype() == DType::f16 ? DType::bf16 : DType::f16;
      const Shifted<uint16_t> changed(device, {count}, to, dtype());
      cast(ctx(), Shifted<uint16_t>(device, {count}, from, to_bits(other, x), other), changed);
      EXPECT_EQ(changed.values(), to_bits(dtype(), stored(other, x))) << what;
    }
  }
  const GuardedTensor none = guarded({0, 3});
  cast(ctx(), device.empty({0, 3}), none);
  EXPECT_TRUE(values(none).empty());
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CastTest, ::testing::ValuesIn(kHalfTypes), dtype_test_name);

}  // namespace
}  // namespace vitrine::test
