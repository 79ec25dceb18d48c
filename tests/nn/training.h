// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "nn/model.h"

namespace vitrine::test {

/// A training run on one CPU device that uses only layers, kernels and tensors.
struct TrainingJob {
  std::string model;
  int64_t samples = 0;  // per step
  int64_t image_size = 0;
  double lr = 0.0;
  double momentum = 0.0;
  int steps = 0;
  int early_steps = 0;         // first steps after which the buffers are kept
  bool random_images = false;  // the formula of record_resnet.py, else that of record_losses.py
};

struct TrainingResult {
  std::vector<double> losses;  // mean loss of every step
  /// Saved buffers by name, after the last step.
  std::map<std::string, std::vector<float>> buffers;
  /// Likewise after each of the first TrainingJob::early_steps steps.
  std::vector<std::map<std::string, std::vector<float>>> early_buffers;
};

/// Weights come from initialize() with seed 0, where normal distributions are replaced by uniform ones with their
/// deviation; images and labels from a formula.
TrainingResult train(const TrainingJob& job);

/// Runs the recorded job of a residual network: every loss and every recorded running statistic is as close to
/// PyTorch's in double precision as PyTorch's own in f32, up to a factor. Running statistics after the first steps are
/// those in double precision to 1e-5.
void expect_recorded_resnet(const std::string& model);

/// Runs the recorded job of that name for the recorded number of steps and compares every loss with PyTorch's, to 1e-4
/// relative.
void expect_recorded_losses(const std::string& model);

}  // namespace vitrine::test
