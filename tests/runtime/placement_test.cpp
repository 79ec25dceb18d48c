// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/placement.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/device.h"
#include "runtime/memory/pool_placement.h"

namespace vitrine {
namespace {

using Blocks = std::vector<BlockLifetime>;

int64_t between(std::mt19937& random, int64_t least, int64_t most) {
  return least + static_cast<int64_t>(random() % static_cast<uint32_t>(most - least + 1));
}

Blocks random_blocks(std::mt19937& random, int64_t count, int64_t events, int64_t groups = 1) {
  Blocks blocks;
  for (int64_t i = 0; i < count; ++i) {
    const auto first = static_cast<int32_t>(between(random, 0, events - 1));
    const auto end = static_cast<int32_t>(between(random, first + 1, events));
    blocks.push_back({256 * between(random, 1, 9), first, end, static_cast<int32_t>(between(random, 0, groups - 1)),
                      BlockLifetime::kAnywhere});
  }
  return blocks;
}

bool collide(const BlockLifetime& a, const BlockLifetime& b) {
  return a.group != b.group || (a.first < b.end && b.first < a.end);
}

void expect_valid(const Blocks& blocks, const Placement& placement) {
  ASSERT_EQ(placement.offsets.size(), blocks.size());
  int64_t height = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const int64_t begin = placement.offsets[i], end = begin + blocks[i].bytes;
    ASSERT_GE(begin, 0);
    ASSERT_EQ(begin % 256, 0);
    if (blocks[i].offset != BlockLifetime::kAnywhere) {
      ASSERT_EQ(begin, blocks[i].offset);
    }
    height = std::max(height, end);
    for (size_t j = 0; j < i; ++j) {
      if (!collide(blocks[i], blocks[j])) continue;
      ASSERT_TRUE(end <= placement.offsets[j] || placement.offsets[j] + blocks[j].bytes <= begin)
          << "blocks " << i << " and " << j;
    }
  }
  EXPECT_EQ(placement.height, height);
  EXPECT_GE(placement.height, height_bound(blocks));
}

/// The least height of all placements: the best order of the blocks when each takes the lowest place that is left. In
/// order of an optimal placement's offsets no block comes to lie higher than there.
int64_t least_height(const Blocks& blocks) {
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  int64_t least = std::numeric_limits<int64_t>::max();
  do {
    std::vector<int64_t> offsets;
    int64_t height = 0;
    for (const BlockLifetime& block : blocks) {
      offsets.push_back(block.offset);  // -1: not yet
      if (block.offset != BlockLifetime::kAnywhere) height = std::max(height, block.offset + block.bytes);
    }
    for (const size_t i : order) {
      if (blocks[i].offset != BlockLifetime::kAnywhere) continue;
      int64_t offset = 0;
      for (bool moved = true; moved;) {
        moved = false;
        for (size_t j = 0; j < blocks.size(); ++j) {
          if (offsets[j] < 0 || !collide(blocks[i], blocks[j]) || offset >= offsets[j] + blocks[j].bytes ||
              offsets[j] >= offset + blocks[i].bytes)
            continue;
          offset = offsets[j] + blocks[j].bytes;
          moved = true;
        }
      }
      offsets[i] = offset;
      height = std::max(height, offset + blocks[i].bytes);
    }
    least = std::min(least, height);
  } while (std::next_permutation(order.begin(), order.end()));
  return least;
}

TEST(Placement, FindsTheLeastHeightOfSmallProblems) {
  std::mt19937 random(1);
  int above_the_bound = 0;
  for (int i = 0; i < 100; ++i) {
    Blocks blocks = random_blocks(random, between(random, 1, 6), 8, i % 3 == 0 ? 2 : 1);
    if (i % 2 == 0) blocks[0].offset = 256 * between(random, 0, 8);  // it is in the way
    const int64_t least = least_height(blocks);
    const Placement placement = place_blocks(blocks, height_bound(blocks));
    expect_valid(blocks, placement);
    EXPECT_EQ(placement.height, least) << "problem " << i;
    above_the_bound += least > height_bound(blocks) ? 1 : 0;
  }
  EXPECT_GT(above_the_bound, 0) << "all problems are easy";
}

TEST(Placement, BlocksThatAreUsedTogetherNeverOverlap) {
  std::mt19937 random(2);
  for (int i = 0; i < 60; ++i) {
    Blocks blocks = random_blocks(random, between(random, 1, 120), 80, i % 4 == 0 ? 3 : 1);
    // Some lie already, one above the other, with holes.
    int64_t end = 0;
    for (size_t b = 0; b < blocks.size() && b < static_cast<size_t>(i % 7); ++b) {
      blocks[b].first = -1;
      blocks[b].offset = end + 256 * between(random, 0, 2);
      end = blocks[b].offset + blocks[b].bytes;
    }
    const Placement placement = place_blocks(blocks, height_bound(blocks));
    expect_valid(blocks, placement);
    EXPECT_EQ(placement.offsets, place_blocks(blocks, height_bound(blocks)).offsets) << "the result repeats";
  }
}

TEST(Placement, TheSearchImprovesWhatOrdersAloneFind) {
  std::mt19937 random(3);
  int64_t searched = 0, first = 0;
  for (int i = 0; i < 10; ++i) {
    const Blocks blocks = random_blocks(random, 60, 40);
    searched += place_blocks(blocks, height_bound(blocks)).height;
    first += place_blocks(blocks, std::numeric_limits<int64_t>::max()).height;  // everything is low enough
  }
  EXPECT_LT(searched, first);
}

/// A step of a random sequential model: outputs stay until backward, which goes back through them with a gradient
/// before and after each layer.
Blocks step_like(std::mt19937& random, int layers) {
  Blocks blocks;
  int32_t event = 0;
  std::vector<size_t> kept;
  std::vector<int64_t> sizes;
  const auto take = [&](int64_t bytes) {
    blocks.push_back({bytes, event++, 0, 0, BlockLifetime::kAnywhere});
    return blocks.size() - 1;
  };
  const auto release = [&](size_t block) { blocks[block].end = event++; };
  for (int i = 0; i < layers; ++i) {
    sizes.push_back(256 * between(random, 1, 4000));
    kept.push_back(take(sizes.back()));
  }
  size_t gradient = take(sizes.back());
  for (size_t i = kept.size(); i-- > 0;) {
    const size_t next = take(i > 0 ? sizes[i - 1] : sizes[0]);
    release(kept[i]);
    release(gradient);
    gradient = next;
  }
  release(gradient);
  return blocks;
}

TEST(Placement, StepsLoseLessThanOnePercent) {
  std::mt19937 random(4);
  for (int i = 0; i < 20; ++i) {
    const Blocks blocks = step_like(random, static_cast<int>(between(random, 3, 40)));
    const Placement placement = place_blocks(blocks, largest_sum(blocks));
    expect_valid(blocks, placement);
    EXPECT_LE(static_cast<double>(placement.height), 1.01 * static_cast<double>(largest_sum(blocks))) << i;
  }
}

TEST(Placement, TheBoundIsTheLargestSumOrThatOfTheGroups) {
  const Blocks blocks = {{512, 0, 2, 0, BlockLifetime::kAnywhere},
                         {256, 2, 4, 0, BlockLifetime::kAnywhere},
                         {256, 1, 3, 0, BlockLifetime::kAnywhere}};
  EXPECT_EQ(largest_sum(blocks), 768);
  EXPECT_EQ(height_bound(blocks), 768);
  Blocks apart = blocks;
  apart[1].group = 1;
  EXPECT_EQ(largest_sum(apart), 768);
  EXPECT_EQ(height_bound(apart), 1024);
  EXPECT_EQ(place_blocks(apart, 0).height, 1024);
}

/// A program on a pool: two blocks for good, then steps in sections, and an evaluation whose result lives until the
/// next section.
class Program {
 public:
  explicit Program(DeviceGroup& group)
      : device_(group[0]),
        weight_(take(3000, "weight")),
        staging_(device_.copy().allocate({700}, DType::u8, Category::staging, "s")) {}

