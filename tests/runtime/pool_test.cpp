// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/device.h"
#include "runtime/error.h"
#include "runtime/memory/history.h"
#include "runtime/memory/recorder.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine {
namespace {

TEST(OffsetAllocator, RandomCallsKeepBlocksDisjointAndHolesMerged) {
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

TEST(OffsetAllocator, UsesTheSmallestHoleThatFits) {
  OffsetAllocator a;
  const int64_t big = a.allocate(1024), keep1 = a.allocate(256), small = a.allocate(512), keep2 = a.allocate(256);
  a.free(big, 1024);
  a.free(small, 512);
  EXPECT_EQ(a.allocate(300), small);
  EXPECT_EQ(a.allocate(300), big);
  a.free(keep1, 256);
  a.free(keep2, 256);
}

TEST(OffsetAllocator, EmptyBlocksAreReleasedInAnyOrder) {
  OffsetAllocator a;
  const int64_t first = a.allocate(256), empty = a.allocate(0);
  a.free(first, 256);
  a.free(empty, 0);
  EXPECT_EQ(a.extent(), 0);
}

class PoolTest : public ::testing::TestWithParam<Backend> {
 protected:
  DeviceGroup open(int64_t capacity) {
    DeviceGroupOptions options{.devices = {{GetParam(), 0}}, .memory_bytes = {capacity}, .check_order = true};
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

TEST_P(PoolTest, HashesTellEqualRangesFromOthers) {
  DeviceGroup group = open(1 << 20);
  auto& ctx = group[0].compute();
  auto& pool = group[0].pool();
  const auto allocate = [&](int64_t elements) {
    return ctx.allocate({elements}, DType::f32, Category::activations, "t");
  };
  const uint64_t empty = pool.in_use_hash();
  Tensor a = allocate(64), b = allocate(128);
  const uint64_t both = pool.in_use_hash();
  EXPECT_NE(both, empty);
  a = Tensor();
  const uint64_t second = pool.in_use_hash();
  EXPECT_NE(second, both);
  a = allocate(64);  // where it was
  EXPECT_EQ(pool.in_use_hash(), both);
  a = b = Tensor();
  EXPECT_EQ(pool.in_use_hash(), empty);

  std::vector<uint64_t> sections;
  for (const int64_t elements : {64, 64, 128}) {
    pool.begin_section({0, 0, 0});
    a = allocate(elements);
    a = Tensor();
    sections.push_back(pool.section_hash());
  }
  EXPECT_EQ(sections[0], sections[1]);
  EXPECT_NE(sections[0], sections[2]);
}

TEST_P(PoolTest, ThePeakIncludesTheHolesBelowIt) {
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

TEST_P(PoolTest, RefusesOneByteTooMuchWithAllDetails) {
  DeviceGroup group = open(2048);
  auto& ctx = group[0].compute();
  const Tensor fits = ctx.allocate({1024}, DType::u8, Category::parameters, "weight");
  const PhaseScope phase(ctx, Phase::backward);
  const LayerScope layer(ctx, "classifier.1");
  EXPECT_NO_THROW(ctx.allocate({1024}, DType::u8, Category::gradients, "grad"));
  const std::string text =
      error_of<OutOfMemory>([&] { ctx.allocate({1025}, DType::u8, Category::gradients, "grad_weight"); });
  expect_contains(text, "1025 bytes", "grad_weight", "classifier.1", "backward", "2.0 KiB total capacity",
                  "1.0 KiB already allocated", "1.0 KiB free", "holds parameters");
  EXPECT_NO_THROW(ctx.allocate({1024}, DType::u8, Category::gradients, "grad"));
}

TEST_P(PoolTest, AReservedSlabIsNeverExceeded) {
  DeviceGroup group = open(1 << 20);
  auto& ctx = group[0].compute();
  group[0].pool().reserve(4096);
  EXPECT_EQ(group[0].pool().statistics().reserved_bytes, 4096);
  EXPECT_NO_THROW(ctx.allocate({4096}, DType::u8, Category::activations, "all"));
  EXPECT_THROW(ctx.allocate({4097}, DType::u8, Category::activations, "more"), UnsupportedError);
  EXPECT_THROW(group[0].pool().reserve((1 << 20) + 1), OutOfMemory);
}

TEST_P(PoolTest, AddressesRepeatFromRoundToRound) {
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

TEST_P(PoolTest, HistoryBeginsWithTheLiveBlocksAndRecordsEveryChange) {
  DeviceGroup group = open(1 << 20);
  auto& ctx = group[0].compute();
  auto& pool = group[0].pool();
  const Tensor weight = [&] {
    const LayerScope layer(ctx, "fc");
    return ctx.allocate({64}, DType::f32, Category::parameters, "weight");
  }();
  { const Tensor before = ctx.allocate({10}, DType::f32, Category::staging, "before"); }
  pool.record_history(true);
  ctx.set_step(7);
  ctx.mark_step();
  {
    const Tensor t = ctx.allocate({10}, DType::f32, Category::staging, "images"),
                 nothing = ctx.allocate({0}, DType::f32, Category::staging, "empty");
  }
  pool.record_history(false);
  const Tensor after = ctx.allocate({10}, DType::f32, Category::staging, "after");
  const MemoryHistory& history = pool.history();
  ASSERT_EQ(history.at_start.size(), 1U);
  EXPECT_EQ(history.at_start[0].tensor, "weight");
  EXPECT_EQ(history.at_start[0].layer, "fc");
  EXPECT_EQ(history.at_start[0].bytes, 256);
  ASSERT_EQ(history.changes.size(), 2U);
  EXPECT_EQ(history.changes[0].bytes, 256);
  EXPECT_EQ(history.changes[0].tensor, "images");
  EXPECT_EQ(history.changes[1].bytes, -256);
  EXPECT_EQ(history.changes[1].tensor, "images");
  ASSERT_EQ(history.steps.size(), 1U);
  EXPECT_EQ(history.steps[0].step, 7);
  EXPECT_EQ(history.steps[0].change, 0U);
  pool.record_history(true);
  EXPECT_EQ(pool.history().at_start.size(), 2U);
  EXPECT_TRUE(pool.history().changes.empty());
}

TEST(MemoryRecorder, StoresEachNameOnceAndDropsUnusedNames) {
  MemoryRecorder recorder;
  recorder.set_position(Phase::setup, "layer");
  recorder.on_allocate(0, 256, Category::parameters, "kept");
  const auto allocate_and_free = [&](const std::string& name) {
    recorder.on_allocate(256, 256, Category::activations, name);
    recorder.on_free(256);
  };
  allocate_and_free("activation");
  const size_t names = recorder.name_count();
  for (int step = 0; step < 10; ++step) allocate_and_free("activation");
  EXPECT_EQ(recorder.name_count(), names) << "a repeated step stores no name";
  for (int i = 0; i < 20000; ++i) allocate_and_free("tensor " + std::to_string(i));
  EXPECT_LT(recorder.name_count(), 5000U);
  recorder.start();
  ASSERT_EQ(recorder.history().at_start.size(), 1U);
  EXPECT_EQ(recorder.history().at_start[0].tensor, "kept");
  EXPECT_EQ(recorder.history().at_start[0].layer, "layer");
}

TEST(MemoryRecorder, BlocksOlderThanTheHistoryHaveTheTimeOfItsStart) {
  MemoryRecorder recorder;
  recorder.on_allocate(0, 256, Category::parameters, "a");
  recorder.on_allocate(256, 256, Category::parameters, "b");
  const int64_t before_ns = steady_now_ns();
  recorder.start();
  const auto& blocks = recorder.history().at_start;
  ASSERT_EQ(blocks.size(), 2U);
  EXPECT_GE(blocks[0].time_ns, before_ns) << "no clock was read when the block was allocated";
  EXPECT_EQ(blocks[0].time_ns, blocks[1].time_ns);
}

TEST_P(PoolTest, TheTimelineMatchesThePoolToTheByte) {
  DeviceGroup group = open(8 << 20);
  auto& ctx = group[0].compute();
  auto& pool = group[0].pool();
  std::mt19937 random(5);
  std::vector<Tensor> held;
  const auto change = [&] {
    if (held.empty() || random() % 5 < 3) {
      const PhaseScope phase(ctx, random() % 2 == 0 ? Phase::forward : Phase::backward);
      const auto category = static_cast<Category>(random() % (kCategoryCount - 1));
      held.push_back(ctx.allocate({1 + static_cast<int64_t>(random() % 5000)}, DType::f32, category,
                                  "t" + std::to_string(random() % 9)));
    } else {
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(random() % held.size()));
    }
  };
  for (int i = 0; i < 30; ++i) change();
  pool.record_history(true);
  std::vector<PoolStatistics> statistics;
  for (int step = 0; step < 4; ++step) {
    ctx.set_step(step);
    ctx.mark_step();
    pool.reset_peak();
    for (int i = 0; i < 40; ++i) {
      change();
      if (step == 2) statistics.push_back(pool.statistics());
    }
  }
  const MemoryHistory one = cut_history(pool.history(), find_mark(pool.history(), 2).value());
  ASSERT_EQ(one.changes.size(), 40U);
  const MemoryTimeline timeline = make_memory_timeline(one);
  ASSERT_EQ(timeline.moments.size(), 41U);
  for (size_t i = 0; i < 40; ++i) {
    BytesByCategory expected = statistics[i].allocated_by_category;
    const MemoryMoment& moment = timeline.moments[i + 1];
    expected[static_cast<size_t>(Category::fragmentation)] = moment.extent_bytes - statistics[i].allocated_bytes;
    EXPECT_EQ(moment.by_category, expected) << i;
    int64_t in_blocks = 0;
    for (const HeldBlock& block : timeline.blocks)
      in_blocks += block.first <= i + 1 && i + 1 < block.end ? block.bytes : 0;
    EXPECT_EQ(in_blocks, statistics[i].allocated_bytes) << i;
  }
  EXPECT_EQ(timeline.peak_bytes, statistics.back().peak_bytes);
  BytesByCategory at_peak = timeline.moments[timeline.peak].by_category;
  at_peak[static_cast<size_t>(Category::fragmentation)] = timeline.peak_bytes - allocated_bytes(at_peak);
  EXPECT_EQ(at_peak, statistics.back().peak_by_category);
  EXPECT_FALSE(find_mark(one, 3).has_value());
}

INSTANTIATE_TEST_SUITE_P(Backends, PoolTest, ::testing::Values(Backend::cpu, Backend::meta),
                         [](const auto& param) { return std::string(backend_name(param.param)); });

}  // namespace
}  // namespace vitrine
