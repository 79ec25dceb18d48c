// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/step_control.h"
#include "nn/parallel/reduce/exact_reducer.h"
#include "runtime/copy.h"
#include "runtime/square_sums.h"

namespace vitrine {
namespace {

/// The tiles that lie in a piece of a gradient of `count` elements.
RowRange tiles_in(const ShardPiece& piece, int64_t count) {
  return {square_tiles(piece.begin), piece.end == count ? square_tiles(count) : piece.end / kSquareTile};
}

}  // namespace

ExactSquares::ExactSquares(const ReducerContext& replica) : replica_(replica) {
  const EngineConfig& config = replica.config;
  if (config.non_finite() == NonFinite::accept && !config.precision.loss_scaling.active()) return;
  if (config.scheme.reduce == ReducerKind::gpu0 && replica.rank > 0) return;  // device 0 decides
  const int64_t count = replica.layout.parameter_elements(), tiles = square_tiles(count);
  const Category category = replica.world_size > 1 ? Category::communication : Category::gradients;
  sums_ = replica.device.compute().allocate({tiles, 2}, DType::i32, category, "sums of squares");
  if (!replica.shards_gradients()) return;
  std::vector<bool> whole(static_cast<size_t>(tiles));
  ReducerContext of_rank = replica;
  for (of_rank.rank = 0; of_rank.rank < replica.world_size; ++of_rank.rank) {
    for (const ShardPiece& piece : make_shard(of_rank, nullptr)) {
      if (piece.shared && of_rank.rank > 0) continue;
      const auto [begin, end] = tiles_in(piece, count);
      for (int64_t tile = begin; tile < end; ++tile) whole[static_cast<size_t>(tile)] = true;
      if (of_rank.rank == replica.rank) pieces_.push_back(piece);
    }
  }
  for (int64_t tile = 0; tile < tiles; ++tile) {
    if (!whole[static_cast<size_t>(tile)]) cut_.push_back(tile);
  }
}

void ExactSquares::square(ExecContext& ctx, const View& values, int64_t first_tile) const {
  sum_squares(ctx, values, sums_.view().rows(first_tile, first_tile + square_tiles(values.numel())));
}

void ExactSquares::sum(const std::function<void(const View&)>& all_reduce) const {
  if (!sums_) return;
  if (replica_.shards_gradients()) return sum_shards(all_reduce);
  square(replica_.device.compute(), replica_.gradients.rows(0, replica_.gradient_elements()), 0);
}

void ExactSquares::sum_shards(const std::function<void(const View&)>& all_reduce) const {
  ExecContext& ctx = replica_.device.compute();
  const int64_t count = replica_.layout.parameter_elements();
  zero(ctx, sums_);
  Tensor cut;
  if (!cut_.empty()) {
    cut = ctx.allocate({static_cast<int64_t>(cut_.size()) * kSquareTile}, DType::f32, Category::communication,
                       "tiles that shards cut");
    zero(ctx, cut);
  }
  for (const ShardPiece& piece : pieces_) {
    const auto values = [&](int64_t begin, int64_t end) {
      return replica_.gradients.rows(piece.state_begin + begin - piece.begin, piece.state_begin + end - piece.begin);
    };
    const auto [first, last] = tiles_in(piece, count);
    if (first < last) square(ctx, values(first * kSquareTile, std::min(last * kSquareTile, count)), first);
    for (size_t i = 0; i < cut_.size(); ++i) {
      const int64_t at = cut_[i] * kSquareTile, begin = std::max(at, piece.begin),
                    end = std::min(at + kSquareTile, piece.end);
      const int64_t to = static_cast<int64_t>(i) * kSquareTile - at;
      if (begin < end) copy(ctx, values(begin, end), cut.view().rows(to + begin, to + end));
    }
  }
  // Each sum and each element comes from one replica, and the others add zeros to it: no rounding.
  all_reduce(sums_.view().reshape({sums_.numel()}));
  if (cut_.empty()) return;
  all_reduce(cut);
  for (size_t i = 0; i < cut_.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i) * kSquareTile,
                  elements = std::min(kSquareTile, count - cut_[i] * kSquareTile);
    square(ctx, cut.view().rows(at, at + elements), cut_[i]);
  }
}

}  // namespace vitrine
