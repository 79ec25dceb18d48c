// SPDX-License-Identifier: Apache-2.0
// Compiled for several instruction sets, see kernels/cpu/levels.h.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention.h"
#include "kernels/cpu/exp.h"
#include "kernels/cpu/row_sums.h"
#include "runtime/cpu/parallel.h"
#include "runtime/exec_context.h"

namespace vitrine::cpu::VITRINE_CPU_LEVEL {
namespace {

constexpr int64_t kTile = 64;     // queries or keys
constexpr int64_t kColumns = 32;  // that multiply() computes at once

/// A matrix of floats on the stack: up to kTile rows of heads, or heads transposed. What is beyond its rows and columns
/// is zero up to a multiple of kColumns.
struct Tile {
  alignas(64) float at[kTile * kLargestHead];
};
struct Scores {
  alignas(64) float at[kTile * kTile];
};

int64_t padded(int64_t columns) { return (columns + kColumns - 1) / kColumns * kColumns; }

/// c (m, n) += a (m, k) b (k, n). Element (i, j) of a is a[i * a_row + j * a_column]; n is a multiple of kColumns.
/// Each element is added up in ascending k.
void multiply(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_row, int64_t a_column, const float* b,
              int64_t b_row, float* c, int64_t c_row) {
  constexpr size_t kRows = 4, kVectors = 2;
  constexpr auto kStep = static_cast<int64_t>(kVectors) * kLanes;
  const auto rows_at_once = [&]<size_t kCount>(int64_t i, int64_t j, std::integral_constant<size_t, kCount>) {
    FloatLanes sums[kCount][kVectors];
    for_each_lane<kCount>([&](size_t r) {
      for_each_lane<kVectors>([&](size_t v) {
        load(c + (i + static_cast<int64_t>(r)) * c_row + j + static_cast<int64_t>(v) * kLanes, sums[r][v]);
      });
    });
    for (int64_t p = 0; p < k; ++p) {
      FloatLanes columns[kVectors];
      for_each_lane<kVectors>(
          [&](size_t v) { load(b + p * b_row + j + static_cast<int64_t>(v) * kLanes, columns[v]); });
      for_each_lane<kCount>([&](size_t r) {
        const float factor = a[(i + static_cast<int64_t>(r)) * a_row + p * a_column];
        for_each_lane<kVectors>([&](size_t v) { sums[r][v] += factor * columns[v]; });
      });
    }
    for_each_lane<kCount>([&](size_t r) {
      for_each_lane<kVectors>([&](size_t v) {
        store(sums[r][v], c + (i + static_cast<int64_t>(r)) * c_row + j + static_cast<int64_t>(v) * kLanes);
      });
    });
  };
  for (int64_t j = 0; j < n; j += kStep) {
    int64_t i = 0;
    for (; i + static_cast<int64_t>(kRows) <= m; i += kRows)
      rows_at_once(i, j, std::integral_constant<size_t, kRows>());
    for (; i < m; ++i) rows_at_once(i, j, std::integral_constant<size_t, 1>());
  }
}

/// One head of one sample.
struct Head {
  int64_t length, size, width;  // T, D, H * D
  float scale;                  // 1 / sqrt(D)

  int64_t tiles() const { return (length + kTile - 1) / kTile; }
  int64_t rows_of(int64_t tile) const { return std::min(kTile, length - tile * kTile); }
  int64_t stride() const { return padded(size); }

  /// Rows of a tile times `factor`; rows of `from` are `row` elements apart.
  template <class T>
  void load_rows(const T* from, int64_t row, int64_t tile, float factor, Tile& to) const {
    for (int64_t i = 0; i < kTile; ++i) {
      float* const line = to.at + i * stride();
      const bool there = i < rows_of(tile);
      if (there) {
        for_lanes(0, size, [&, source = from + (tile * kTile + i) * row](auto& value, int64_t d) {
          load(source + d, value);
          value *= factor;
          store(value, line + d);
        });
      }
      std::fill(line + (there ? size : 0), line + stride(), 0.0F);
    }
  }
  /// The same transposed: element (d, i) is to.at[d * kTile + i].
  template <class T>
  void load_columns(const T* from, int64_t row, int64_t tile, Tile& to) const {
    const int64_t rows = rows_of(tile);
    for (int64_t i = 0; i < rows; ++i) {
      const T* const source = from + (tile * kTile + i) * row;
      for (int64_t d = 0; d < size; ++d) to.at[d * kTile + i] = to_float(source[d]);
    }
    for (int64_t d = 0; rows < kTile && d < size; ++d)
      std::fill(to.at + d * kTile + rows, to.at + (d + 1) * kTile, 0.0F);
  }
  template <class T>
  void store_rows(const Tile& tile_values, int64_t tile, float factor, T* to, int64_t row) const {
    for (int64_t i = 0; i < rows_of(tile); ++i) {
      for_lanes(0, size, [&](auto& value, int64_t d) {
        load(tile_values.at + i * stride() + d, value);
        value *= factor;
        store(value, to + (tile * kTile + i) * row + d);
      });
    }
  }
  void clear(Tile& tile) const { std::fill(tile.at, tile.at + kTile * stride(), 0.0F); }

