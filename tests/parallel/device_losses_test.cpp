// SPDX-License-Identifier: Apache-2.0
// Two hundred devices are lost at random instants.
#include "tests/parallel/device_losses.h"

#include <gtest/gtest.h>

#include "tests/parallel/random_model.h"

namespace vitrine::test {
namespace {

class DeviceLosses : public ::testing::TestWithParam<DType> {};

TEST_P(DeviceLosses, LeaveTheBits) {
  expect_one_hash_in_spite_of_losses(random_model(2), GetParam(), 2, 34, 1000);
  expect_one_hash_in_spite_of_losses(tiny_resnet(true), GetParam(), 1, 33, 2000);
}

INSTANTIATE_TEST_SUITE_P(Precisions, DeviceLosses, ::testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& instance) { return dtype_name(instance.param); });

}  // namespace
}  // namespace vitrine::test
