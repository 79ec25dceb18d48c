// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "data/dataset.h"
#include "data/loader.h"
#include "data/sampler.h"

namespace vitrine::test {

/// `count` images of 2 x 3 x 2; sample i has label i and pixels derived from i.
inline Dataset make_set(int64_t count) {
  Dataset set;
  set.name = "counted";
  set.height = 2;
  set.width = 3;
  set.channels = 2;
  set.classes = count;
  std::vector<uint8_t> pixels;
  std::vector<int32_t> labels;
  for (int64_t i = 0; i < count; ++i) {
    labels.push_back(static_cast<int32_t>(i));
    for (int64_t p = 0; p < 12; ++p) pixels.push_back(static_cast<uint8_t>(i * 5 + p));
  }
  set.samples = samples_in_memory(std::move(pixels), std::move(labels));
  return set;
}

inline std::vector<int64_t> samples_of(const EpochOrder& order) {
  std::vector<int64_t> samples;
  for (int64_t place = 0; place < order.size(); ++place) samples.push_back(order[place]);
  return samples;
}

/// All labels, and all pixels, of a set.
inline std::vector<int32_t> labels_of(const Dataset& set) {
  std::vector<int32_t> labels;
  for (int64_t i = 0; i < set.size(); ++i) labels.push_back(set.label(i));
  return labels;
}
inline std::vector<uint8_t> pixels_of(const Dataset& set) {
  std::vector<uint8_t> pixels;
  for (int64_t i = 0; i < set.size(); ++i) {
    const std::vector<uint8_t> image = set.image(i);
    pixels.insert(pixels.end(), image.begin(), image.end());
  }
  return pixels;
}

inline std::vector<int32_t> labels_of(const HostBatch& batch) {
  const int32_t* labels = batch.labels.as<int32_t>();
  return {labels, labels + batch.labels.numel()};
}

/// Checks that every row's image belongs to its label.
inline void expect_contents(const Dataset& set, const HostBatch& batch) {
  ASSERT_EQ(batch.images.shape, (Shape{batch.labels.numel(), 2, 3, 2}));
  ASSERT_EQ(batch.images.dtype, DType::u8);
  ASSERT_EQ(batch.labels.dtype, DType::i32);
  const std::vector<int32_t> labels = labels_of(batch);
  for (size_t row = 0; row < labels.size(); ++row) {
    const auto image = set.image(labels[row]);
    ASSERT_TRUE(std::equal(image.begin(), image.end(), batch.images.as<uint8_t>() + row * 12)) << row;
  }
}

}  // namespace vitrine::test
