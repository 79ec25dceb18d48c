// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/workspace.h"

#include <algorithm>

#include <omp.h>

#include "kernels/cpu/arena.h"
#include "kernels/cpu/f32.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/portable.h"
#include "kernels/cpu/widened.h"

namespace vitrine::cpu {
namespace {

/// Gives this thread a device's number of threads, for which libraries plan.
class TeamScope {
 public:
  explicit TeamScope(int threads) : previous_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~TeamScope() { omp_set_num_threads(previous_); }
  TeamScope(const TeamScope&) = delete;
  TeamScope& operator=(const TeamScope&) = delete;

 private:
  int previous_;
};

/// Bytes of one operation: with `best` it runs at full speed; if these are too many it uses up to `other`, and at least
/// `least`.
struct Bytes {
  int64_t best, other, least;
};

Bytes bytes_of(ExecContext& ctx, const RecordedConv2d& c) {
  const portable::Conv2dBytes own = c.dtype == DType::f32 ? portable::conv2d_bytes(c) : widened::conv2d_bytes(ctx, c);
  const int64_t bytes = onednn::computes(c.dtype) ? onednn::conv2d_bytes(ctx, c) : -1;
  const Bytes direct{bytes >= 0 ? bytes : own.most, own.most, own.least};
  const int64_t winograd = ctx.winograd() ? onednn::winograd_bytes(ctx, c) : -1;
  return winograd >= 0 ? Bytes{winograd, direct.best, direct.least} : direct;
}
Bytes bytes_of(ExecContext& ctx, const RecordedProduct& p, int64_t allowed) {
  const int64_t bytes = onednn::product_bytes(ctx, p, allowed);
  if (bytes >= 0) return {bytes, bytes, 0};
  if (p.dtype == DType::f32) return {0, 0, 0};
  const int64_t widened = widened::gemm_bytes(p);
  return {widened, widened, kWidenedGemmWorkspaceBytes};
}

}  // namespace

WorkspaceNeed workspace_need(ExecContext& ctx, const RecordedOperations& operations, const WorkspaceTarget& target,
                             int64_t allowed_bytes) {
  const TeamScope team(target.thread_count);
  WorkspaceNeed need;
  const auto add = [&](const Bytes& bytes) {
    need.best_bytes =
        std::max(need.best_bytes, bytes.best <= allowed_bytes ? bytes.best : std::min(bytes.other, allowed_bytes));
    need.least_bytes = std::max(need.least_bytes, std::min(bytes.best, bytes.least));
  };
  for (const auto& [key, convolution] : operations.convolutions) {
    const Bytes bytes = bytes_of(ctx, convolution);
    add(bytes);
    if (bytes.best > allowed_bytes) need.shortages.push_back({convolution.str(), bytes.best});
  }
  for (const auto& [product, unused] : operations.products) add(bytes_of(ctx, product, allowed_bytes));
  return need;
}

}  // namespace vitrine::cpu
