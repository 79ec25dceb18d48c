// SPDX-License-Identifier: Apache-2.0
// Convolutions of small images, where windows, strides and padding reach beyond them, by whatever library computes them
// on this processor. Outputs and the workspace are NaN before. ctest also runs it with lower instruction sets.
#include <cstdlib>

#include <fmt/format.h>

#include "tests/kernels/conv2d_cases.h"
#include "tests/support/seeds.h"

namespace vitrine::test {
namespace {

const bool kAllShapes = std::getenv("VITRINE_TEST_ALL_SHAPES") != nullptr;
// Lower instruction sets than the processor's: every second case is enough beside those of the tests labeled slow.
const uint64_t kShare = !kAllShapes && std::getenv("ONEDNN_MAX_CPU_ISA") != nullptr ? 2 : 1;

/// Every width with every window, stride and padding. With VITRINE_TEST_ALL_SHAPES many drawn cases of each; otherwise
/// one, for wider images in one of the dtypes.
class Conv2dSmall : public DtypeTest {
 protected:
  void SetUp() override {
    if (on_gpu()) GTEST_SKIP() << "for libraries of CPU devices";
  }

  void check(int64_t width, int64_t window, const Conv2dConfig& config, uint64_t seed) {
    constexpr int64_t kChannels[] = {1, 3, 16, 17, 32, 64};
    const auto r = random_integers<int32_t>(9, seed, 0, 1000);
    const auto pick = [&](size_t i, int64_t low, int64_t high) { return low + r[i] % (high - low + 1); };
    const auto channels = [&](size_t i) { return kChannels[r[i] % (kAllShapes ? std::size(kChannels) : 4)]; };
    const int64_t window_h = r[0] % 2 == 0 ? window : pick(1, 1, 11), height = r[2] % 2 == 0 ? width : pick(3, 1, 12);
    if (height + 2 * config.pad < window_h) return;
    const int64_t images = width <= 3 && r[4] % 4 == 0 ? 33 : pick(4, 1, 3);
    const Shape x{images, height, width, channels(5)}, w{channels(6), window_h, window, x[3]};
    const Conv2dCase c = make_case(device, dtype(), x, w, config, seed);
    SCOPED_TRACE(fmt::format("stride {} pad {} seed {}", config.stride, config.pad, seed));
    check_forward(device, c, kDispatched, r[7] % 2 == 0);
    check_backward(device, c, kDispatched, r[8] % 2 == 0 ? GradMode::overwrite : GradMode::accumulate, r[7] % 3 == 0);
  }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, Conv2dSmall, ::testing::ValuesIn(kStorageTypes), dtype_test_name);

TEST_P(Conv2dSmall, EqualsTheReference) {
  ctx().reserve_workspace(int64_t{4} << 20);
  const auto turn = static_cast<uint64_t>(dtype());
  uint64_t seed = 0;
  for (int64_t width = 1; width <= 12; ++width) {
    for (int64_t window = 1; window <= 11; ++window) {
      for (int64_t stride = 1; stride <= 4; ++stride) {
        for (int64_t pad = 0; pad <= 5; ++pad) {
          if (width + 2 * pad < window) continue;
          for (int i = 0; i < (kAllShapes ? 6 : 1); ++i) {
            ++seed;
            const bool drawn = kAllShapes || (seed / (3 * kSeedStep) % kShare == 0 &&
                                              (width <= 3 ? seed % kSeedStep == 0 : seed % (3 * kSeedStep) == turn));
            if (drawn) check(width, window, {stride, pad, seed % 2 == 0}, seed);
            if (HasFailure()) return;
          }
        }
      }
    }
    ctx().forget_plans();
  }
}

// Output columns whose windows exceed the image on both sides, for oneDNN's kernels with virtual padding.
TEST_P(Conv2dSmall, OfWindowsLargerThanTheImageEqualsTheReference) {
  ctx().reserve_workspace(int64_t{4} << 20);
  uint64_t seed = 0;
  for (int64_t window = 3; window <= 16; ++window) {
    for (int64_t more = 1; more <= 3; ++more) {
      for (int64_t pad = more; pad <= 7; ++pad) {
        const int64_t width = window - more;
        if (width < 1 || width + 2 * pad < window) continue;
        if (++seed % kShare != 0) continue;
        const Conv2dCase c = make_case(device, dtype(), {1, 2, width, 3}, {64, 1, window, 3}, {1, pad, false}, seed);
        check_forward(device, c, kDispatched, true);
        check_backward(device, c, kDispatched, GradMode::overwrite, true);
        if (HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace vitrine::test
