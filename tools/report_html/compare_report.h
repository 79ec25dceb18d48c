// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/report_html/train_report.h"

namespace vitrine::tools {

/// What was measured under one scheme.
struct SchemeFigures {
  std::string name;   // "ddp", "ddp fp16"
  std::string batch;  // "16+16"
  double samples_per_second = 0;
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

/// Which scheme is fastest, and which holds least on its fullest device. Empty for fewer than two.
std::vector<Finding> compare_findings(const std::vector<SchemeFigures>& schemes);

}  // namespace vitrine::tools
