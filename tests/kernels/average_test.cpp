// SPDX-License-Identifier: Apache-2.0
#include "kernels/average.h"

#include "kernels/step_control.h"
#include "runtime/error.h"
#include "tests/support/shifted.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

class AverageTest : public DeviceTest {
 protected:
  Tensor step(int32_t number) { return device.tensor({1}, std::vector<int32_t>{number}); }
  Tensor control(bool active) {
    std::vector<float> values(StepControl::kCount, 0.0F);
    values[StepControl::kActive] = active ? 1.0F : 0.0F;
    return device.tensor({StepControl::kCount}, values);
  }
};

TEST_F(AverageTest, FollowsTheParametersFromTheFirstUpdateOn) {
  for (const int64_t count : {1, 7, 64, 20003}) {
    for (const int64_t shift : {0, 3}) {
      const Shifted<> average(device, {count}, shift, random_floats(count, 1));
      std::vector<double> expected;
      for (int32_t number = 1; number <= 4; ++number) {
        const std::vector<float> param = random_floats(count, static_cast<uint64_t>(number) + 10, -3, 3);
        update_average(ctx(), 0.9, device.tensor({count}, param), average, step(number), control(true));
        if (number == 1) expected.assign(param.begin(), param.end());
        for (size_t i = 0; number > 1 && i < param.size(); ++i)
          expected[i] = 0.9 * expected[i] + 0.1 * static_cast<double>(param[i]);
      }
      expect_close(average.values(), expected, 1e-6, 1e-6, std::to_string(count));
    }
  }
}

TEST_F(AverageTest, SkippedStepsChangeNothing) {
  const std::vector<float> before = random_floats(300, 2);
  const GuardedTensor average = device.guarded({300}, before);
  update_average(ctx(), 0.5, device.random({300}, 3), average, step(1), control(false));
  expect_same_bits(device.values(average), before);
}

TEST_F(AverageTest, RefusesADecayOutsideOfZeroToOne) {
  const Tensor a = device.random({8}, 6);
  EXPECT_THROW(update_average(ctx(), 1.0, a, device.empty({8}), step(1), control(true)), ConfigError);
  EXPECT_THROW(update_average(ctx(), 0.0, a, device.empty({8}), step(1), control(true)), ConfigError);
}

}  // namespace
}  // namespace vitrine::test
