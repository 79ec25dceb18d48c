// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "data/dataset.h"
#include "kernels/image.h"
#include "nn/model.h"

namespace vitrine::tools {

/// The data and the model of a run.
struct Job {
  DatasetPair data;
  Model model;
  Normalization normalization;
  /// With --skip-damaged, the images of both sets that are skipped; else null.
  std::shared_ptr<UnreadSamples> skipped_train = {}, skipped_test = {};
  std::optional<uint64_t> model_hash;  // of the layers of a model that comes from a file
};

/// "alexnet"; for a model from a file its name and a hash of its layers.
std::string identify_model(const Job& job);
/// The data set, by which settings are compared: "cifar10, 50000 and 10000 images 32x32x3, hash 0123456789abcdef". The
/// hash covers all labels of both sets and the pixels of part of their samples (fingerprint()); the path may differ
/// between machines.   throws  DataError
std::string identify_data(const Job& job);

}  // namespace vitrine::tools
