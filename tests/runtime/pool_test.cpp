// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "runtime/device.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

TEST(OffsetAllocator, RandomCallsKeepBlocksApartAndHolesMerged) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    OffsetAllocator allocator;
    std::map<int64_t, int64_t> blocks;
    int64_t in_use = 0;
    for (int i = 0; i < 2000; ++i) {
      if (blocks.empty() || random() % 5 < 3) {
        const int64_t bytes = 1 + random() % 5000;
        const int64_t expected = allocator.peek(bytes);
        const int64_t offset = allocator.allocate(bytes);
        ASSERT_EQ(offset, expected);
        const int64_t end = offset + OffsetAllocator::aligned(bytes);
        const auto next = blocks.lower_bound(offset);
        if (next != blocks.end()) {
          ASSERT_LE(end, next->first);
        }
        if (next != blocks.begin()) {
          const auto before = std::prev(next);
          ASSERT_LE(before->first + OffsetAllocator::aligned(before->second), offset);
        }
        blocks.emplace(offset, bytes);
        in_use += OffsetAllocator::aligned(bytes);
      } else {
        auto it = blocks.begin();
        std::advance(it, random() % blocks.size());
        allocator.free(it->first, it->second);
        in_use -= OffsetAllocator::aligned(it->second);
        blocks.erase(it);
      }
      ASSERT_EQ(allocator.allocated_bytes(), in_use);
      const auto last = blocks.empty() ? blocks.end() : std::prev(blocks.end());
      ASSERT_EQ(allocator.extent(), blocks.empty() ? 0 : last->first + OffsetAllocator::aligned(last->second));
    }
    for (const auto& [offset, bytes] : blocks) allocator.free(offset, bytes);
    EXPECT_EQ(allocator.extent(), 0);
  }
}

TEST(OffsetAllocator, TakesTheSmallestHoleThatFits) {
  OffsetAllocator a;
  const int64_t big = a.allocate(1024), keep1 = a.allocate(256), small = a.allocate(512), keep2 = a.allocate(256);
  a.free(big, 1024);
  a.free(small, 512);
  EXPECT_EQ(a.allocate(300), small);
  EXPECT_EQ(a.allocate(300), big);
  a.free(keep1, 256);
  a.free(keep2, 256);
}

TEST(OffsetAllocator, EmptyBlocksComeAndGoInAnyOrder) {
  OffsetAllocator a;
  const int64_t first = a.allocate(256), empty = a.allocate(0);
  a.free(first, 256);
  a.free(empty, 0);
  EXPECT_EQ(a.extent(), 0);
}

class PoolTest : public ::testing::TestWithParam<Backend> {
 protected:
  DeviceGroup open(int64_t capacity) {
    DeviceGroupOptions options;
    options.devices = {{GetParam(), 0}};
    options.memory_bytes = {capacity};
    options.check_order = true;
    return DeviceGroup(options);
  }
};

TEST_P(PoolTest, CountsEveryByteUnderItsCategory) {
  DeviceGroup group = open(1 << 20);
  auto& ctx = group[0].compute();
  auto& pool = group[0].pool();
  const Tensor p = ctx.allocate({256}, DType::f32, Category::parameters, "p");
  {
    const PhaseScope phase(ctx, Phase::forward);
    const LayerScope layer(ctx, "fc");
    const Tensor a = ctx.allocate({512}, DType::f32, Category::activations, "a");
    const PoolStatistics now = pool.statistics();
    EXPECT_EQ(now.allocated_bytes, 3072);
    EXPECT_EQ(now.allocated_by_category[static_cast<size_t>(Category::activations)], 2048);
  }
  const PoolStatistics after = pool.statistics();
  EXPECT_EQ(after.allocated_bytes, 1024);
  EXPECT_EQ(after.peak_bytes, 3072);
  EXPECT_EQ(after.peak_by_category[static_cast<size_t>(Category::parameters)], 1024);
  EXPECT_EQ(after.peak_phase, Phase::forward);
  EXPECT_EQ(after.peak_layer, "fc");
}

