// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/run.h"

namespace vitrine::tools {

struct Evaluation {
  double loss = 0;      // mean over samples
  double accuracy = 0;  // 0 to 1
  int64_t samples = 0;
  double seconds = 0;
};

/// Every sample of the test set once. Nothing when the program was interrupted.
///   logits  if not null: gains the outputs of all samples, in order
std::optional<Evaluation> evaluate_test_set(const Options& options, const Job& job, Engine& engine, const std::string& label,
                                            std::vector<float>* logits = nullptr);

}  // namespace vitrine::tools