  void step(int64_t samples) {
    device_.pool().begin_section({0, samples, 0});
    result_ = Tensor();
    std::vector<Tensor> outputs;
    for (int64_t layer = 1; layer <= 4; ++layer) outputs.push_back(take(samples * layer * 300, "output"));
    Tensor gradient = take(samples * 1200, "gradient");
    for (int64_t layer = 4; layer-- > 0;) {
      Tensor next = take(samples * (layer + 1) * 300, "gradient");
      outputs.pop_back();
      gradient = std::move(next);
      const Tensor scratch = device_.communication().allocate({500}, DType::u8, Category::communication, "scratch");
    }
  }
  void evaluate(int64_t samples) {
    device_.pool().begin_section({1, samples, 0});
    result_ = Tensor();
    const Tensor hidden = take(samples * 900, "hidden");
    result_ = take(samples * 100, "result");
  }
  void run() {
    for (int i = 0; i < 2; ++i) step(8);
    step(3);
    evaluate(20);
  }
  Tensor take(int64_t bytes, const char* name) {
    return device_.compute().allocate({bytes}, DType::u8, Category::activations, name);
  }

 private:
  Device& device_;
  Tensor weight_, staging_, result_;
};

DeviceGroup open(Backend backend) {
  DeviceGroupOptions options{.devices = {{backend, 0}}, .memory_bytes = {1 << 20}, .check_order = true};
  return DeviceGroup(options);
}

struct Recorded {
  PoolRecord record;
  int64_t largest_sum = 0;
};

Recorded record_program() {
  DeviceGroup group = open(Backend::meta);
  Pool& pool = group[0].pool();
  pool.start_record();
  Program program(group);
  program.run();
  pool.begin_section({2, 0, 0});
  const PoolStatistics statistics = pool.statistics();
  return {pool.take_record(), allocated_bytes(statistics.peak_by_category)};
}

TEST(PoolPlacement, RepeatedSectionsHaveOneListAndStreamsShareNothing) {
  const Recorded recorded = record_program();
  const PoolPlacement placement = place_pool(recorded.record);
  EXPECT_GE(placement.height, recorded.largest_sum);
  EXPECT_LE(placement.height, recorded.largest_sum + 512) << "at most the scratch of the other stream";
  const std::vector<size_t>& steps = placement.sections.at({0, 8, 0});
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[0], steps[1]);
  const PoolPlacement::Blocks& list = placement.block_lists[steps[0]];
  ASSERT_EQ(list.size(), 13U);
  for (const PoolPlacement::Block& a : list) {
    for (const PoolPlacement::Block& b : list) {
      if (a.stream == b.stream) continue;
      EXPECT_TRUE(a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset);
    }
  }
}

