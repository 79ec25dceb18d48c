// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "nn/parallel/engine.h"

/// Trainings that have the same outcome in one process and in several: both sides of the test know them by their place in the list.
namespace vitrine::test {

struct EngineCase {
  std::string name;
  uint32_t seed = 0;  // of model and batches
  int64_t batch_size = 12;
  int accumulate = 1;
  std::vector<double> weights = {};  // of devices; empty: equal split. Those of fewer devices come first
  Precision precision = {};
  double ignored = 0.3;
  double tolerance = 1e-5;  // of the parameters, relative to one device's
};

std::vector<EngineCase> engine_cases();

struct EngineResult {
  std::vector<float> parameters;
  std::vector<double> losses;
  std::vector<double> evaluation;  // the sum of the losses, valid targets, right ones; over all devices
  bool operator==(const EngineResult&) const = default;
};

/// Five steps of SGD, the last on a shorter batch, and an evaluation, on this process's rows of batches that all processes draw alike. Asserts that
/// memory peaked as planned, and throws CommError when replicas differ.
EngineResult run_engine_case(const EngineCase& engine_case, DeviceGroup& devices);

void save_result(const std::string& path, const EngineResult& result);
/// An empty one when there is no such file.
EngineResult load_result(const std::string& path);

}  // namespace vitrine::test
