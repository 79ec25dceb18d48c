// SPDX-License-Identifier: Apache-2.0
#include "kernels/workspace.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <omp.h>

#include "kernels/cpu/arena.h"
#include "kernels/cpu/f32.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/portable.h"
#include "kernels/cpu/widened.h"
#include "kernels/recorded_operations.h"

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

constexpr int64_t kUnlimited = int64_t{1} << 40;

using Answer = WorkspaceRecord::Answer;

Answer ask(ExecContext& ctx, const RecordedConv2d& c, int64_t /*allowed*/) {
  const portable::Conv2dBytes own = c.dtype == DType::f32 ? portable::conv2d_bytes(c) : widened::conv2d_bytes(ctx, c);
  const int64_t bytes = onednn::computes(c.dtype) ? onednn::conv2d_bytes(ctx, c) : -1;
  const Answer direct{bytes >= 0 ? bytes : own.most, own.most, own.least};
  const int64_t winograd = ctx.winograd() ? onednn::winograd_bytes(ctx, c) : -1;
  return winograd >= 0 ? Answer{winograd, direct.best, direct.least} : direct;
}
/// Least bytes of a product.
int64_t least_bytes(ExecContext& ctx, const RecordedProduct& p) {
  if (p.dtype == DType::f32 || onednn::product_bytes(ctx, p, 0) >= 0) return 0;
  const int64_t by_onednn = onednn::product_bytes(ctx, p, kWidenedGemmWorkspaceBytes);
  return by_onednn >= 0 ? by_onednn : kWidenedGemmWorkspaceBytes;
}
Answer ask(ExecContext& ctx, const RecordedProduct& p, int64_t allowed) {
  const int64_t bytes = onednn::product_bytes(ctx, p, allowed), least = least_bytes(ctx, p);
  if (bytes >= 0) return {bytes, -1, least};  // with less, another implementation is chosen
  if (p.dtype == DType::f32) return {0, 0, 0};
  const int64_t widened = widened::gemm_bytes(p);
  return {widened, widened, least};
}

/// Where a record keeps an operation: what it is without the size that grows with the batch, and that size.
struct Place {
  std::string operation;
  int64_t size;
};
Place place(const RecordedOperations& one, int64_t size, const ExecContext& ctx, int threads) {
  return {fmt::format("{}{} {}", threads, ctx.winograd() ? " winograd" : "", one.lines().front()), size};
}
Place place_of(RecordedConv2d c, const ExecContext& ctx, int threads) {
  const int64_t images = c.x[0];
  c.x = c.x.with_dim0(0);
  RecordedOperations one;
  one.add(c);
  return place(one, images, ctx, threads);
}
Place place_of(RecordedProduct p, const ExecContext& ctx, int threads) {
  const int64_t size = std::exchange(p.transpose_a ? p.k : p.m, 0);
  RecordedOperations one;
  one.add(p);
  return place(one, size, ctx, threads);  // with Winograd, too: a product is allowed the larger workspace
}

}  // namespace

WorkspaceNeed workspace_need(ExecContext& ctx, const RecordedOperations& operations, const WorkspaceTarget& target,
                             int64_t allowed_bytes) {
  const TeamScope team(target.thread_count);
  WorkspaceNeed need;
  // Adds what an operation needs. Returns its best, or nothing if the record has no answer.
  const auto add = [&](const auto& operation) -> std::optional<int64_t> {
    std::optional<Answer> bytes;
    if (target.record == nullptr) {
      bytes = ask(ctx, operation, allowed_bytes);
    } else {
      const Place place = place_of(operation, ctx, target.thread_count);
      bytes = target.record->find(place.operation, place.size);
      if (!bytes || (bytes->best > allowed_bytes && bytes->other < 0)) return std::nullopt;
    }
    need.best_bytes =
        std::max(need.best_bytes, bytes->best <= allowed_bytes ? bytes->best : std::min(bytes->other, allowed_bytes));
    need.least_bytes = std::max(need.least_bytes, std::min(bytes->best, bytes->least));
    return bytes->best;
  };
  const auto unknown = [&](const std::string& operation) {
    WorkspaceNeed none;
    none.unknown = fmt::format("{} was not asked for {} on {} thread{}", target.record->library(), operation,
                               target.thread_count, target.thread_count == 1 ? "" : "s");
    return none;
  };
  for (const auto& [key, convolution] : operations.convolutions) {
    const std::optional<int64_t> best = add(convolution);
    if (!best) return unknown(convolution.str());
    if (*best > allowed_bytes) need.shortages.push_back({convolution.str(), *best});
  }
  for (const auto& [product, unused] : operations.products) {
    std::optional<int64_t> best = add(product);
    if (!best) return unknown(product.str());
    // A library chooses another implementation of what is too large.
    if (target.record == nullptr) best = ask(ctx, product, kUnlimited).best;
    if (*best > allowed_bytes) need.shortages.push_back({product.str(), *best});
  }
  return need;
}

void require_workspace(ExecContext& ctx, const RecordedOperations& operations, int threads) {
  const TeamScope team(threads);
  const int64_t reserved = ctx.workspace() ? ctx.workspace().bytes() : 0;
  int64_t most = reserved;
  std::function<void()> refuse;  // names the operation that needs most, so that the proposal is enough for all
  const auto check = [&](const auto& operation, const std::function<void()>& refuse_it) {
    const Answer bytes = ask(ctx, operation, reserved);
    if (const int64_t least = std::min(bytes.best, bytes.least); least > most) {
      most = least;
      refuse = refuse_it;
    }
  };
  for (const auto& [key, c] : operations.convolutions) {
    check(c, [&, &convolution = c] {
      if (convolution.dtype == DType::f32) portable::require_workspace(ctx, reserved, convolution);
      widened::require_workspace(ctx, convolution);
    });
  }
  for (const auto& [p, unused] : operations.products) {
    check(p, [&, &product = p] { widened::require_workspace(ctx, product); });
  }
  if (refuse) refuse();
}

void record_workspace(ExecContext& ctx, const RecordedOperations& operations, const WorkspaceTarget& target,
                      int64_t allowed_bytes, WorkspaceRecord& record) {
  const TeamScope team(target.thread_count);
  const auto add = [&](const auto& operation) {
    const Place place = place_of(operation, ctx, target.thread_count);
    if (!record.find(place.operation, place.size))
      record.add(place.operation, place.size, ask(ctx, operation, allowed_bytes));
  };
  for (const auto& [key, convolution] : operations.convolutions) add(convolution);
  for (const auto& [product, unused] : operations.products) add(product);
}

}  // namespace vitrine::cpu
