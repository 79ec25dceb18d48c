// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include <Random123/philox.h>

#include "kernels/cpu/kernels.h"
#include "runtime/cpu/parallel.h"

namespace vitrine::cpu {
namespace {
constexpr int64_t kGrainBlocks = 1024;
constexpr int64_t kWords = 4;  // one Philox block draws for four elements
}  // namespace

void dropout(ExecContext&, const DropoutConfig& config, ConstView x, View y) {
  const int64_t samples = x.shape[0];
  if (x.numel() == 0) return;
  const int64_t elements = x.numel() / samples;
  const int64_t blocks = (elements + kWords - 1) / kWords;
  const auto threshold = static_cast<uint32_t>(std::ceil(static_cast<double>(config.p) * 0x1p32));
  const float keep = 1.0F - config.p;
  const philox4x32_key_t key{{static_cast<uint32_t>(config.seed), static_cast<uint32_t>(config.seed >> 32)}};
  const auto step = static_cast<uint32_t>(config.step);
  const auto layer = static_cast<uint32_t>(config.layer);
  const int64_t first_sample = config.first_sample;
  const float* in = x.as<float>();
  float* out = y.as<float>();

  parallel_for(samples * blocks, kGrainBlocks, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sample = i / blocks;
      const int64_t block = i - sample * blocks;
      const philox4x32_ctr_t counter{{static_cast<uint32_t>(block), static_cast<uint32_t>(first_sample + sample), step, layer}};
      const philox4x32_ctr_t words = philox4x32(counter, key);
      const int64_t offset = sample * elements + block * kWords;
      const auto count = static_cast<size_t>(std::min(kWords, elements - block * kWords));
      for (size_t k = 0; k < count; ++k)
        out[offset + static_cast<int64_t>(k)] = words.v[k] >= threshold ? in[offset + static_cast<int64_t>(k)] / keep : 0.0F;
    }
  });
}

}  // namespace vitrine::cpu