  /// scores (kTile, kTile) = rows . columns, over the elements of the head.
  void dot_products(int64_t rows, const Tile& queries, const Tile& keys, Scores& scores) const {
    std::fill(scores.at, scores.at + kTile * kTile, 0.0F);
    multiply(rows, kTile, size, queries.at, stride(), 1, keys.at, kTile, scores.at, kTile);
  }
  /// to (rows, D) += weights (rows, kTile) values (kTile, D); with `transposed`, weights (kTile, rows) are transposed.
  void add_products(int64_t rows, int64_t depth, const Scores& weights, bool transposed, const Tile& values,
                    Tile& to) const {
    multiply(rows, stride(), depth, weights.at, transposed ? 1 : kTile, transposed ? kTile : 1, values.at, stride(),
             to.at, stride());
  }
};

/// Calls body(head, n, h, tile) for all tiles of all heads, in parallel.
template <class Body>
void for_each_tile(const ConstView& x, int64_t heads, const Body& body) {
  const int64_t size = x.shape[2] / (3 * heads);
  const Head head{x.shape[1], size, heads * size, 1.0F / std::sqrt(static_cast<float>(size))};
  const int64_t tiles = head.tiles();
  parallel_for(x.shape[0] * heads * tiles, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(head, i / tiles / heads, i / tiles % heads, i % tiles);
  });
}

/// Calls body(value, j) for the lanes of a row of scores.
template <class Body>
void for_scores(const Body& body) {
  for (int64_t j = 0; j < kTile; j += kLanes) {
    FloatLanes value{};
    body(value, j);
  }
}

/// Keys of a row of scores that it sees, in the tile on the diagonal or before it.
int64_t seen_by(int64_t row, bool diagonal) { return diagonal ? row + 1 : kTile; }

/// scores = exp(scores - shift) for the first `seen` ones, and 0 after them.
void exponentials(float* scores, int64_t seen, float shift) {
  std::fill(scores + seen, scores + kTile, -std::numeric_limits<float>::infinity());
  for_scores([&](FloatLanes& value, int64_t j) {
    load(scores + j, value);
    value -= shift;
    exp(value, value);
    store(value, scores + j);
  });
}

/// p = the weights and s = the gradients of the scores, of the queries of a tile by the keys of another.
struct Weights {
  Scores p, s;

  void compute(const Head& head, int64_t rows, bool diagonal, const Tile& queries, const Tile& keys, const Tile& values,
               const Tile& gradients, const float* log_sums, const float* dots) {
    head.dot_products(rows, queries, keys, p);
    head.dot_products(rows, gradients, values, s);
    for (int64_t i = 0; i < rows; ++i) {
      float *const weight = p.at + i * kTile, *const gradient = s.at + i * kTile;
      exponentials(weight, seen_by(i, diagonal), log_sums[i]);
      for_scores([&](FloatLanes& value, int64_t j) {
        FloatLanes other{};
        load(gradient + j, value);
        load(weight + j, other);
        value = (value - dots[i]) * other;
        store(value, gradient + j);
      });
    }
  }
};

}  // namespace

void attention_forward(ExecContext&, int64_t heads, ConstView x, View y, View log_sums) {
  with_storage(x.dtype, [&]<class T>(T) {
    for_each_tile(x, heads, [&](const Head& head, int64_t n, int64_t h, int64_t tile) {
      const int64_t row = 3 * head.width, rows = head.rows_of(tile);
      const T* const queries = x.as<T>() + n * head.length * row + h * head.size;
      Tile q, k, v, sums;
      Scores scores;
      float largest[kTile], totals[kTile] = {};
      std::fill(largest, largest + kTile, -std::numeric_limits<float>::infinity());
      head.load_rows(queries, row, tile, head.scale, q);
      head.clear(sums);
      for (int64_t other = 0; other <= tile; ++other) {
        head.load_columns(queries + head.width, row, other, k);
        head.load_rows(queries + 2 * head.width, row, other, 1.0F, v);
        head.dot_products(rows, q, k, scores);
        for (int64_t i = 0; i < rows; ++i) {
          float* const line = scores.at + i * kTile;
          const int64_t seen = seen_by(i, other == tile);
          const float before = largest[i];
          largest[i] = std::max(before, *std::max_element(line, line + seen));
          exponentials(line, seen, largest[i]);
          float factor;
          exp(before - largest[i], factor);
          totals[i] =
              totals[i] * factor + sum_row<1>(kTile, [&](auto& value, int64_t j) { load(line + j, value[0]); })[0];
          for_lanes(0, head.stride(), [&, sum = sums.at + i * head.stride()](auto& value, int64_t d) {
            load(sum + d, value);
            value *= factor;
            store(value, sum + d);
          });
        }
        head.add_products(rows, head.rows_of(other), scores, false, v, sums);
      }
      float* const logs = log_sums.as<float>() + (n * heads + h) * head.length + tile * kTile;
      for (int64_t i = 0; i < rows; ++i) {
        for_lanes(0, head.size, [&, sum = sums.at + i * head.stride()](auto& value, int64_t d) {
          load(sum + d, value);
          value *= 1.0F / totals[i];
          store(value, sum + d);
        });
        logs[i] = largest[i] + std::log(totals[i]);
      }
      head.store_rows(sums, tile, 1.0F, y.as<T>() + n * head.length * head.width + h * head.size, head.width);
    });
  });
}

