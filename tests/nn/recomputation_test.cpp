// SPDX-License-Identifier: Apache-2.0
// The optimizer against all choices, on random models.
#include "nn/recomputation.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <utility>

#include <gtest/gtest.h>

#include "tests/support/seeds.h"

namespace vitrine::test {
namespace {

RecomputationModel random_costs(uint32_t seed) {
  std::mt19937 random(seed);
  const auto draw = [&](int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint32_t>(high - low + 1));
  };
  const auto coin = [&] { return random() % 2 == 0; };
  RecomputationModel model;
  model.base = draw(0, 50);
  model.gathered = draw(0, 1) * draw(0, 20);
  model.loss = model.base + draw(0, 20);
  model.other = draw(0, 120);
  model.input_is_held = coin();
  int64_t input = draw(1, 30);
  int part = 0;
  bool runs_backward = false;
  const int64_t count = draw(1, 7);
  for (int64_t k = 0; k < count; ++k) {
    PartCost cost;
    part += static_cast<int>(draw(0, 1));  // an identity between parts
    cost.part = part++;
    cost.input = input;
    cost.in_place = k > 0 && coin();
    cost.output = input = cost.in_place ? input : draw(1, 30);
    cost.own = draw(0, 1) * draw(0, 10);
    cost.keeps_input = coin();
    cost.keeps_output = coin();
    cost.forward = cost.own + draw(0, 5);
    cost.recompute = cost.own + draw(0, 3);
    cost.backward = draw(0, 8);
    runs_backward = runs_backward || coin();
    cost.grad_input = runs_backward && coin() ? cost.input : 0;
    cost.runs_backward = runs_backward;
    cost.work = draw(1, 10);
    model.parts.push_back(cost);
  }
  set_gradients(model.parts, model.parts.back().output);
  return model;
}

/// All choices, with their peak and work.
std::vector<RecomputationChoice> all_choices(const RecomputationModel& model) {
  std::vector<RecomputationChoice> all;
  std::vector<PartRange> segments;
  const std::function<void(size_t, int64_t)> add = [&](size_t k, int64_t work) {
    if (k == model.parts.size()) {
      all.push_back({segments, peak_of(model, segments), work});
      return;
    }
    add(k + 1, work);
    int64_t more = 0;
    for (size_t end = k + 1; end < model.parts.size(); ++end) {
      more += model.parts[end - 1].work;
      segments.push_back({model.parts[k].part, model.parts[end - 1].part + 1});
      add(end, work + (model.parts[end - 1].runs_backward ? more : 0));
      segments.pop_back();
    }
  };
  add(0, 0);
  return all;
}

class Recomputation : public ::testing::TestWithParam<uint32_t> {};

TEST_P(Recomputation, HasTheLeastWorkOfAllChoicesForEachNumberOfBytes) {
  for (uint32_t i = 0; i < 20; ++i) {
    const RecomputationModel model = random_costs(20 * GetParam() + i);
    const std::vector<RecomputationChoice> all = all_choices(model);
    std::set<int64_t> limits;
    for (const RecomputationChoice& choice : all) limits.insert(choice.peak_bytes);
    EXPECT_FALSE(cheapest_recomputation(model, *limits.begin() - 1));
    for (const int64_t limit : limits) {
      int64_t least = std::numeric_limits<int64_t>::max();
      for (const RecomputationChoice& choice : all) {
        if (choice.peak_bytes <= limit) least = std::min(least, choice.work);
      }
      const std::optional<RecomputationChoice> found = cheapest_recomputation(model, limit);
      ASSERT_TRUE(found) << limit;
      EXPECT_EQ(found->work, least) << limit;
      EXPECT_LE(found->peak_bytes, limit);
      EXPECT_EQ(found->peak_bytes, peak_of(model, found->recomputed));
    }
  }
}

TEST_P(Recomputation, FrontierHasEveryChoiceThatNoOtherOneBetters) {
  for (uint32_t i = 0; i < 20; ++i) {
    const RecomputationModel model = random_costs(20 * GetParam() + i);
    const std::vector<RecomputationChoice> all = all_choices(model);
    std::set<std::pair<int64_t, int64_t>> expected;  // work and bytes
    for (const RecomputationChoice& choice : all) {
      const bool bettered = std::any_of(all.begin(), all.end(), [&](const RecomputationChoice& other) {
        return other.peak_bytes <= choice.peak_bytes && other.work <= choice.work &&
               (other.peak_bytes < choice.peak_bytes || other.work < choice.work);
      });
      if (!bettered) expected.insert({choice.work, choice.peak_bytes});
    }
    std::vector<std::pair<int64_t, int64_t>> found;
    for (const RecomputationChoice& choice : recomputation_frontier(model, 1))
      found.emplace_back(choice.work, choice.peak_bytes);
    EXPECT_EQ(found, (std::vector<std::pair<int64_t, int64_t>>(expected.begin(), expected.end())));
    // In larger steps: the lowest peak stays, and the steps are kept up to it.
    const std::vector<RecomputationChoice> coarse = recomputation_frontier(model, 15);
    EXPECT_EQ(coarse.back().peak_bytes, found.back().second);
    for (size_t k = 1; k + 1 < coarse.size(); ++k) EXPECT_GE(coarse[k - 1].peak_bytes - coarse[k].peak_bytes, 15);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Recomputation, ::testing::Range(0U, 10U, kSeedStep));

}  // namespace
}  // namespace vitrine::test
