// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/recorded_operations.h"
#include "kernels/workspace.h"

namespace vitrine::cuda {

/// vitrine::workspace_need() of GPUs: convolutions by cuDNN. Its least_bytes are 0.
WorkspaceNeed workspace_need(const RecordedOperations& operations, const WorkspaceTarget& target,
                             int64_t allowed_bytes);

}  // namespace vitrine::cuda
