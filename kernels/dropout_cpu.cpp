// SPDX-License-Identifier: Apache-2.0
// Compiled for several instruction sets, see kernels/cpu/levels.h.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/dropout.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include <Random123/philox.h>

#include "kernels/cpu/storage.h"
#include "runtime/cpu/parallel.h"
#include "runtime/exec_context.h"

namespace vitrine::cpu::VITRINE_CPU_LEVEL {
namespace {

constexpr int64_t kWords = 4;           // one Philox block serves four elements
constexpr int64_t kAtOnce = 8;          // blocks drawn together: as many as fit in registers
constexpr int64_t kDropoutGrain = 512;  // groups of blocks

// The same word of several blocks, each in the lower half of a 64-bit lane, where a multiplication takes it and leaves
// both halves of its product. The upper halves hold anything.
constexpr int64_t kBlocks = 4;
using Words = uint64_t __attribute__((vector_size(kBlocks * sizeof(uint64_t))));

/// Computes the 64-bit products of the words and `factor`, which has 32 bits.
inline void multiply(const Words& words, uint64_t factor, Words& product) {
#ifdef __AVX2__
  // From the general form the compiler makes a product of two 64-bit numbers.
  product = reinterpret_cast<Words>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(words), _mm256_set1_epi64x(static_cast<int64_t>(factor))));
#else
  product = (words & 0xFFFFFFFFU) * factor;
#endif
}

struct Draw {
  philox4x32_key_t key;
  uint32_t step, layer, threshold;
  float keep;  // probability
};

/// Elements [begin, begin + count) of one sample; begin is a multiple of kWords, count at most kWords * kAtOnce.
template <class T>
void drop(const Draw& draw, uint32_t position, int64_t begin, int64_t count, const T* in, T* out) {
  const auto first_block = static_cast<uint64_t>(begin / kWords);
  const Draw d = draw;
  constexpr size_t kParts = kAtOnce / kBlocks;
  std::array<std::array<Words, kWords>, kParts> parts;
  for (size_t part = 0; part < kParts; ++part) {
    parts[part] = {Words{0, 1, 2, 3} + (first_block + part * kBlocks), Words{} + uint64_t{position},
                   Words{} + uint64_t{d.step}, Words{} + uint64_t{d.layer}};
  }
  // Random123's rounds and constants; its own function is scalar.
  for (uint32_t round = 0; round < philox4x32_rounds; ++round) {
    const uint64_t key0 = d.key.v[0] + round * PHILOX_W32_0;
    const uint64_t key1 = d.key.v[1] + round * PHILOX_W32_1;
    for (std::array<Words, kWords>& words : parts) {
      Words product0, product1;
      multiply(words[0], PHILOX_M4x32_0, product0);
      multiply(words[2], PHILOX_M4x32_1, product1);
      words[0] = (product1 >> 32) ^ words[1] ^ key0;
      words[2] = (product0 >> 32) ^ words[3] ^ key1;
      words[1] = product1;
      words[3] = product0;
    }
  }
  std::array<uint32_t, kWords * kAtOnce> in_order;
  static_assert(std::endian::native == std::endian::little, "words are stored in pairs");
  for (size_t part = 0; part < kParts; ++part) {
    const auto& [word0, word1, word2, word3] = parts[part];
    const Words first = (word0 & 0xFFFFFFFFU) | (word1 << 32);
    const Words second = (word2 & 0xFFFFFFFFU) | (word3 << 32);
    const std::array<Words, 2> blocks{__builtin_shufflevector(first, second, 0, 4, 1, 5),
                                      __builtin_shufflevector(first, second, 2, 6, 3, 7)};
    std::memcpy(in_order.data() + part * kBlocks * kWords, blocks.data(), sizeof blocks);
  }
  for_lanes(0, count, [&](auto& value, int64_t i) {
    const auto zero = value;
    std::conditional_t<std::is_same_v<decltype(value), FloatLanes&>, BitLanes, uint32_t> word;
    std::memcpy(&word, in_order.data() + i, sizeof word);
    load(in + i, value);
    value = word >= d.threshold ? value / d.keep : zero;
    store(value, out + i);
  });
}

}  // namespace

void dropout(ExecContext&, const DropoutConfig& config, ConstView x, View y, ConstView /*values*/) {
  const int64_t samples = x.shape[0];
  if (x.numel() == 0) return;
  const int64_t elements = x.numel() / samples;
  constexpr int64_t kGroup = kWords * kAtOnce;
  const int64_t groups = (elements + kGroup - 1) / kGroup;
  const Draw draw{{{static_cast<uint32_t>(config.seed), static_cast<uint32_t>(config.seed >> 32)}},
                  static_cast<uint32_t>(config.step),
                  static_cast<uint32_t>(config.layer),
                  static_cast<uint32_t>(std::ceil(static_cast<double>(config.p) * 0x1p32)),
                  1.0F - config.p};
  const int64_t first_sample = config.first_sample;
  with_storage(x.dtype, [&]<class T>(T) {
    parallel_for(samples * groups, kDropoutGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t sample = i / groups;
        const int64_t element = (i - sample * groups) * kGroup;
        const int64_t offset = sample * elements + element;
        drop(draw, static_cast<uint32_t>(first_sample + sample), element, std::min(kGroup, elements - element),
             x.as<T>() + offset, y.as<T>() + offset);
      }
    });
  });
}

}  // namespace vitrine::cpu::VITRINE_CPU_LEVEL
