// SPDX-License-Identifier: Apache-2.0
#include "tools/program/advice.h"

#include <gtest/gtest.h>

namespace vitrine::tools {
namespace {

TEST(Advice, SettingsOfTheApiBecomeFlags) {
  EXPECT_EQ(in_program_words("conv2d: 10 bytes are reserved; set EngineConfig::workspace_bytes to 64MiB"),
            "conv2d: 10 bytes are reserved; set --workspace to 64MiB");
  EXPECT_EQ(in_program_words("What would fit: EngineConfig::batch_size 48; or EngineConfig::accumulate 2; or EngineConfig::scheme ddp"),
            "What would fit: --batch-size 48; or --accumulate 2; or --mode ddp");
  EXPECT_EQ(in_program_words("linear_forward: x has shape (64, 784)"), "linear_forward: x has shape (64, 784)");
}

}  // namespace
}  // namespace vitrine::tools