TEST(PoolPlacement, APoolThatFollowsItTakesExactlyItsHeight) {
  const Recorded recorded = record_program();
  const auto placement = std::make_shared<const PoolPlacement>(place_pool(recorded.record));
  for (const Backend backend : {Backend::cpu, Backend::meta}) {
    DeviceGroup group = open(backend);
    Pool& pool = group[0].pool();
    pool.reserve(placement->height);
    pool.follow(placement);
    Program program(group);
    program.evaluate(20);  // in another order than it was recorded
    program.run();
    program.step(3);
    program.step(8);
    const PoolStatistics statistics = pool.statistics();
    EXPECT_EQ(statistics.peak_bytes, placement->height);
    EXPECT_EQ(allocated_bytes(statistics.peak_by_category), recorded.largest_sum);
    EXPECT_EQ(statistics.peak_by_category[static_cast<size_t>(Category::fragmentation)],
              placement->height - recorded.largest_sum);
    EXPECT_EQ(statistics.unplaced_blocks, 0);
  }
}

TEST(PoolPlacement, BlocksThatWereNotRecordedLieElsewhere) {
  const auto placement = std::make_shared<const PoolPlacement>(place_pool(record_program().record));
  DeviceGroup group = open(Backend::cpu);
  Pool& pool = group[0].pool();
  pool.reserve(1 << 19);
  pool.follow(placement);
  Program program(group);
  program.step(8);
  EXPECT_EQ(pool.statistics().unplaced_blocks, 0);
  {
    const Tensor other = program.take(1000, "not recorded");  // after the step's blocks
    EXPECT_EQ(pool.statistics().unplaced_blocks, 1);
    program.step(8);  // lies around it
  }
  EXPECT_GT(pool.statistics().unplaced_blocks, 1);
  const int64_t before = pool.statistics().unplaced_blocks;
  program.step(8);
  EXPECT_EQ(pool.statistics().unplaced_blocks, before) << "the next step is as recorded";
  pool.begin_section({7, 7, 7});
  const Tensor unknown = program.take(1000, "in a section that was not recorded");
  EXPECT_EQ(pool.statistics().unplaced_blocks, before);
}

TEST(OffsetAllocator, AllocatesAtAnOffsetOnlyWhatIsFree) {
  OffsetAllocator a;
  EXPECT_TRUE(a.allocate_at(1024, 256));
  EXPECT_EQ(a.extent(), 1280);
  EXPECT_EQ(a.allocated_bytes(), 256);
  EXPECT_EQ(a.largest_hole(), 1024);
  EXPECT_FALSE(a.allocate_at(768, 512));
  EXPECT_FALSE(a.allocate_at(1024, 1));
  EXPECT_TRUE(a.allocate_at(512, 256));
  EXPECT_EQ(a.largest_hole(), 512);
  EXPECT_FALSE(a.allocate_at(256, 512));
  EXPECT_TRUE(a.allocate_at(0, 512));
  EXPECT_EQ(a.allocate(256), 768);
  EXPECT_EQ(a.allocated_bytes(), 1280);
  a.free(1024, 256);
  EXPECT_EQ(a.extent(), 1024);
  a.free(512, 256);
  a.free(768, 256);
  EXPECT_EQ(a.extent(), 512);
  EXPECT_TRUE(a.allocate_at(1024, 0)) << "an empty block takes no place";
  EXPECT_EQ(a.extent(), 512);
}

}  // namespace
}  // namespace vitrine
