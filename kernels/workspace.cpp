// SPDX-License-Identifier: Apache-2.0
#include "kernels/workspace.h"

#include <algorithm>

#include "kernels/recorded_operations.h"
#include "runtime/error.h"

namespace vitrine {

namespace cpu {  // cpu/workspace.cpp
WorkspaceNeed workspace_need(ExecContext& ctx, const RecordedOperations& operations, const WorkspaceTarget& target,
                             int64_t allowed_bytes);
void require_workspace(ExecContext& ctx, const RecordedOperations& operations, int threads);
void record_workspace(ExecContext& ctx, const RecordedOperations& operations, const WorkspaceTarget& target,
                      int64_t allowed_bytes, WorkspaceRecord& record);
}  // namespace cpu

namespace cuda {  // cuda/cudnn_workspace.cpp: convolutions by cuDNN, with least_bytes 0
WorkspaceNeed workspace_need(const RecordedOperations& operations, const WorkspaceTarget& target,
                             int64_t allowed_bytes);
}  // namespace cuda

void record(ExecContext& ctx, const RecordedConv2d& convolution) {
  if (ctx.backend() == Backend::meta) ctx.plans().get<RecordedOperations>().add(convolution);
}

void record(ExecContext& ctx, const RecordedProduct& product) {
  if (ctx.backend() == Backend::meta) ctx.plans().get<RecordedOperations>().add(product);
}

bool has_convolutions(ExecContext& recorded) {
  return !recorded.plans().get<RecordedOperations>().convolutions.empty();
}

WorkspaceNeed workspace_need(ExecContext& recorded, const WorkspaceTarget& target, int64_t allowed_bytes) {
  VITRINE_ASSERT(recorded.backend() == Backend::meta, "only meta contexts record their operations");
  const auto& operations = recorded.plans().get<RecordedOperations>();
  const bool on_gpu = target.device.backend == Backend::cuda;
  if (on_gpu && !has_convolutions(recorded)) return {};
  WorkspaceNeed need = on_gpu ? cuda::workspace_need(operations, target, allowed_bytes)
                              : cpu::workspace_need(recorded, operations, target, allowed_bytes);
  std::stable_sort(
      need.shortages.begin(), need.shortages.end(),
      [](const WorkspaceShortage& a, const WorkspaceShortage& b) { return a.needed_bytes > b.needed_bytes; });
  return need;
}

void require_workspace(ExecContext& recorded, const WorkspaceTarget& target) {
  if (target.device.backend == Backend::cuda) return;
  cpu::require_workspace(recorded, recorded.plans().get<RecordedOperations>(), target.thread_count);
}

void record_workspace(ExecContext& recorded, const WorkspaceTarget& target, int64_t allowed_bytes,
                      WorkspaceRecord& record) {
  VITRINE_ASSERT(recorded.backend() == Backend::meta, "only meta contexts record their operations");
  cpu::record_workspace(recorded, recorded.plans().get<RecordedOperations>(), target, allowed_bytes, record);
}

}  // namespace vitrine
