// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "data/dataset.h"
#include "kernels/image.h"
#include "nn/model.h"
#include "tools/program/record/record.h"

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

/// What weights files say of the model: format, model and, of characters:FILE, the characters.
std::map<std::string, std::string> weights_metadata(const Job& job);
/// The key of the characters in it.
inline constexpr const char* kCharacters = "characters";

Tokens tokens_of(const Job& job);

/// "alexnet"; for a model from a file its name and a hash of its layers.
std::string identify_model(const Job& job);
/// The data set, by which settings are compared: "cifar10, 50000 and 10000 images 32x32x3, hash 0123456789abcdef". The
/// hash covers all labels of both sets and the pixels of part of their samples (fingerprint()); the path may differ
/// between machines.   throws  DataError
std::string identify_data(const Job& job);

}  // namespace vitrine::tools
