// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tools/program/run/collective_bench.h"

namespace vitrine::tools {
namespace {

TEST(CollectiveTiming, IsDisturbedIfTheAverageIsOverTwiceTheMedian) {
  EXPECT_FALSE(is_disturbed({.seconds = 2e-5, .median_seconds = 1e-5}));
  EXPECT_TRUE(is_disturbed({.seconds = 2.1e-5, .median_seconds = 1e-5}));
  EXPECT_FALSE(is_disturbed({})) << "nothing was timed";
}

}  // namespace
}  // namespace vitrine::tools
