// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "nn/parallel/engine.h"

/// Training runs with the same result in one process and in several. Both sides of the test refer to them by index.
namespace vitrine::test {

struct EngineCase {
  std::string name;
  uint32_t seed = 0;  // of model and batches
  int64_t batch_size = 12;
  int accumulate = 1;
  std::vector<double> weights = {};  // of devices; empty: equal split. Fewer devices use the first ones
  Precision precision = {};
  double ignored = 0.3;
  double tolerance = 1e-5;  // of parameters, states and losses, relative to one device's
  bool batch_norm = false;  // a residual network; its running statistics count as parameters
  /// With sharded states: adamw and averages of the parameters; states are compared after they were saved, overwritten
  /// and loaded.
  const char* mode = "ddp";
  int leaves = 0;  // above 0: exact mode
  bool update_in_backward = false;
  double state_tolerance = 0.0;  // of the states; 0: tolerance
};

std::vector<EngineCase> engine_cases();

struct EngineResult {
  std::vector<float> parameters, states;  // states: with gradients, where they are sharded
  std::vector<double> losses;
  std::vector<double> evaluation;  // sum of the losses, valid targets, correct ones; over all devices
  bool operator==(const EngineResult&) const = default;
};

/// Runs five steps of SGD, the last one on a shorter batch, and an evaluation, on this process's rows of batches that
/// are the same in all processes. Asserts that the memory peak is as planned; throws CommError if replicas differ.
EngineResult run_engine_case(const EngineCase& engine_case, DeviceGroup& devices);

void save_result(const std::string& path, const EngineResult& result);
/// Returns an empty result if there is no such file.
EngineResult load_result(const std::string& path);

}  // namespace vitrine::test
