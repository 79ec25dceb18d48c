// SPDX-License-Identifier: Apache-2.0
#include "tests/parallel/rounding_agreement.h"

#include <algorithm>
#include <cmath>
#include <iostream>
#include <utility>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/parallel/random_model.h"

namespace vitrine::test {
namespace {

/// The most that one flipped ReLU changes: a few units and samples carry the whole gradient of the small models of
/// tests.
double most_by_a_flip(Agreement::Effect effect) { return effect == Agreement::Effect::one_step ? 0.5 : 0.05; }

}  // namespace

void Agreement::begin_case(std::string name) {
  case_ = std::move(name);
  flipped_in_case_ = false;
}

void Agreement::expect(const std::vector<float>& actual, const std::vector<float>& expected, Effect effect,
                       const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << case_ << ": " << what;
  const double difference = relative_difference(actual, expected);
  if (difference < tolerance_) return;
  float largest = 0;
  for (const float value : expected) largest = std::max(largest, std::abs(value));
  size_t differing = 0, worst = 0;
  const auto distance = [&](size_t i) { return std::abs(actual[i] - expected[i]); };
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!(distance(i) <= tolerance_ * largest)) ++differing;
    if (distance(i) > distance(worst)) worst = i;
  }
  const std::string text = fmt::format(
      "{}: {} differ by {:.3g} relative to their norm, allowed {:.3g}; {} of {} elements differ, most element {}: got "
      "{}, expected {}",
      case_, what, difference, tolerance_, differing, expected.size(), worst, actual[worst], expected[worst]);
  const bool is_flip =
      difference < most_by_a_flip(effect) && (effect == Effect::several_steps || differing < expected.size());
  if (!is_flip || (flipped_ && !flipped_in_case_)) {
    ADD_FAILURE() << text << (is_flip ? "; another case differs too, so it is no single flipped ReLU" : "");
    return;
  }
  std::cout << "a flipped ReLU? " << text << std::endl;
  flipped_ = flipped_in_case_ = true;
}

}  // namespace vitrine::test
