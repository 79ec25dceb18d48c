// SPDX-License-Identifier: Apache-2.0
#include "kernels/image.h"
#include "tests/kernels/shifted.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

constexpr Normalization kNormalization{{0.485F, 0.456F, 0.406F, 0.5F}, {0.229F, 0.224F, 0.225F, 0.25F}};

class StoredImageTest : public StoredTest {};

TEST_P(StoredImageTest, IsWhatTheHostComputesRoundedOnce) {
  uint64_t seed = 0;
  for (const auto& [source, target] : std::vector<std::pair<Shape, Shape>>{
           {{3, 32, 32, 3}, {3, 45, 37, 3}}, {{5, 9, 14, 1}, {5, 28, 28, 1}}, {{2, 17, 13, 4}, {2, 5, 8, 4}}, {{4, 11, 6, 2}, {4, 11, 23, 2}}}) {
    const std::vector<uint8_t> pixels = random_integers<uint8_t>(source.numel(), ++seed, 0, 255);
    const Shape from{source[1], source[2], source[3]}, to{target[1], target[2], target[3]};
    std::vector<float> expected(static_cast<size_t>(target.numel()));
    for (int64_t n = 0; n < source[0]; ++n) {
      resize_normalize_on_host(kNormalization, from,
                               std::span(pixels).subspan(static_cast<size_t>(n * from.numel()), static_cast<size_t>(from.numel())), to,
                               std::span(expected).subspan(static_cast<size_t>(n * to.numel()), static_cast<size_t>(to.numel())));
    }
    const Tensor images = device.tensor(source, pixels);
    const GuardedTensor y = guarded(target);
    resize_normalize(ctx(), kNormalization, images, y);
    EXPECT_EQ(device.values<uint16_t>(y), to_bits(dtype(), expected)) << target.str();
    const Shifted<uint16_t> shifted(device, target, 1, dtype());
    resize_normalize(ctx(), kNormalization, images, shifted);
    EXPECT_EQ(shifted.values(), to_bits(dtype(), expected)) << target.str();
  }
}

INSTANTIATE_TEST_SUITE_P(Stored, StoredImageTest, ::testing::ValuesIn(kStoredTypes));

}  // namespace
}  // namespace vitrine::test
