// SPDX-License-Identifier: Apache-2.0
#include "kernels/difference.h"

#include <cmath>
#include <limits>

#include "kernels/cast.h"
#include "kernels/non_finite.h"
#include "runtime/error.h"
#include "tests/support/device_fixture.h"

namespace vitrine::test {
namespace {

class DifferenceTest : public DeviceTest {
 protected:
  DifferenceTest() { ctx().reserve_workspace(kDifferenceWorkspaceBytes); }
  /// The values in another dtype.
  Tensor stored(const std::vector<float>& values, DType dtype) {
    const Tensor wide = device.tensor({static_cast<int64_t>(values.size())}, values);
    if (dtype == DType::f32) return wide;
    const Tensor narrow = device.empty(wide.shape(), dtype);
    cast(ctx(), wide, narrow);
    return narrow;
  }
};

TEST_F(DifferenceTest, NormsEqualTheReference) {
  for (const int64_t count : {0, 1, 3, 1000, 4097, 100'003}) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      // Halves and quarters have the same value in every dtype.
      const auto x = random_integers<int32_t>(count, 1, -200, 200);
      std::vector<float> quarters(x.size());
      for (size_t i = 0; i < x.size(); ++i) quarters[i] = static_cast<float>(x[i]) / 4;
      const auto reference = random_floats(count, 2, -3, 3);
      double difference = 0, norm = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const auto r = static_cast<double>(reference[i]);
        difference += (static_cast<double>(quarters[i]) - r) * (static_cast<double>(quarters[i]) - r);
        norm += r * r;
      }
      const GuardedTensor norms = device.guarded(Shape{2});
      difference_norms(ctx(), stored(quarters, dtype), device.tensor({count}, reference), norms);
      expect_close(device.values(norms), std::vector<double>{std::sqrt(difference), std::sqrt(norm)}, 1e-6, 0,
                   dtype_name(dtype));
    }
  }
}

TEST_F(DifferenceTest, RefusesWrongArguments) {
  const Tensor x = device.empty({4}), norms = device.empty({2});
  EXPECT_THROW(difference_norms(ctx(), x, device.empty({5}), norms), ShapeError);
  EXPECT_THROW(difference_norms(ctx(), x, device.empty({4}, DType::f16), norms), DtypeError);
  EXPECT_THROW(difference_norms(ctx(), x, device.empty({4}), x), ShapeError);
}

TEST_F(DeviceTest, FindNonFiniteKeepsTheFirstTag) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const Tensor found = device.tensor({1}, std::vector<int32_t>{-1});
    const auto search = [&](const std::vector<float>& values, int32_t tag) {
      const Tensor wide = device.tensor({static_cast<int64_t>(values.size())}, values),
                   x = device.empty(wide.shape(), dtype);
      if (dtype != DType::f32) cast(ctx(), wide, x);
      find_non_finite(ctx(), dtype == DType::f32 ? wide : x, tag, found);
      return device.values<int32_t>(ConstView(found))[0];
    };
    std::vector<float> values = random_floats(40'001, 3);
    EXPECT_EQ(search({}, 0), -1);
    EXPECT_EQ(search(values, 1), -1) << dtype_name(dtype);
    values.back() = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(search(values, 2), 2) << dtype_name(dtype);
    values.front() = -std::numeric_limits<float>::infinity();
    EXPECT_EQ(search(values, 3), 2) << "the first tag is kept";
  }
}

}  // namespace
}  // namespace vitrine::test
