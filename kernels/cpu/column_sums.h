// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <type_traits>

#include "kernels/accumulate.h"
#include "kernels/cpu/storage.h"
#include "runtime/cpu/parallel.h"

namespace vitrine::cpu {

/// Adds up the columns of a matrix (rows, columns) in an order that depends on its shape only: blocks of rows, then
/// strips of blocks, then all strips.
///   sums  (columns) f32, overwritten or added to
///   load  load(row, column, value) reads one element, if value is a float, or as many as FloatLanes has
/// Uses the whole team: by columns if there are enough of them, else by strips of rows.
template <class Load>
void sum_columns(int64_t rows, int64_t columns, float* sums, GradMode mode, const Load& load) {
  constexpr int64_t kBlock = 128;      // rows summed before they are added to the total, for accuracy
  constexpr int64_t kAtOnce = 32;      // columns that one pass keeps in registers
  constexpr int64_t kMostStrips = 32;  // that can be summed at the same time
  using Sums = std::array<float, kAtOnce>;
  const int64_t blocks = (rows + kBlock - 1) / kBlock, strips = std::clamp<int64_t>(blocks, 1, kMostStrips);
  const auto sum_strip = [&](int64_t strip, int64_t first, int64_t count) {
    Sums total{};
    for (int64_t block = blocks * strip / strips; block < blocks * (strip + 1) / strips; ++block) {
      const int64_t begin = block * kBlock, end = std::min(rows, begin + kBlock);
      const auto add = [&](auto& partial, int64_t column) {  // an array of vectors, or of one float
        using Value = typename std::remove_reference_t<decltype(partial)>::value_type;
        constexpr int64_t kStep = std::is_same_v<Value, float> ? 1 : kLanes;
        for (int64_t i = begin; i < end; ++i) {
          int64_t at = first + column;
          for (Value& sum : partial) {
            Value value;
            load(i, at, value);
            sum += value;
            at += kStep;
          }
        }
        auto to = total.begin() + column;
        for (const Value& sum : partial) {
          Value old;
          cpu::load(&*to, old);
          store(old + sum, &*to);
          to += kStep;
        }
      };
      if (count == kAtOnce) {
        std::array<FloatLanes, kAtOnce / kLanes> partial{};
        add(partial, 0);
        continue;
      }
      int64_t column = 0;
      for (; column + kLanes <= count; column += kLanes) {
        std::array<FloatLanes, 1> partial{};
        add(partial, column);
      }
      for (; column < count; ++column) {
        std::array<float, 1> partial{};
        add(partial, column);
      }
    }
    return total;
  };
  const auto finish = [&](int64_t first, int64_t count, const auto& of_strip) {
    Sums total{};
    for (int64_t strip = 0; strip < strips; ++strip) {
      const Sums& some = of_strip(strip);
      for (size_t j = 0; j < total.size(); ++j) total[j] += some[j];
    }
    for (int64_t j = 0; j < count; ++j) {
      const float sum = total[static_cast<size_t>(j)];
      sums[first + j] = mode == GradMode::accumulate ? sums[first + j] + sum : sum;
    }
  };
  if (strips == 1 || columns >= kAtOnce * team_size()) {
    parallel_for(columns, kAtOnce, [&](int64_t begin, int64_t end) {
      for (int64_t first = begin; first < end; first += kAtOnce) {
        const int64_t count = std::min(kAtOnce, end - first);
        finish(first, count, [&](int64_t strip) { return sum_strip(strip, first, count); });
      }
    });
    return;
  }
  for (int64_t first = 0; first < columns; first += kAtOnce) {
    const int64_t count = std::min(kAtOnce, columns - first);
    std::array<Sums, kMostStrips> partial;
    parallel_for(strips, 1, [&](int64_t begin, int64_t end) {
      for (int64_t strip = begin; strip < end; ++strip)
        partial[static_cast<size_t>(strip)] = sum_strip(strip, first, count);
    });
    finish(first, count, [&](int64_t strip) -> const Sums& { return partial[static_cast<size_t>(strip)]; });
  }
}

}  // namespace vitrine::cpu
