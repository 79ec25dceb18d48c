// SPDX-License-Identifier: Apache-2.0
#include "nn/parameter_store.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "nn/model.h"
#include "runtime/error.h"
#include "runtime/philox.h"

namespace vitrine {
namespace {

FlatLayout small_layout(int64_t tail = 0) {
  return {make_model("small-cnn", {.image_size = 8}).net->parameters(), tail};
}

TEST(FlatLayout, FollowsTheOrderInWhichBackwardFinishes) {
  const FlatLayout layout = small_layout(64);
  EXPECT_EQ(layout.offset(layout.size() - 1), 0);
  for (int i = 1; i < layout.size(); ++i) {
    const int64_t elements = layout.specs()[static_cast<size_t>(i)].shape.numel();
    EXPECT_GE(layout.offset(i - 1), layout.offset(i) + elements) << layout.specs()[static_cast<size_t>(i)].name;
    EXPECT_LT(layout.offset(i - 1), layout.offset(i) + elements + FlatLayout::kAlignmentElements);
    EXPECT_EQ(layout.offset(i) % FlatLayout::kAlignmentElements, 0);
  }
  EXPECT_EQ(layout.parameter_elements() % FlatLayout::kAlignmentElements, 0);
  EXPECT_EQ(layout.total_elements(), layout.parameter_elements() + 64);
}

TEST(FlatLayout, ViewsAreAtTheirOffsets) {
  const FlatLayout layout = small_layout();
  std::vector<float> flat(static_cast<size_t>(layout.total_elements()));
  const std::vector<View> views = layout.views({flat.data(), {layout.total_elements()}, DType::f32, DeviceId::host()});
  for (int i = 0; i < layout.size(); ++i) {
    EXPECT_EQ(views[static_cast<size_t>(i)].as<float>(), flat.data() + layout.offset(i));
    EXPECT_EQ(views[static_cast<size_t>(i)].shape, layout.specs()[static_cast<size_t>(i)].shape);
  }
  EXPECT_THROW(layout.views({flat.data(), {layout.parameter_elements() - 1}, DType::f32, DeviceId::host()}),
               ShapeError);
  EXPECT_THROW(layout.views({flat.data(), {layout.parameter_elements()}, DType::i32, DeviceId::host()}), DtypeError);
}

TEST(Initialize, IsOneSequencePerParameterHoweverManyThreadsDraw) {
  const int64_t count = 100'003;
  const FlatLayout layout(
      {{"uniform", {count}, {Init::Kind::uniform, 0.5F}, {}}, {"normal", {count}, {Init::Kind::normal, 2.0F}, {}}}, 0);
  std::vector<float> flat(static_cast<size_t>(layout.parameter_elements()));
  initialize(layout, 3, flat);
  for (int i = 0; i < 2; ++i) {
    PhiloxSequence random(3, random_stream(RandomPurpose::initialization, static_cast<uint64_t>(i)));
    const float* const values = flat.data() + layout.offset(i);
    for (int64_t e = 0; e < count; ++e) {
      const float wanted = i == 0 ? (2.0F * random.next_uniform() - 1.0F) * 0.5F : random.next_normal() * 2.0F;
      ASSERT_EQ(values[e], wanted) << "parameter " << i << ", element " << e;
    }
  }
}

TEST(Initialize, PartsOfAnySizeHaveTheSameBits) {
  const FlatLayout layout = small_layout(0);
  std::vector<float> whole(static_cast<size_t>(layout.parameter_elements()));
  initialize(layout, 3, whole);
  for (const size_t size : {size_t{1}, size_t{7}, size_t{64}, whole.size() + 5}) {
    std::vector<float> part(size), flat(whole.size(), 5.0F);
    initialize_in_parts(layout, 3, part, [&](int64_t first, std::span<const float> values) {
      EXPECT_LE(values.size(), size);
      std::copy(values.begin(), values.end(), flat.begin() + first);
    });
    EXPECT_EQ(flat, whole) << size;
  }
}

TEST(Initialize, IsUniformWithinPyTorchsBoundAndZeroInBetween) {
  const FlatLayout layout = small_layout(64);
  std::vector<float> flat(static_cast<size_t>(layout.total_elements()), 5.0F);
  initialize(layout, 3, flat);
  double outside = 0.0;
  for (const float v : flat) outside += std::abs(static_cast<double>(v));
  for (int i = 0; i < layout.size(); ++i) {
    const ParamSpec& spec = layout.specs()[static_cast<size_t>(i)];
    // A bias has the bound of its weight: 1 / sqrt(fan in).
    const ParamSpec& weight = spec.name.ends_with("bias") ? layout.specs()[static_cast<size_t>(i) - 1] : spec;
    const double bound = 1.0 / std::sqrt(static_cast<double>(weight.shape.with_dim0(1).numel()));
    const auto count = static_cast<size_t>(spec.shape.numel());
    double sum_of_squares = 0.0;
    double largest = 0.0;
    for (size_t e = 0; e < count; ++e) {
      const double v = flat[static_cast<size_t>(layout.offset(i)) + e];
      sum_of_squares += v * v;
      largest = std::max(largest, std::abs(v));
      outside -= std::abs(v);
    }
    EXPECT_LE(largest, bound * 1.000001) << spec.name;
    if (count < 500) continue;
    EXPECT_GT(largest, 0.98 * bound) << spec.name;
    EXPECT_NEAR(sum_of_squares / static_cast<double>(count), bound * bound / 3, 0.1 * bound * bound / 3) << spec.name;
  }
  EXPECT_NEAR(outside, 0.0, 1e-6);  // padding and tail
}

TEST(Initialize, DependsOnSeedAndParameterOnly) {
  const FlatLayout layout = small_layout();
  std::vector<ParamSpec> fewer = layout.specs();
  fewer.pop_back();
  const FlatLayout shorter(fewer, 0);
  const auto first_weight = [](const FlatLayout& l, uint64_t seed) {
    std::vector<float> flat(static_cast<size_t>(l.total_elements()));
    initialize(l, seed, flat);
    const auto begin = flat.begin() + l.offset(0);
    return std::vector<float>(begin, begin + l.specs()[0].shape.numel());
  };
  EXPECT_EQ(first_weight(layout, 1), first_weight(shorter, 1));
  EXPECT_NE(first_weight(layout, 1), first_weight(layout, 2));
}

}  // namespace
}  // namespace vitrine
