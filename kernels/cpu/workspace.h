// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/recorded_operations.h"
#include "kernels/workspace.h"

namespace vitrine::cpu {

/// vitrine::workspace_need() of CPU devices.
WorkspaceNeed workspace_need(ExecContext& ctx, const RecordedOperations& operations, const WorkspaceTarget& target,
                             int64_t allowed_bytes);
/// vitrine::require_workspace() of CPU devices.
void require_workspace(ExecContext& ctx, const RecordedOperations& operations, int threads);
/// vitrine::record_workspace().
void record_workspace(ExecContext& ctx, const RecordedOperations& operations, const WorkspaceTarget& target,
                      int64_t allowed_bytes, WorkspaceRecord& record);

}  // namespace vitrine::cpu
