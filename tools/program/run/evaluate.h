// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/program/record/confusion.h"
#include "tools/program/run/run.h"

namespace vitrine::tools {

struct Evaluation {
  double loss = 0;      // mean over samples
  double accuracy = 0;  // 0 to 1
  std::optional<double>
      top5;  // share of samples whose class is among the five largest outputs; nothing for 5 classes or fewer
  std::optional<ConfusionMatrix> confusion;
  int64_t samples = 0, skipped = 0;  // that counted, and of --skip-damaged
  double seconds = 0;
};

/// "  top-5 accuracy 0.9876": what follows an accuracy. Empty without it.
std::string describe_top5(const std::optional<double>& top5);

/// A run that only evaluates, with the weights of a file or checkpoint. throws as open_run().
Run open_evaluation(const Options& options, const Job& job, std::unique_ptr<DeviceGroup> devices,
                    const std::string& weights);

/// Evaluates every sample of the test set once, over all processes. Returns nothing if the program was interrupted in
/// any process.
///   confusion  count the confusion matrix
///   logits  if not null: receives the outputs of all samples, in order (with several processes, on rank 0); NaN for
///           those that are skipped
/// throws  DataError if an image cannot be read, in all processes
std::optional<Evaluation> evaluate_test_set(const Options& options, const Job& job, Run& run, const std::string& label,
                                            bool confusion, std::vector<float>* logits = nullptr);

}  // namespace vitrine::tools
