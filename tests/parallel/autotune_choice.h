// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include "tests/parallel/autotune_training.h"
#include "tests/standins/controls.h"

namespace vitrine::test {

/// Timed choice on the stand-ins, whose plans differ in their simulated times and in their bits. Checks at the end that
/// nothing is left on the GPUs.
class AutotuneChoice : public ::testing::Test {
 protected:
  AutotuneChoice() { standins::reset(); }
  ~AutotuneChoice() override {
    EXPECT_EQ(standins::live_objects(), 0);
    standins::reset();
  }
  const Model model_ = random_model(1);
};

}  // namespace vitrine::test