TEST_P(PoolTest, ThePeakCountsTheHolesBeneathIt) {
  DeviceGroup group = open(1 << 20);
  auto& ctx = group[0].compute();
  Tensor hole = ctx.allocate({64}, DType::f32, Category::activations, "hole");
  const Tensor above = ctx.allocate({64}, DType::f32, Category::activations, "above");
  hole = Tensor();
  const Tensor large = ctx.allocate({128}, DType::f32, Category::activations, "large");
  const PoolStatistics s = group[0].pool().statistics();
  EXPECT_EQ(s.peak_bytes, 1024);
  EXPECT_EQ(s.peak_by_category[static_cast<size_t>(Category::fragmentation)], 256);
  int64_t sum = 0;
  for (int64_t bytes : s.peak_by_category) sum += bytes;
  EXPECT_EQ(sum, s.peak_bytes);
}

TEST_P(PoolTest, OneByteTooMuchIsRefusedWithTheFullStory) {
  DeviceGroup group = open(2048);
  auto& ctx = group[0].compute();
  const Tensor fits = ctx.allocate({1024}, DType::u8, Category::parameters, "weight");
  const PhaseScope phase(ctx, Phase::backward);
  const LayerScope layer(ctx, "classifier.1");
  EXPECT_NO_THROW(ctx.allocate({1024}, DType::u8, Category::gradients, "grad"));
  try {
    ctx.allocate({1025}, DType::u8, Category::gradients, "grad_weight");
    FAIL();
  } catch (const OutOfMemory& error) {
    const std::string text = error.what();
    for (const char* part : {"1025 bytes", "grad_weight", "classifier.1", "backward", "2.0 KiB total capacity", "1.0 KiB already allocated",
                             "1.0 KiB free", "holds parameters"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
    }
  }
  EXPECT_NO_THROW(ctx.allocate({1024}, DType::u8, Category::gradients, "grad"));
}

TEST_P(PoolTest, AReservedSlabIsNeverExceeded) {
  DeviceGroup group = open(1 << 20);
  auto& ctx = group[0].compute();
  group[0].pool().reserve(4096);
  EXPECT_EQ(group[0].pool().statistics().reserved_bytes, 4096);
  EXPECT_NO_THROW(ctx.allocate({4096}, DType::u8, Category::activations, "all"));
  EXPECT_THROW(ctx.allocate({4097}, DType::u8, Category::activations, "more"), OutOfMemory);
  EXPECT_THROW(group[0].pool().reserve((1 << 20) + 1), OutOfMemory);
}

TEST_P(PoolTest, AddressesAreStableFromRoundToRound) {
  DeviceGroup group = open(1 << 20);
  auto& ctx = group[0].compute();
  std::vector<void*> first;
  for (int round = 0; round < 3; ++round) {
    std::vector<Tensor> held;
    std::vector<void*> now;
    for (int i = 1; i < 20; ++i) {
      held.push_back(ctx.allocate({i * 100}, DType::f32, Category::activations, "t"));
      now.push_back(held.back().view().data);
      if (i % 3 == 0) held.erase(held.begin());
    }
    if (round == 0) first = now;
    EXPECT_EQ(now, first);
  }
}

TEST_P(PoolTest, HistoryTellsEveryChange) {
  DeviceGroup group = open(1 << 20);
  auto& ctx = group[0].compute();
  group[0].pool().record_history(true);
  { const Tensor t = ctx.allocate({10}, DType::f32, Category::staging, "images"); }
  const auto& history = group[0].pool().history();
  ASSERT_EQ(history.size(), 2U);
  EXPECT_EQ(history[0].bytes, 256);
  EXPECT_EQ(history[0].tensor, "images");
  EXPECT_EQ(history[1].bytes, -256);
}

INSTANTIATE_TEST_SUITE_P(Backends, PoolTest, ::testing::Values(Backend::cpu, Backend::meta),
                         [](const auto& param) { return std::string(backend_name(param.param)); });

}  // namespace
}  // namespace vitrine
