// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "runtime/comm/reduce_op.h"
#include "runtime/half.h"

/// Sums over leaves as the definition of the tree says, element by element.
namespace vitrine::test {

/// The bits of a number in a dtype, which are those of f32 or the lower 16.
inline uint32_t bits_in(DType dtype, float value) {
  uint32_t bits = 0;
  if (dtype == DType::f32) std::memcpy(&bits, &value, sizeof bits);
  if (dtype == DType::f16) cpu::narrow(&value, reinterpret_cast<cpu::Half*>(&bits), 1);
  if (dtype == DType::bf16) cpu::narrow(&value, reinterpret_cast<cpu::BFloat16*>(&bits), 1);
  return bits;
}

inline float number_of(DType dtype, uint32_t bits) {
  float value = 0;
  if (dtype == DType::f32) std::memcpy(&value, &bits, sizeof bits);
  if (dtype == DType::f16) cpu::widen(reinterpret_cast<const cpu::Half*>(&bits), &value, 1);
  if (dtype == DType::bf16) cpu::widen(reinterpret_cast<const cpu::BFloat16*>(&bits), &value, 1);
  return value;
}

/// Leaves of which some may be missing, with numbers of all magnitudes, zeros of both signs, infinities and NaN.
struct Leaves {
  DType dtype;
  std::vector<char> present;

  Leaves(DType type, int64_t count, uint64_t seed) : dtype(type), present(static_cast<size_t>(count)) {
    std::mt19937_64 random(seed);
    for (char& one : present) one = random() % 5 != 0 ? 1 : 0;
    present[random() % present.size()] = 1;
  }
  int64_t count() const { return static_cast<int64_t>(present.size()); }

  float value(int64_t leaf, int64_t element) const {
    // Steele et al., "Fast splittable pseudorandom number generators", 2014
    uint64_t random = static_cast<uint64_t>(leaf * 1'000'003 + element + 1) * 0x9E3779B97F4A7C15U;
    random = (random ^ (random >> 30)) * 0xBF58476D1CE4E5B9U;
    random = (random ^ (random >> 27)) * 0x94D049BB133111EBU;
    if (element % 61 == 0) return -0.0F;
    if (element % 61 == 1 && leaf == 1) return NAN;
    if (element % 61 == 2 && leaf % 3 == 0) return leaf % 2 == 0 ? INFINITY : -INFINITY;
    const float fraction = static_cast<float>(random >> 40) * 0x1p-24F - 0.5F;
    return number_of(dtype, bits_in(dtype, std::ldexp(fraction, static_cast<int>(random % 24) - 12)));
  }

  /// The sum at a node; nothing where all its leaves are missing.
  std::optional<float> sum(Subtree node, int64_t element) const {
    if (node.end - node.begin == 1) {
      if (present[static_cast<size_t>(node.begin)] == 0) return std::nullopt;
      return value(node.begin, element);
    }
    int64_t left = 1;
    while (2 * left < node.end - node.begin) left *= 2;
    const std::optional<float> a = sum({node.begin, node.begin + left}, element);
    const std::optional<float> b = sum({node.begin + left, node.end}, element);
    if (!a || !b) return a ? a : b;
    return number_of(dtype, bits_in(dtype, *a + *b));
  }
  bool has(Subtree node) const { return sum(node, 3).has_value(); }

  /// As stored in the dtype.
  std::vector<std::byte> stored_sums(Subtree node, int64_t elements) const {
    const auto size = static_cast<size_t>(size_of(dtype));
    std::vector<std::byte> bytes(static_cast<size_t>(elements) * size);
    for (int64_t i = 0; i < elements; ++i) {
      const uint32_t bits = bits_in(dtype, *sum(node, i));
      std::memcpy(bytes.data() + static_cast<size_t>(i) * size, &bits, size);
    }
    return bytes;
  }
  /// The first element that is not the sum of all leaves to the bit, or for a NaN not a NaN; -1 if there is none.
  int64_t first_wrong(const std::vector<std::byte>& found) const {
    const auto size = static_cast<size_t>(size_of(dtype));
    for (size_t i = 0; i < found.size() / size; ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, found.data() + i * size, size);
      const float expected = *sum({0, count()}, static_cast<int64_t>(i));
      const bool right = std::isnan(expected) ? std::isnan(number_of(dtype, bits)) : bits == bits_in(dtype, expected);
      if (!right) return static_cast<int64_t>(i);
    }
    return -1;
  }

  /// Who contributes what if the leaves are distributed over ranks at random: in consecutive ranges, some of them
  /// empty, as the largest nodes; or each leaf to any rank.
  std::vector<Contribution> distributed(int ranks, bool consecutive, uint64_t seed) const {
    std::mt19937_64 random(seed);
    std::vector<Contribution> contributions;
    const auto add = [&](Subtree node, int rank) {
      if (has(node)) contributions.push_back({node, rank});
    };
    for (int64_t leaf = 0; !consecutive && leaf < count(); ++leaf)
      add({leaf, leaf + 1}, static_cast<int>(random() % static_cast<uint64_t>(ranks)));
    int64_t first = 0;
    for (int rank = 0; consecutive && rank < ranks; ++rank) {
      const int64_t rest = count() - first;
      const int64_t taken = rank + 1 == ranks ? rest : static_cast<int64_t>(random() % static_cast<uint64_t>(rest + 1));
      std::vector<bool> held(present.size());
      for (int64_t leaf = first; leaf < first + taken; ++leaf) held[static_cast<size_t>(leaf)] = true;
      for (const Subtree& node : aligned_subtrees(held, std::vector<bool>(held.size(), true))) add(node, rank);
      first += taken;
    }
    return contributions;
  }
};

}  // namespace vitrine::test
