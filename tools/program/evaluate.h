// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/program/run.h"

namespace vitrine::tools {

struct Evaluation {
  double loss = 0;      // mean over samples
  double accuracy = 0;  // 0 to 1
  int64_t samples = 0;
  double seconds = 0;
};

/// Every sample of the test set once, over all processes. Nothing when the program was interrupted, in any of them.
///   logits  if not null: gains the outputs of all samples, in order (of several processes, on rank 0)
std::optional<Evaluation> evaluate_test_set(const Options& options, const Job& job, Run& run, const std::string& label,
                                            std::vector<float>* logits = nullptr);

}  // namespace vitrine::tools
