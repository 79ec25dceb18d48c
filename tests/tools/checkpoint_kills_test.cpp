// SPDX-License-Identifier: Apache-2.0
#include "tests/tools/checkpoint_kills.h"

namespace vitrine::test {
namespace {

TEST_F(CheckpointKills, TwoHundredCostNothing) { survive(200, 1); }

}  // namespace
}  // namespace vitrine::test
