// SPDX-License-Identifier: Apache-2.0
// Hashes of what replicas hold: whether they are still the same.
#include <algorithm>
#include <cstring>

#include "nn/parallel/data_parallel.h"
#include "nn/parallel/data_parallel_state.h"
#include "runtime/copy.h"

namespace vitrine {
namespace {

constexpr int64_t kChunkBytes = int64_t{16} << 20;

/// source  FNV-1a over words of 8 bytes, in four lanes that are mixed at the end
uint64_t hash_bytes(uint64_t hash, const std::byte* bytes, int64_t count) {
  constexpr uint64_t kPrime = 0x100000001b3ULL;
  constexpr int64_t kLanes = 4, kWord = 8;
  uint64_t lanes[kLanes] = {hash, hash ^ 1, hash ^ 2, hash ^ 3};
  int64_t at = 0;
  for (; at + kLanes * kWord <= count; at += kLanes * kWord) {
    for (int64_t l = 0; l < kLanes; ++l) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + at + l * kWord, kWord);
      lanes[l] = (lanes[l] ^ word) * kPrime;
      lanes[l] ^= lanes[l] >> 32;
    }
  }
  for (; at < count; ++at) lanes[0] = (lanes[0] ^ static_cast<uint64_t>(bytes[at])) * kPrime;
  for (int64_t l = 1; l < kLanes; ++l) lanes[0] = (lanes[0] ^ lanes[l]) * kPrime;
  return lanes[0] ^ (lanes[0] >> 29);
}

}  // namespace

std::vector<uint64_t> DataParallel::parameter_hashes(int device) {
  State& s = *state_;
  Replica& r = s.replica(device);
  const bool all_hold_masters = !s.broadcasts_shadow() || s.config.scheme.reduce == Reduce::allreduce;
  const View flat = all_hold_masters ? r.parameters : r.shadow;
  s.devices.synchronize();
  std::vector<std::byte> chunk;
  std::vector<uint64_t> hashes;
  for (int i = 0; i < s.layout.size(); ++i) {
    const int64_t begin = s.layout.offset(i), end = begin + s.layout.specs()[static_cast<size_t>(i)].shape.numel();
    const int64_t step = kChunkBytes / size_of(flat.dtype);
    uint64_t hash = 0xcbf29ce484222325ULL;
    for (int64_t at = begin; at < end; at += step) {
      const View part = flat.rows(at, std::min(end, at + step));
      chunk.resize(std::max(chunk.size(), static_cast<size_t>(part.bytes())));
      copy(r.compute(), part, View{chunk.data(), part.shape, part.dtype, DeviceId::host()});
      r.compute().stream().synchronize();
      hash = hash_bytes(hash, chunk.data(), part.bytes());
    }
    hashes.push_back(hash);
  }
  return hashes;
}

}  // namespace vitrine
