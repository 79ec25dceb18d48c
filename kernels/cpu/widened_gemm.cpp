// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kernels/check.h"
#include "kernels/cpu/arena.h"
#include "kernels/cpu/f32.h"
#include "kernels/cpu/storage.h"
#include "kernels/cpu/widened.h"
#include "runtime/cpu/parallel.h"

namespace vitrine::cpu::widened {
namespace {

constexpr int64_t kMostFloats = int64_t{1} << 22;  // of all tiles together; more would leave the cache and gain nothing
constexpr int64_t kUsefulBytes = int64_t{1} << 20;  // of a small product: its tiles leave the library enough of it
constexpr int64_t kEdge = 16;                       // edges of cut tiles are multiples of it
constexpr int64_t kWidenedGrain = 8192;

struct Product {
  const char* name;
  bool transpose_a, transpose_b;
  ConstView a, b;
  View c;
  GradMode mode = GradMode::overwrite;
  ConstView bias = {};
  bool relu = false;

  int64_t m() const { return c.shape[0]; }
  int64_t n() const { return c.shape[1]; }
  int64_t k() const { return a.shape[transpose_a ? 0 : 1]; }
  bool rounds() const { return c.dtype != DType::f32; }
};

/// Sizes of a tile of c and of a chunk of K.
struct Tile {
  int64_t m, n, k;
  int64_t floats(bool with_c) const { return m * k + k * n + (with_c ? m * n : 0); }
};

/// A multiple of kEdge, at least kEdge, unless `size` is less.
int64_t edge_of(int64_t most, int64_t size) { return std::min(size, std::max(kEdge, most / kEdge * kEdge)); }

/// K stays whole as long as tiles with useful edges fit: if the smaller matrix fits beside a tile of the larger, each
/// element is then widened once and sums are stored once.
Tile choose_tile(int64_t m, int64_t n, int64_t k, bool with_c, int64_t floats) {
  constexpr int64_t kUseful = 64;
  const Tile whole{m, n, k};
  if (whole.floats(with_c) <= floats) return whole;
  const int64_t small = std::min(m, n);
  const int64_t large = std::max(m, n);
  const auto tile = [&](int64_t small_edge, int64_t large_edge, int64_t depth) {
    return m <= n ? Tile{small_edge, large_edge, depth} : Tile{large_edge, small_edge, depth};
  };
  const int64_t beside = (floats - small * k) / (k + (with_c ? small : 0));
  if (beside >= std::min(kUseful, large)) return tile(small, edge_of(beside, large), k);
  const auto depth = static_cast<double>(k);
  const auto square = static_cast<int64_t>(std::sqrt(depth * depth + static_cast<double>(floats)) - depth);
  if (square >= kUseful) return tile(edge_of(square, small), edge_of(square, large), k);
  const int64_t edge = std::min<int64_t>(512, static_cast<int64_t>(std::sqrt(static_cast<double>(floats) / 3)));
  const int64_t small_edge = edge_of(edge, small);
  const int64_t large_edge = edge_of(edge, large);
  return tile(small_edge, large_edge,
              edge_of((floats - (with_c ? small_edge * large_edge : 0)) / (small_edge + large_edge), k));
}

/// A widened tile of a matrix; the content stays until another tile is requested.
class WideTile {
 public:
  WideTile(const ConstView& matrix, bool transposed, float* floats)
      : matrix_(matrix), transposed_(transposed), floats_(floats) {}

  /// Rows [row, row + rows) and columns [column, column + columns) of the operand, after transposition.
  ConstView widen(int64_t row, int64_t rows, int64_t column, int64_t columns) {
    if (transposed_) {
      std::swap(row, column);
      std::swap(rows, columns);
    }
    const ConstView tile(floats_, {rows, columns}, DType::f32, matrix_.device);
    if (row == row_ && column == column_ && tile.shape == held_) return tile;
    with_storage(matrix_.dtype, [&]<class T>(T) {
      const T* from = matrix_.as<T>() + row * matrix_.shape[1] + column;
      parallel_for(rows, std::max<int64_t>(1, kWidenedGrain / std::max<int64_t>(1, columns)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t i = begin; i < end; ++i)
                       cpu::widen(from + i * matrix_.shape[1], floats_ + i * columns, columns);
                   });
    });
    row_ = row;
    column_ = column;
    held_ = tile.shape;
    return tile;
  }

