// SPDX-License-Identifier: Apache-2.0
// Hashes of what replicas hold: whether they are still the same.
#include <algorithm>

#include "nn/parallel/data_parallel.h"
#include "nn/parallel/data_parallel_state.h"
#include "runtime/copy.h"
#include "runtime/hash.h"

namespace vitrine {
namespace {

constexpr int64_t kChunkBytes = int64_t{16} << 20;

}  // namespace

std::vector<uint64_t> DataParallel::parameter_hashes(int device) {
  State& s = *state_;
  Replica& r = s.replica(device);
  const bool all_hold_masters =
      s.config.forward_only ? static_cast<bool>(r.parameters) : !s.broadcasts_half() || s.config.scheme.reduce == Reduce::allreduce;
  const View flat = all_hold_masters ? r.parameters : r.half_parameters;
  s.devices.synchronize();
  std::vector<std::byte> chunk;
  std::vector<uint64_t> hashes;
  for (int i = 0; i < s.layout.size(); ++i) {
    const int64_t begin = s.layout.offset(i), end = begin + s.layout.specs()[static_cast<size_t>(i)].shape.numel();
    const int64_t step = kChunkBytes / size_of(flat.dtype);
    uint64_t hash = 0;
    for (int64_t at = begin; at < end; at += step) {
      const View part = flat.rows(at, std::min(end, at + step));
      chunk.resize(std::max(chunk.size(), static_cast<size_t>(part.bytes())));
      copy(r.compute(), part, View{chunk.data(), part.shape, part.dtype, DeviceId::host()});
      r.compute().stream().synchronize();
      note_host_read(s.devices, "parameter_hashes", ConstView(chunk.data(), part.shape, part.dtype, DeviceId::host()));
      hash = hash_bytes(hash, chunk.data(), part.bytes());
    }
    hashes.push_back(hash);
  }
  return hashes;
}

}  // namespace vitrine
