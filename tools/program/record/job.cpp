// SPDX-License-Identifier: Apache-2.0
#include "tools/program/record/job.h"

#include <vector>

#include <fmt/format.h>

#include "runtime/hash.h"

namespace vitrine::tools {

namespace {

/// A hash of all labels, and of the pixels of some samples.
uint64_t hash_data(const DatasetPair& data) {
  uint64_t hash = 0;
  std::vector<int32_t> labels;
  for (const Dataset* const set : {&data.train, &data.test}) {
    const uint64_t pixels = fingerprint(*set);
    hash = hash_bytes(hash, &pixels, sizeof pixels);
    if (set->sequence_length > 0) {  // the tokens are the labels
      hash = hash_bytes(hash, set->characters.data(), static_cast<int64_t>(set->characters.size()));
      continue;
    }
    labels.clear();
    labels.reserve(static_cast<size_t>(set->size()));
    for (int64_t i = 0; i < set->size(); ++i) labels.push_back(set->label(i));
    hash = hash_bytes(hash, labels.data(), static_cast<int64_t>(labels.size() * sizeof(int32_t)));
  }
  return hash;
}

}  // namespace

std::map<std::string, std::string> weights_metadata(const Job& job) {
  std::map<std::string, std::string> metadata = {{"format", "pt"}, {"model", job.model.name}};
  if (!job.data.train.characters.empty()) metadata[kCharacters] = job.data.train.characters;
  return metadata;
}

Tokens tokens_of(const Job& job) { return {job.data.train.sequence_length, job.data.train.bytes_per_token}; }

std::string identify_model(const Job& job) {
  return job.model_hash ? fmt::format("{} (layers {:016x})", job.model.name, *job.model_hash) : job.model.name;
}

std::string identify_data(const Job& job) {
  const Dataset& train = job.data.train;
  if (train.sequence_length > 0) {
    return fmt::format("{}, {} and {} sequences of {} tokens, hash {:016x}", train.name, train.size(),
                       job.data.test.size(), train.sequence_length, hash_data(job.data));
  }
  return fmt::format("{}, {} and {} images {}x{}x{}, hash {:016x}", train.name, train.size(), job.data.test.size(),
                     train.height, train.width, train.channels, hash_data(job.data));
}

}  // namespace vitrine::tools
