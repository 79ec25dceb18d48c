// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "data/dataset.h"
#include "tests/data/counted_set.h"

namespace vitrine {
namespace {

using test::labels_of;
using test::pixels_of;

TEST(Synthetic, CountsAndLabels) {
  const DatasetPair pair = open_dataset("synthetic:200", 1);
  EXPECT_EQ(pair.train.size(), 200);
  EXPECT_EQ(pair.test.size(), 40);
  for (const Dataset* set : {&pair.train, &pair.test}) {
    EXPECT_EQ(set->height, 32);
    EXPECT_EQ(set->width, 32);
    EXPECT_EQ(set->channels, 3);
    EXPECT_EQ(set->classes, 10);
    EXPECT_EQ(static_cast<int64_t>(pixels_of(*set).size()), set->size() * 3072);
    const std::vector<int32_t> labels = labels_of(*set);
    for (int32_t label = 0; label < 10; ++label) EXPECT_EQ(std::ranges::count(labels, label), set->size() / 10);
  }
  const std::set<std::string> names(pair.train.class_names.begin(), pair.train.class_names.end());
  EXPECT_EQ(names.size(), 10U);
  EXPECT_EQ(open_dataset("synthetic:1", 1).test.size(), 1);
}

TEST(Synthetic, DependsOnlyOnTheSeed) {
  const DatasetPair a = open_dataset("synthetic:50", 1), again = open_dataset("synthetic:50", 1),
                    other = open_dataset("synthetic:50", 2);
  EXPECT_EQ(pixels_of(a.train), pixels_of(again.train));
  EXPECT_EQ(pixels_of(a.test), pixels_of(again.test));
  EXPECT_NE(pixels_of(a.train), pixels_of(other.train));
}

TEST(Synthetic, AnImageDoesNotDependOnTheCount) {
  const DatasetPair few = open_dataset("synthetic:50", 3), more = open_dataset("synthetic:100", 3);
  for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(few.train.image(i), more.train.image(i)) << i;
  for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(few.test.image(i), more.test.image(i)) << i;
}

TEST(Synthetic, ImagesAreGeneratedOnDemand) {
  const DatasetPair pair = open_dataset("synthetic:20000", 3);
  const int64_t images = 1024 * 3072;  // over which mean and deviation are measured
  EXPECT_GE(pair.train.held_bytes(), images);
  EXPECT_LT(pair.train.held_bytes(), images + 20'000 * 16);
  EXPECT_LT(pair.test.held_bytes(), 4'000 * 16);
  const int64_t before = pair.train.held_bytes();
  const std::vector<uint8_t> image = pair.train.image(19'999);
  EXPECT_EQ(pair.train.held_bytes(), before + 3072);
  EXPECT_EQ(pair.train.image(19'999), image);
  EXPECT_EQ(pair.train.held_bytes(), before + 3072);
  pair.test.samples->read_ahead();
  EXPECT_GE(pair.test.held_bytes(), 4'000 * 3072);
}

TEST(Synthetic, NoneIsDrawnForAPlan) {
  EXPECT_LT(open_dataset("synthetic:20000", 3, {.measured = false}).train.held_bytes(), 20'000 * 16);
}

TEST(Synthetic, ImagesAreUnique) {
  const DatasetPair pair = open_dataset("synthetic:500", 4);
  std::set<std::string> seen;
  for (const Dataset* set : {&pair.train, &pair.test}) {
    for (int64_t i = 0; i < set->size(); ++i) {
      const auto image = set->image(i);
      EXPECT_TRUE(seen.emplace(image.begin(), image.end()).second) << set->name << " " << i;
    }
  }
}

// The figure and its background must differ, or there would be nothing to learn: the pixels spread well beyond the
// noise around an image's mean.
TEST(Synthetic, FiguresDifferFromTheBackground) {
  const DatasetPair pair = open_dataset("synthetic:200", 5);
  for (int64_t i = 0; i < pair.train.size(); ++i) {
    const auto image = pair.train.image(i);
    double spread = 0;
    for (size_t c = 0; c < 3; ++c) {
      double sum = 0, squares = 0;
      for (size_t p = c; p < image.size(); p += 3) {
        sum += image[p];
        squares += double{1} * image[p] * image[p];
      }
      spread += squares / 1024 - sum / 1024 * (sum / 1024);
    }
    EXPECT_GT(spread, 500) << i;
  }
  for (size_t c = 0; c < 3; ++c) {
    EXPECT_GT(pair.train.mean[c], 0.35F);
    EXPECT_LT(pair.train.mean[c], 0.65F);
    EXPECT_GT(pair.train.std[c], 0.1F);
  }
}

}  // namespace
}  // namespace vitrine
