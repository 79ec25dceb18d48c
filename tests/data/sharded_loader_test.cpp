// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <memory>
#include <string>
#include <tuple>
#include <utility>

#include <gtest/gtest.h>

#include "data/loader.h"
#include "data/sampler.h"
#include "runtime/error.h"
#include "tests/data/counted_set.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine {
namespace {

using test::expect_contents;
using test::labels_of;
using test::make_set;

/// A batch of `accumulation` micro-batches, each divided into blocks in proportion to `weights`, so each process has
/// several ranges.
ShardFunction shard_of(std::vector<int64_t> weights, size_t rank, int64_t accumulation) {
  return [weights = std::move(weights), rank, accumulation](int64_t global_rows) {
    int64_t before = 0, all = 0;
    for (size_t r = 0; r < weights.size(); ++r) (r < rank ? before : all) += weights[r];
    all += before;
    std::vector<RowRange> ranges;
    for (int64_t micro = 0; micro < accumulation; ++micro) {
      const int64_t begin = micro * global_rows / accumulation, rows = (micro + 1) * global_rows / accumulation - begin;
      ranges.push_back({begin + rows * before / all, begin + rows * (before + weights[rank]) / all});
    }
    return ranges;
  };
}

/// Compares every rank's batches with the unsharded loader's: together they contain all rows, in its order, at their
/// positions.
void expect_shards_make_the_epochs(const Dataset& set, const LoaderConfig& config, const std::vector<int64_t>& weights,
                                   int64_t accumulation) {
  Loader whole(set, config);
  std::vector<std::unique_ptr<Loader>> shards;
  for (size_t rank = 0; rank < weights.size(); ++rank) {
    LoaderConfig sharded = config;
    sharded.workers = 1 + static_cast<int>(rank % 3);
    sharded.shard = shard_of(weights, rank, accumulation);
    shards.push_back(std::make_unique<Loader>(set, sharded));
  }
  while (const auto batch = whole.next()) {
    EXPECT_EQ(batch->global_samples, batch->labels.numel());
    std::vector<int32_t> together(static_cast<size_t>(batch->global_samples), -1);
    for (size_t rank = 0; rank < weights.size(); ++rank) {
      const auto part = shards[rank]->next();
      ASSERT_TRUE(part);
      EXPECT_EQ(part->global_samples, batch->global_samples);
      EXPECT_EQ(part->epoch, batch->epoch);
      EXPECT_EQ(part->index, batch->index);
      EXPECT_EQ(part->last_of_epoch, batch->last_of_epoch);
      expect_contents(set, *part);
      const std::vector<int32_t> labels = labels_of(*part);
      size_t row = 0;
      for (const RowRange& range : shard_of(weights, rank, accumulation)(batch->global_samples)) {
        for (int64_t to = range.begin; to < range.end; ++to, ++row) {
          ASSERT_LT(row, labels.size());
          EXPECT_EQ(together[static_cast<size_t>(to)], -1) << "row " << to << " was delivered twice";
          together[static_cast<size_t>(to)] = labels[row];
        }
      }
      EXPECT_EQ(row, labels.size());
    }
    EXPECT_EQ(together, labels_of(*batch));
  }
  for (const auto& shard : shards) EXPECT_FALSE(shard->next());
}

TEST(ShardedLoader, ShardsMakeUpTheEpochs) {
  const Dataset set = make_set(53);
  const std::vector<std::vector<int64_t>> process_groups{{1},       {1, 1},    {1, 1, 1, 1},
                                                         {2, 3, 3}, {5, 0, 1}, {1, 1, 1, 1, 1, 1, 1}};
  for (const auto& weights : process_groups) {
    for (const int64_t accumulation : {1, 3}) {
      for (const bool drop_last : {false, true}) {
        SCOPED_TRACE(testing::Message() << weights.size() << " processes, " << accumulation
                                        << " micro-batches, drop_last " << drop_last);
        // 53 = 4 * 12 + 5 = 3 * 17 + 2: the short batch has fewer rows than some process groups have processes.
        for (const int64_t batch_size : {12, 17, 60}) {
          if (drop_last && batch_size > set.size()) continue;
          const LoaderConfig config{
              .batch_size = batch_size, .drop_last = drop_last, .seed = 5, .first_epoch = 1, .epochs = 3};
          expect_shards_make_the_epochs(set, config, weights, accumulation);
        }
      }
    }
  }
}

TEST(ShardedLoader, ShardsMayBeEmpty) {
  const Dataset set = make_set(9);
  // The last two of four rows; nothing of the last row.
  const ShardFunction tail = [](int64_t rows) {
    return rows == 4 ? std::vector<RowRange>{{2, 4}} : std::vector<RowRange>{};
  };
  Loader loader(set, {.batch_size = 4, .shuffle = false, .shard = tail});
  EXPECT_EQ(labels_of(*loader.next()), (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(labels_of(*loader.next()), (std::vector<int32_t>{6, 7}));
  const auto last = loader.next();
  ASSERT_TRUE(last);
  EXPECT_EQ(last->images.shape, (Shape{0, 2, 3, 2}));
  EXPECT_EQ(last->labels.shape, Shape{0});
  EXPECT_TRUE(last->images);
  EXPECT_EQ(last->global_samples, 1);
  EXPECT_TRUE(last->last_of_epoch);
  EXPECT_FALSE(loader.next());

  Loader nothing(set, {.batch_size = 4, .shard = [](int64_t) { return std::vector<RowRange>{{1, 1}}; }});
  for (const int64_t global_rows : {4, 4, 1}) {
    const auto batch = nothing.next();
    ASSERT_TRUE(batch);
    EXPECT_EQ(batch->labels.numel(), 0);
    EXPECT_EQ(batch->global_samples, global_rows);
  }
  EXPECT_FALSE(nothing.next());
}

TEST(ShardedLoader, TheShortBatchMayHaveTheLargerShard) {
  const Dataset set = make_set(11);
  const ShardFunction shard = [](int64_t rows) { return std::vector<RowRange>{{rows == 4 ? 3 : 0, rows}}; };
  Loader loader(set, {.batch_size = 4, .shuffle = false, .shard = shard});
  EXPECT_EQ(labels_of(*loader.next()), (std::vector<int32_t>{3}));
  EXPECT_EQ(labels_of(*loader.next()), (std::vector<int32_t>{7}));
  const auto last = loader.next();
  EXPECT_EQ(labels_of(*last), (std::vector<int32_t>{8, 9, 10}));
  expect_contents(set, *last);
}

TEST(ShardedLoader, TransformsOnlyItsRows) {
  const Dataset set = make_set(22);
  std::atomic<int> transformed{0};
  const ImageTransform first_pixel = [&](std::span<const uint8_t> image, std::span<float> output) {
    ++transformed;
    output[0] = static_cast<float>(image[0]);
  };
  Loader loader(set, {.batch_size = 8,
                      .seed = 2,
                      .workers = 2,
                      .shard =
                          [](int64_t rows) {
                            return std::vector<RowRange>{{0, 1}, {rows / 2, rows / 2 + 2}};
                          },
                      .transform = first_pixel,
                      .transformed_shape = Shape{1, 1, 1}});
  const EpochOrder order({.seed = 2}, 22, 0);
  for (const auto& rows :
       {std::vector<size_t>{0, 4, 5}, std::vector<size_t>{8, 12, 13}, std::vector<size_t>{16, 19, 20}}) {
    const auto batch = loader.next();
    ASSERT_TRUE(batch);
    ASSERT_EQ(batch->images.shape, (Shape{3, 1, 1, 1}));
    ASSERT_EQ(batch->images.dtype, DType::f32);
    for (size_t row = 0; row < 3; ++row) {
      EXPECT_EQ(labels_of(*batch)[row], order[static_cast<int64_t>(rows[row])]);
      EXPECT_EQ(batch->images.as<float>()[row],
                static_cast<float>(set.image(order[static_cast<int64_t>(rows[row])])[0]));
    }
  }
  EXPECT_FALSE(loader.next());
  EXPECT_EQ(transformed, 9);
}

/// Counts reads of other samples.
class CountedSamples final : public Samples {
 public:
  explicit CountedSamples(std::shared_ptr<const Samples> samples)
      : samples_(std::move(samples)), reads(static_cast<size_t>(samples_->size())) {}
  int64_t size() const override { return samples_->size(); }
  int32_t label(int64_t i) const override { return samples_->label(i); }
  void read_image(int64_t i, std::span<uint8_t> out) const override {
    ++reads[static_cast<size_t>(i)];
    samples_->read_image(i, out);
  }
  int64_t held_bytes() const override { return 0; }

 private:
  std::shared_ptr<const Samples> samples_;

 public:
  mutable std::vector<std::atomic<int>> reads;
};

TEST(ShardedLoader, AProcessReadsOnlyItsRows) {
  Dataset set = make_set(48);
  const std::vector<int64_t> weights{2, 1, 1};
  std::vector<int> readers(48);
  for (size_t rank = 0; rank < weights.size(); ++rank) {
    const auto counted = std::make_shared<CountedSamples>(make_set(48).samples);
    set.samples = counted;
    Loader loader(set, {.batch_size = 12, .seed = 5, .shard = shard_of(weights, rank, 1)});
    while (loader.next()) {
    }
    int total = 0;
    for (size_t i = 0; i < readers.size(); ++i) {
      total += counted->reads[i];
      readers[i] += counted->reads[i];
    }
    EXPECT_EQ(total, rank == 0 ? 24 : 12);
  }
  EXPECT_EQ(readers, std::vector<int>(48, 1));
}

TEST(ShardedLoader, AsksForTheShardOfEachBatchSize) {
  const auto asked = [](int64_t samples, bool drop_last) {
    const Dataset set = make_set(samples);
    std::vector<int64_t> sizes;
    const ShardFunction note = [&](int64_t rows) {
      sizes.push_back(rows);
      return std::vector<RowRange>{{0, rows}};
    };
    Loader loader(set, {.batch_size = 5, .drop_last = drop_last, .epochs = 2, .workers = 2, .shard = note});
    while (loader.next()) {
    }
    return sizes;
  };
  EXPECT_EQ(asked(13, false), (std::vector<int64_t>{5, 3}));
  EXPECT_EQ(asked(13, true), (std::vector<int64_t>{5}));
  EXPECT_EQ(asked(10, false), (std::vector<int64_t>{5}));
  EXPECT_EQ(asked(3, false), (std::vector<int64_t>{3}));
}

TEST(ShardedLoader, NamesAnInvalidRange) {
  const Dataset set = make_set(20);
  const auto message = [&](const std::vector<RowRange>& full, const std::vector<RowRange>& last = {}) -> std::string {
    return error_of<ConfigError>([&] {
      const Loader loader(set, {.batch_size = 8, .shard = [&](int64_t rows) { return rows == 8 ? full : last; }});
    });
  };
  EXPECT_EQ(message({{0, 2}, {2, 2}, {2, 5}, {7, 8}}, {{0, 4}}), "");
  const std::tuple<std::vector<RowRange>, std::vector<RowRange>, const char*> cases[] = {
      {{{7, 9}}, {}, "rows [7, 9) of a batch of 8 rows"},
      {{{-1, 3}}, {}, "rows [-1, 3) of a batch of 8 rows"},
      {{{5, 4}}, {}, "rows [5, 4) of a batch of 8 rows"},
      {{{0, 4}, {3, 6}}, {}, "rows [3, 6) of a batch of 8 rows: expected a range within the batch from row 4"},
      {{{4, 6}, {0, 2}}, {}, "rows [0, 2) of a batch of 8 row"},
      {{{0, 8}}, {{3, 5}}, "rows [3, 5) of a batch of 4 rows"},
  };
  for (const auto& [full, last, part] : cases) {
    const std::string text = message(full, last);
    expect_contains(text, part);
  }
}

}  // namespace
}  // namespace vitrine