 private:
  ConstView matrix_;
  bool transposed_;
  float* floats_;
  int64_t row_ = -1, column_ = -1;
  Shape held_;
};

/// Stores the tile of c at (row, column) from its sums, with bias and ReLU.
void round_tile(const Product& p, const float* sums, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  with_storage(p.c.dtype, [&]<class T>(T) {
    const T* bias = p.bias ? p.bias.as<T>() + column : nullptr;
    parallel_for(rows, std::max<int64_t>(1, kWidenedGrain / columns), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        T* out = p.c.as<T>() + (row + i) * p.n() + column;
        for_lanes(0, columns, [&](auto& sum, int64_t j) {
          const auto zero = sum;
          auto shift = zero;
          load(sums + i * columns + j, sum);
          if (bias != nullptr) {
            load(bias + j, shift);
            sum += shift;
          }
          if (p.relu) sum = sum < 0.0F ? zero : sum;
          store(sum, out + j);
        });
      }
    });
  });
}

void require(const ExecContext& ctx, const char* name, DType dtype) {
  if (ctx.workspace() && ctx.workspace().bytes() >= kWidenedGemmWorkspaceBytes) return;
  check::throw_small_workspace(ctx, name, dtype_name(dtype), kWidenedGemmWorkspaceBytes, int64_t{8} << 20);
}

/// Floats for tiles in the workspace; the rest is left to the library that multiplies them.
int64_t tile_floats(const Arena& arena) {
  const int64_t usable = arena.left_bytes() / 8 * 7 - 3 * Arena::kAlignment;
  return std::min(kMostFloats, usable / size_of(DType::f32));
}

/// Bytes of workspace that a product of these sizes uses, if it can have them.
int64_t most_bytes(int64_t m, int64_t n, int64_t k, bool rounds) {
  const int64_t floats = std::min(kMostFloats, Tile{m, n, k}.floats(rounds));
  // The inverse of tile_floats().
  const int64_t usable = floats * size_of(DType::f32) + 3 * Arena::kAlignment;
  return std::max(kUsefulBytes, Arena::aligned((usable + 6) / 7 * 8) + Arena::kAlignment);
}

void multiply(ExecContext& ctx, const Product& p) {
  require(ctx, p.name, p.a.dtype);
  // The library chooses by what it can have: the rest of what is this product's own.
  Arena arena(ctx.workspace().rows(0, std::min(ctx.workspace().bytes(), most_bytes(p.m(), p.n(), p.k(), p.rounds()))));
  const Tile tile = choose_tile(p.m(), p.n(), p.k(), p.rounds(), tile_floats(arena));
  WideTile a(p.a, p.transpose_a, arena.take_floats(tile.m * tile.k));
  WideTile b(p.b, p.transpose_b, arena.take_floats(tile.k * tile.n));
  float* sums = p.rounds() ? arena.take_floats(tile.m * tile.n) : nullptr;
  for (int64_t i = 0; i < p.m(); i += tile.m) {
    for (int64_t j = 0; j < p.n(); j += tile.n) {
      const int64_t rows = std::min(tile.m, p.m() - i);
      const int64_t columns = std::min(tile.n, p.n() - j);
      const View target{p.rounds() ? sums : p.c.as<float>() + i * p.n() + j, {rows, columns}, DType::f32, p.c.device};
      int64_t l = 0;
      do {
        const int64_t depth = std::min(tile.k, p.k() - l);
        const GradMode mode = l > 0 ? GradMode::accumulate : p.mode;
        f32::gemm(ctx, arena.remaining(), p.transpose_a, p.transpose_b, a.widen(i, rows, l, depth),
                  b.widen(l, depth, j, columns), target, p.rounds() ? columns : p.n(), mode);
        l += tile.k;
      } while (l < p.k());
      if (p.rounds()) round_tile(p, sums, i, rows, j, columns);
    }
  }
}

}  // namespace

void gemm(ExecContext& ctx, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c, GradMode mode) {
  multiply(ctx, {"gemm", transpose_a, transpose_b, a, b, c, mode});
}

void linear_forward(ExecContext& ctx, ConstView x, ConstView w, ConstView bias, bool relu, View y) {
  multiply(ctx, {"linear_forward", false, true, x, w, y, GradMode::overwrite, bias, relu});
}

int64_t gemm_bytes(const RecordedProduct& p) { return most_bytes(p.m, p.n, p.k, p.c_dtype != DType::f32); }

void require_workspace(const ExecContext& ctx, const RecordedProduct& p) {
  require(ctx, p.transpose_b ? "linear_forward" : "gemm", p.dtype);
}

}  // namespace vitrine::cpu::widened
