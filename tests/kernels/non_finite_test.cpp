// SPDX-License-Identifier: Apache-2.0
#include "kernels/non_finite.h"

#include <limits>

#include "kernels/cast.h"
#include "tests/support/device_fixture.h"

namespace vitrine::test {
namespace {

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
