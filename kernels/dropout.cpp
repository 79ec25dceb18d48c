// SPDX-License-Identifier: Apache-2.0
#include "kernels/dropout.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <type_traits>

#include <Random123/philox.h>
#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/cpu/storage.h"
#include "kernels/run.h"
#include "runtime/cpu/parallel.h"
#include "runtime/error.h"

namespace vitrine {
namespace cpu {
namespace {

constexpr int64_t kWords = 4;    // one Philox block serves four elements
constexpr int64_t kAtOnce = 8;   // blocks drawn together, one per lane of a vector
constexpr int64_t kGrain = 512;  // groups of blocks

struct Draw {
  philox4x32_key_t key;
  uint32_t step, layer, threshold;
  float keep;  // probability
};

/// Elements [begin, begin + count) of one sample; begin is a multiple of kWords, count at most kWords * kAtOnce.
template <class T>
void drop(const Draw& draw, uint32_t position, int64_t begin, int64_t count, const T* in, T* out) {
  const auto first_block = static_cast<uint32_t>(begin / kWords);
  std::array<std::array<uint32_t, kAtOnce>, kWords> words;
  const Draw d = draw;
  // Random123's rounds and constants, written so that the compiler vectorizes the lanes; its own function stays scalar.
  for (uint32_t lane = 0; lane < kAtOnce; ++lane) {
    words[0][lane] = first_block + lane;
    words[1][lane] = position;
    words[2][lane] = d.step;
    words[3][lane] = d.layer;
  }
  for (uint32_t round = 0; round < philox4x32_rounds; ++round) {
    const uint32_t key0 = d.key.v[0] + round * PHILOX_W32_0;
    const uint32_t key1 = d.key.v[1] + round * PHILOX_W32_1;
#pragma omp simd
    for (size_t lane = 0; lane < kAtOnce; ++lane) {
      const uint64_t product0 = static_cast<uint64_t>(PHILOX_M4x32_0) * words[0][lane];
      const uint64_t product1 = static_cast<uint64_t>(PHILOX_M4x32_1) * words[2][lane];
      words[0][lane] = static_cast<uint32_t>(product1 >> 32) ^ words[1][lane] ^ key0;
      words[2][lane] = static_cast<uint32_t>(product0 >> 32) ^ words[3][lane] ^ key1;
      words[1][lane] = static_cast<uint32_t>(product1);
      words[3][lane] = static_cast<uint32_t>(product0);
    }
  }
  std::array<uint32_t, kWords * kAtOnce> in_order;
  for (size_t lane = 0; lane < kAtOnce; ++lane) {
    for (size_t word = 0; word < kWords; ++word) in_order[lane * kWords + word] = words[word][lane];
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

void dropout(ExecContext&, const DropoutConfig& config, ConstView x, View y) {
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
    parallel_for(samples * groups, kGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t sample = i / groups;
        const int64_t element = (i - sample * groups) * kGroup;
        const int64_t offset = sample * elements + element;
        drop(draw, static_cast<uint32_t>(first_sample + sample), element, std::min(kGroup, elements - element), x.as<T>() + offset,
             y.as<T>() + offset);
      }
    });
  });
}

}  // namespace
}  // namespace cpu

namespace cuda {  // dropout.cu
void dropout(ExecContext& ctx, const DropoutConfig& config, ConstView x, View y);
}  // namespace cuda

void dropout(ExecContext& ctx, const DropoutConfig& config, ConstView x, View y) {
  constexpr const char* kName = "dropout";
  if (!(config.p >= 0.0F && config.p < 1.0F)) {
    throw ConfigError(fmt::format("{}: p is {}, expected a probability in [0, 1)", kName, config.p));
  }
  if (x.shape.rank() < 1) throw ShapeError(fmt::format("{}: x has shape {}, expected (N, ...)", kName, x.shape.str()));
  check::tensor(kName, "x", x, ctx);
  check::tensor(kName, "y", y, x.shape, x.dtype, ctx);
  check::same_or_apart(kName, {"y", y}, {{"x", x}});
  run(ctx, {kName, {x}, {y}}, cpu::dropout, VITRINE_IF_CUDA(cuda::dropout), config, x, y);
}

}  // namespace vitrine
