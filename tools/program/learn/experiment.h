// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace vitrine::tools::lab {

/// A known bug of data-parallel training that can be planted in a small computation on CPU devices, and the number that
/// says how wrong the result is.
struct Experiment {
  const char* name;
  const char* question;               // that it answers
  const char* bug;                    // what is done wrong when it is planted
  const char* measures;               // what the number is
  const char* axis;                   // in what the settings differ
  std::vector<std::string> settings;  // the mildest first
  /// The wrongness under a setting, with the bug or without it: computed by each call, 0 is right. throws Error.
  std::function<double(size_t setting, bool planted)> wrongness;
  double harm;         // under the last setting the planted bug is wrong by more than this
  double noise;        // without the bug the result is wrong by at most this, under every setting
  const char* notice;  // how to notice it in PyTorch code
  const char* link;    // where it happened, or where it is documented
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

/// All experiments, in the order in which they are shown.
const std::vector<Experiment>& experiments();
std::vector<std::string> experiment_names();
/// requires  a name of experiment_names()
const Experiment& experiment(const std::string& name);

/// Computes every setting with the bug and without it. throws Error.
Result run(const Experiment& experiment);

// Each in the file of its subject.
Experiment average_of_averages();   // averages.cpp
Experiment micro_batch_means();     // averages.cpp
Experiment divided_twice();         // averages.cpp
Experiment kept_outputs();          // memory.cpp
Experiment gathered_at_once();      // memory.cpp
Experiment loaded_on_device_0();    // memory.cpp
Experiment same_epoch_seed();       // samples.cpp
Experiment padded_evaluation();     // samples.cpp
Experiment batch_norm_per_shard();  // layers.cpp
Experiment repeated_dropout();      // layers.cpp
Experiment clip_before_unscale();   // updates.cpp
Experiment skip_on_one_rank();      // updates.cpp
Experiment l2_under_adam();         // updates.cpp
Experiment missing_event();         // order.cpp

}  // namespace vitrine::tools::lab
