// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tools/program/collectives/bench.h"

namespace vitrine::tools {
namespace {

TEST(CollectiveTiming, IsDisturbedIfTheAverageIsOverTwiceTheMedian) {
  CollectiveTiming timing;
  EXPECT_FALSE(is_disturbed(timing)) << "nothing was timed";
  timing.median_seconds = 1e-5;
  timing.seconds = 2e-5;
  EXPECT_FALSE(is_disturbed(timing));
  timing.seconds = 2.1e-5;
  EXPECT_TRUE(is_disturbed(timing));
}

}  // namespace
}  // namespace vitrine::tools