void attention_backward(ExecContext&, int64_t heads, ConstView x, ConstView y, ConstView log_sums, ConstView grad_y,
                        View dots, View grad_x) {
  with_storage(x.dtype, [&]<class T>(T) {
    for_each_tile(x, heads, [&](const Head& head, int64_t n, int64_t h, int64_t tile) {
      for (int64_t i = tile * kTile; i < tile * kTile + head.rows_of(tile); ++i) {
        const int64_t at = (n * head.length + i) * head.width + h * head.size;
        dots.as<float>()[(n * heads + h) * head.length + i] = sum_row<1>(head.size, [&](auto& value, int64_t d) {
          auto other = value;
          load(y.as<T>() + at + d, value[0]);
          load(grad_y.as<T>() + at + d, other[0]);
          value[0] *= other[0];
        })[0];
      }
    });
    struct Source {
      const T *queries, *gradients;
      T* grad_queries;
      const float *log_sums, *dots;
    };
    const auto source_of = [&](const Head& head, int64_t n, int64_t h) {
      const int64_t first = n * head.length * 3 * head.width + h * head.size, row = (n * heads + h) * head.length;
      return Source{x.as<T>() + first, grad_y.as<T>() + n * head.length * head.width + h * head.size,
                    grad_x.as<T>() + first, log_sums.as<float>() + row, dots.as<float>() + row};
    };
    for_each_tile(x, heads, [&](const Head& head, int64_t n, int64_t h, int64_t tile) {  // keys and values
      const Source from = source_of(head, n, h);
      const int64_t row = 3 * head.width, count = head.rows_of(tile);
      Tile q, k, v, gradients, grad_k, grad_v;
      Weights weights;
      head.load_columns(from.queries + head.width, row, tile, k);
      head.load_columns(from.queries + 2 * head.width, row, tile, v);
      head.clear(grad_k);
      head.clear(grad_v);
      for (int64_t other = tile; other < head.tiles(); ++other) {
        const int64_t rows = head.rows_of(other);
        head.load_rows(from.queries, row, other, head.scale, q);
        head.load_rows(from.gradients, head.width, other, 1.0F, gradients);
        weights.compute(head, rows, other == tile, q, k, v, gradients, from.log_sums + other * kTile,
                        from.dots + other * kTile);
        head.add_products(count, rows, weights.p, true, gradients, grad_v);
        head.add_products(count, rows, weights.s, true, q, grad_k);
      }
      head.store_rows(grad_k, tile, 1.0F, from.grad_queries + head.width, row);
      head.store_rows(grad_v, tile, 1.0F, from.grad_queries + 2 * head.width, row);
    });
    for_each_tile(x, heads, [&](const Head& head, int64_t n, int64_t h, int64_t tile) {  // queries
      const Source from = source_of(head, n, h);
      const int64_t row = 3 * head.width, rows = head.rows_of(tile);
      Tile q, k, v, gradients, grad_q;
      Weights weights;
      head.load_rows(from.queries, row, tile, head.scale, q);
      head.load_rows(from.gradients, head.width, tile, 1.0F, gradients);
      head.clear(grad_q);
      for (int64_t other = 0; other <= tile; ++other) {
        head.load_columns(from.queries + head.width, row, other, k);
        head.load_columns(from.queries + 2 * head.width, row, other, v);
        weights.compute(head, rows, other == tile, q, k, v, gradients, from.log_sums + tile * kTile,
                        from.dots + tile * kTile);
        head.load_rows(from.queries + head.width, row, other, 1.0F, k);
        head.add_products(rows, head.rows_of(other), weights.s, false, k, grad_q);
      }
      head.store_rows(grad_q, tile, head.scale, from.grad_queries, row);
    });
  });
}

}  // namespace vitrine::cpu::VITRINE_CPU_LEVEL
