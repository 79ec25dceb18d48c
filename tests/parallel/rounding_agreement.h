// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace vitrine::test {

/// Compares results that may differ by the order of sums. Rounding may open a ReLU on one side that is closed on the
/// other, because its input is nearly 0; the gradients of that sample then differ by more than rounding. One such case
/// is accepted and printed; a second one fails the test.
class Agreement {
 public:
  /// Over how many steps a flipped ReLU had an effect.
  enum class Effect {
    one_step,      // only gradients of layers before the ReLU differ: some elements must agree
    several_steps  // everything differs a little
  };

  /// tolerance  of ||actual - expected|| / ||expected|| without a flipped ReLU
  explicit Agreement(double tolerance) : tolerance_(tolerance) {}

  /// What is compared from here on belongs to one run or one step, in which a ReLU is flipped or not.
  void begin_case(std::string name);
  /// Fails with the number of elements that differ, and the one that differs most.
  void expect(const std::vector<float>& actual, const std::vector<float>& expected, Effect effect,
              const std::string& what);
  /// Whether a ReLU was flipped in any case so far, or in the current one.
  bool flipped() const { return flipped_; }
  bool flipped_in_case() const { return flipped_in_case_; }

 private:
  double tolerance_;
  std::string case_;
  bool flipped_ = false, flipped_in_case_ = false;
};

}  // namespace vitrine::test
