// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/program/report/train_report.h"

namespace vitrine::tools {

/// Samples per second in each round.
struct Rates {
  std::vector<double> rounds;

  double median() const;
  double least() const;
  double most() const;
  /// "1,234 ±2 %": median, and half of the range between the rounds.
  std::string str() const;
};
/// Whether every round of `fast` was faster than every one of `slow`, and the medians are a few percent apart. Never so with a single round: noise is
/// not known then.
bool is_faster(const Rates& fast, const Rates& slow);

/// What was measured under one scheme.
struct SchemeFigures {
  std::string name;   // "ddp", "ddp fp16"
  std::string batch;  // "16+16"
  Rates rates;
  double gradient_difference = 0;  // not finite where it overflowed
  int64_t skipped_steps = 0;
  FindingsInput figures;
};

/// Several schemes side by side.
struct CompareReport {
  std::string title;
  std::string command_line;
  Facts facts;
  std::string outside;   // what lies outside the pools
  std::string rounding;  // what rounding alone may do to gradients
  std::vector<SchemeFigures> schemes;
};

html::Page compare_page(const CompareReport& report);

/// Which scheme is fastest, and which are within noise of it. Nothing for fewer than two.
std::optional<Finding> compare_speed(const std::vector<SchemeFigures>& schemes);
/// The same, and which holds least on its fullest device. Empty for fewer than two.
std::vector<Finding> compare_findings(const std::vector<SchemeFigures>& schemes);

}  // namespace vitrine::tools
