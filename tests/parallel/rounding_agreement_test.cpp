// SPDX-License-Identifier: Apache-2.0
#include "tests/parallel/rounding_agreement.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

namespace vitrine::test {
namespace {

/// 1,000 ones, of which some are 3.
std::vector<float> ones_but(size_t changed) {
  std::vector<float> values(1000, 1.0F);
  for (size_t i = 0; i < changed; ++i) values[i] = 3.0F;
  return values;
}

TEST(Agreement, AcceptsRounding) {
  Agreement agreement(1e-5);
  agreement.begin_case("a case");
  agreement.expect(std::vector<float>(1000, 1.000001F), ones_but(0), Agreement::Effect::one_step, "gradients");
  EXPECT_FALSE(agreement.flipped());
}

TEST(Agreement, AcceptsOneCaseWithAFlippedRelu) {
  Agreement agreement(1e-5);
  agreement.begin_case("step 1");
  agreement.expect(ones_but(10), ones_but(0), Agreement::Effect::one_step, "gradients");
  agreement.expect(ones_but(10), ones_but(0), Agreement::Effect::one_step, "gradients of another replica");
  EXPECT_TRUE(agreement.flipped_in_case());
  agreement.begin_case("step 2");
  agreement.expect(ones_but(0), ones_but(0), Agreement::Effect::one_step, "gradients");
  EXPECT_FALSE(agreement.flipped_in_case());
  EXPECT_NONFATAL_FAILURE(agreement.expect(ones_but(10), ones_but(0), Agreement::Effect::one_step, "gradients"),
                          "step 2: gradients differ by 0.2 relative to their norm, allowed 1e-05; 10 of 1000 elements "
                          "differ, most element 0: got 3, "
                          "expected 1; another case differs too");
}

TEST(Agreement, RefusesWhatNoSingleReluExplains) {
  Agreement agreement(1e-5);
  agreement.begin_case("a case");
  EXPECT_NONFATAL_FAILURE(
      agreement.expect(std::vector<float>(1000, 1.001F), ones_but(0), Agreement::Effect::one_step, "gradients"),
      "1000 of 1000 elements differ");
  EXPECT_NONFATAL_FAILURE(agreement.expect(ones_but(100), ones_but(0), Agreement::Effect::one_step, "gradients"),
                          "100 of 1000 elements differ");
  EXPECT_NONFATAL_FAILURE(
      agreement.expect(std::vector<float>(1000, 1.1F), ones_but(0), Agreement::Effect::several_steps, "weights"),
      "weights");
  EXPECT_FALSE(agreement.flipped());
}

}  // namespace
}  // namespace vitrine::test
