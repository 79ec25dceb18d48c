// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/nn/training.h"

namespace vitrine::test {
namespace {

TEST(Losses, ResNet18FollowsPyTorch) { expect_recorded_resnet("resnet18"); }

}  // namespace
}  // namespace vitrine::test
