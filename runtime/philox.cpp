// SPDX-License-Identifier: Apache-2.0
#include "runtime/philox.h"

#include <cmath>
#include <numbers>

#include <Random123/philox.h>

#include "runtime/error.h"

#undef philox4x32  // a macro of Random123 with the name of our function

namespace vitrine {
namespace {

uint32_t low(uint64_t x) { return static_cast<uint32_t>(x); }
uint32_t high(uint64_t x) { return static_cast<uint32_t>(x >> 32); }

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 2> key, std::array<uint32_t, 4> counter) {
  const philox4x32_ctr_t c = {{counter[0], counter[1], counter[2], counter[3]}};
  const philox4x32_key_t k = {{key[0], key[1]}};
  const philox4x32_ctr_t words = philox4x32_R(10, c, k);
  return {words.v[0], words.v[1], words.v[2], words.v[3]};
}

uint64_t random_stream(RandomPurpose purpose, uint64_t index) {
  VITRINE_ASSERT(index >> kRandomStreamBits == 0, "a purpose has 2^40 random streams");
  return static_cast<uint64_t>(purpose) << kRandomStreamBits | index;
}

PhiloxSequence::PhiloxSequence(uint64_t seed, uint64_t stream, uint64_t first)
    : key_{low(seed), high(seed)}, stream_(stream), block_(first / 4) {
  for (uint64_t skipped = 0; skipped < first % 4; ++skipped) next_u32();
}

uint32_t PhiloxSequence::next_u32() {
  if (used_ == 4) {
    words_ = philox4x32(key_, {low(block_), high(block_), low(stream_), high(stream_)});
    ++block_;
    used_ = 0;
  }
  return words_[static_cast<size_t>(used_++)];
}

float PhiloxSequence::next_uniform() { return static_cast<float>(next_u32() >> 8) * 0x1p-24F; }

float PhiloxSequence::next_normal() {
  const float radius = std::sqrt(-2.0F * std::log(1.0F - next_uniform()));
  return radius * std::cos(2.0F * std::numbers::pi_v<float> * next_uniform());
}

uint64_t PhiloxSequence::next_below(uint64_t bound) {
  VITRINE_ASSERT(bound > 0, "next_below needs a bound above 0");
  // Rejects the lowest (2^w mod bound) draws, so that all residues are equally likely.
  if (bound <= UINT32_MAX) {
    const uint32_t narrow = low(bound);
    const uint32_t rejected = (0U - narrow) % narrow;
    uint32_t draw = next_u32();
    while (draw < rejected) draw = next_u32();
    return draw % narrow;
  }
  const uint64_t rejected = (uint64_t{0} - bound) % bound;
  while (true) {
    const uint64_t upper = next_u32();
    const uint64_t draw = upper << 32 | next_u32();
    if (draw >= rejected) return draw % bound;
  }
}

}  // namespace vitrine
