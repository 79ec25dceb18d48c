// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/process_group/process_group.h"
#include "tools/program/text/terminal.h"

namespace vitrine::tools {

/// How often samples of each class were predicted as each class.
class ConfusionMatrix {
 public:
  explicit ConfusionMatrix(int64_t classes) : classes_(classes), counts_(static_cast<size_t>(classes * classes), 0) {}

  int64_t classes() const { return classes_; }
  int64_t count(int64_t actual, int64_t predicted) const {
    return counts_[static_cast<size_t>(actual * classes_ + predicted)];
  }
  /// Counts samples: labels (N), logits (N, classes). The first largest logit is the prediction; a sample with NaN
  /// among its logits has none. A negative label does not count.
  void add(std::span<const int32_t> labels, std::span<const float> logits);
  /// Sums the counts of all processes, in each of them.
  void sum_over_processes(ProcessGroup& process_group);

  /// A table for up to 20 classes, the most frequent confusions for more.   class_names  empty, or one for each class
  std::string report(const std::vector<std::string>& class_names, const Style& style) const;
  /// [[count of class 0 predicted as 0, 1, ...], ...]
  nlohmann::ordered_json json() const;

 private:
  int64_t total(int64_t actual) const;

  int64_t classes_;
  std::vector<int64_t> counts_;
};

}  // namespace vitrine::tools
