// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/reason.h"

/// Settings of layers above runtime, which messages carry although runtime does not know them.
namespace vitrine::test {

inline constexpr Setting kBatchSize{"EngineConfig::batch_size"};
inline constexpr Setting kScheme{"EngineConfig::scheme"};
inline constexpr Setting kSplit{"Scheme::split"};
inline constexpr Setting kWorkspaceBytes{"EngineConfig::workspace_bytes"};

}  // namespace vitrine::test
