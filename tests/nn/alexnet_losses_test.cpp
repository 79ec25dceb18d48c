// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/nn/training.h"

namespace vitrine::test {
namespace {

TEST(Losses, AlexNetFollowsPyTorch) { expect_recorded_losses("alexnet"); }

}  // namespace
}  // namespace vitrine::test
