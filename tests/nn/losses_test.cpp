// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/nn/training.h"

namespace vitrine::test {
namespace {

TEST(Losses, SmallCnnFollowsPyTorch) { expect_recorded_losses("small-cnn"); }

}  // namespace
}  // namespace vitrine::test
