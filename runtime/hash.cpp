// SPDX-License-Identifier: Apache-2.0
#include "runtime/hash.h"

#include <new>

#include <xxhash.h>

namespace vitrine {

uint64_t hash_bytes(uint64_t seed, const void* bytes, int64_t count) {
  return XXH3_64bits_withSeed(bytes, static_cast<size_t>(count), seed);
}

struct StreamingHash::State {
  State() : xxh3(XXH3_createState()) {
    if (xxh3 == nullptr) throw std::bad_alloc();
    XXH3_64bits_reset(xxh3);
  }
  ~State() { XXH3_freeState(xxh3); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  XXH3_state_t* xxh3;
};

StreamingHash::StreamingHash() : state_(std::make_unique<State>()) {}

StreamingHash::~StreamingHash() = default;

void StreamingHash::add(std::span<const std::byte> bytes) {
  if (!bytes.empty()) XXH3_64bits_update(state_->xxh3, bytes.data(), bytes.size());
}

uint64_t StreamingHash::value() const { return XXH3_64bits_digest(state_->xxh3); }

}  // namespace vitrine
