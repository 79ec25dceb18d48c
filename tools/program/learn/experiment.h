// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace vitrine::tools::lab {

/// A known bug of data-parallel training that can be planted in a small computation on CPU devices, and the number that
/// says how wrong the result is. Its texts and bounds are in planted_bugs.json.
struct Experiment {
  std::string name;
  std::string question;               // that it answers
  std::string bug;                    // what is done wrong when it is planted
  std::string measures;               // what the number is
  std::string axis;                   // in what the settings differ
  std::vector<std::string> settings;  // the mildest first
  double harm = 0;                    // under the last setting the planted bug is wrong by more than this
  double noise = 0;                   // without the bug the result is wrong by at most this, under every setting
  std::string notice;                 // how to notice it in PyTorch code
  std::string link;                   // where it happened, or where it is documented
  /// The wrongness under a setting, with the bug or without it: computed by each call, 0 is right. throws Error.
  std::function<double(size_t setting, bool planted)> wrongness;
};

/// The wrongness under each setting.
struct Result {
  const Experiment* experiment = nullptr;
  std::vector<double> planted, without;

  /// Of the last setting, with the bug; and the largest without it.
  double most_planted() const;
  double most_without() const;
  /// Whether the bug does harm when it is planted, and there is none without it.
  bool as_stated() const;
};

/// The content of planted_bugs.json.
std::string_view planted_bugs();
/// All experiments, in the order in which they are shown.
const std::vector<Experiment>& experiments();
std::vector<std::string> experiment_names();
/// requires  a name of experiment_names()
const Experiment& experiment(const std::string& name);

/// Computes every setting with the bug and without it. throws Error.
Result run(const Experiment& experiment);

// Experiment::wrongness of each bug, in the file of its subject.
double measure_average_of_averages(size_t setting, bool planted);   // averages.cpp
double measure_micro_batch_means(size_t setting, bool planted);     // averages.cpp
double measure_divided_twice(size_t setting, bool planted);         // averages.cpp
double measure_kept_outputs(size_t setting, bool planted);          // memory.cpp
double measure_gathered_at_once(size_t setting, bool planted);      // memory.cpp
double measure_loaded_on_device_0(size_t setting, bool planted);    // memory.cpp
double measure_same_epoch_seed(size_t setting, bool planted);       // samples.cpp
double measure_padded_evaluation(size_t setting, bool planted);     // samples.cpp
double measure_batch_norm_per_shard(size_t setting, bool planted);  // layers.cpp
double measure_repeated_dropout(size_t setting, bool planted);      // layers.cpp
double measure_clip_before_unscale(size_t setting, bool planted);   // updates.cpp
double measure_skip_on_one_rank(size_t setting, bool planted);      // updates.cpp
double measure_l2_under_adam(size_t setting, bool planted);         // updates.cpp
double measure_missing_event(size_t setting, bool planted);         // order.cpp

}  // namespace vitrine::tools::lab
