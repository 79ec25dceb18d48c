// SPDX-License-Identifier: Apache-2.0
#include "kernels/workspace.h"

#include <algorithm>

#include <fmt/format.h>

#include "kernels/cpu/workspace.h"
#include "kernels/cuda/workspace.h"
#include "kernels/recorded_operations.h"
#include "runtime/error.h"

namespace vitrine {

std::string RecordedConv2d::str() const {
  const char* const name = pass == Conv2dPass::forward         ? "conv2d_forward"
                           : pass == Conv2dPass::backward_data ? "conv2d_backward_data"
                                                               : "conv2d_backward_weight";
  return fmt::format("{} x {} w {} stride {} pad {}{}", name, x.str(), w.str(), config.stride, config.pad,
                     dtype == DType::f32 ? std::string() : fmt::format(", {}", dtype_name(dtype)));
}

void record(ExecContext& ctx, const RecordedConv2d& c) {
  if (ctx.backend() != Backend::meta) return;
  ctx.plans().get<RecordedOperations>().convolutions.try_emplace(
      {static_cast<int64_t>(c.pass), static_cast<int64_t>(c.dtype), c.x[0], c.x[1], c.x[2], c.x[3], c.w[0], c.w[1], c.w[2], c.config.stride,
       c.config.pad, c.config.relu, c.bias, c.accumulate},
      c);
}

void record(ExecContext& ctx, const RecordedProduct& product) {
  if (ctx.backend() == Backend::meta) ctx.plans().get<RecordedOperations>().products.try_emplace(product, true);
}

WorkspaceNeed workspace_need(ExecContext& recorded, const WorkspaceTarget& target, int64_t allowed_bytes) {
  VITRINE_ASSERT(recorded.backend() == Backend::meta, "only meta contexts record their operations");
  const auto& operations = recorded.plans().get<RecordedOperations>();
  WorkspaceNeed need = target.device.backend == Backend::cuda ? cuda::workspace_need(operations, target, allowed_bytes)
                                                              : cpu::workspace_need(recorded, operations, target, allowed_bytes);
  std::stable_sort(need.shortages.begin(), need.shortages.end(),
                   [](const WorkspaceShortage& a, const WorkspaceShortage& b) { return a.needed_bytes > b.needed_bytes; });
  return need;
}

}  // namespace vitrine
