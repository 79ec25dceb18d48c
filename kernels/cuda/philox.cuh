// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "kernels/cuda/device.cuh"

namespace vitrine::cuda {

/// Philox4x32-10: replaces the counter in `words` by four random words; the same as runtime/philox.h.
///   source  Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011
__device__ inline void philox4x32(uint32_t key0, uint32_t key1, uint32_t (&words)[4]) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53U} * words[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57U} * words[2];
    words[0] = static_cast<uint32_t>(product1 >> 32) ^ words[1] ^ key0;
    words[2] = static_cast<uint32_t>(product0 >> 32) ^ words[3] ^ key1;
    words[1] = static_cast<uint32_t>(product1);
    words[3] = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
}

}  // namespace vitrine::cuda
