// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/memory/timeline.h"
#include "runtime/trace/step_view.h"
#include "tools/program/measure.h"

namespace vitrine::tools {

/// What figures tell, in plain words, and the option that changes it.
struct Finding {
  std::string text;
  std::string remedy;  // "`--workers 4` loads with more threads"; options stand in backquotes
};

/// The figures that findings come from, those of all processes.
struct FindingsInput {
  Scheme scheme;
  int64_t batch_size = 0;
  int accumulate = 1;
  int workers = 1;
  bool host_preprocess = false;
  int64_t bucket_bytes = 0, first_bucket_bytes = 0;
  std::vector<DeviceFigures> figures;
  std::vector<PhaseTable> tables;
  std::vector<CommunicationTable> communication;
  std::vector<MemoryTimeline> timelines;  // of one step on the first devices; may be empty
  /// How much of backward was over when the first bucket's reduction began, 0 to 1.
  std::optional<double> first_bucket_begins;
  int64_t steps = 0, skipped_steps = 0;
  std::string diverged;          // why training was stopped; empty when it was not
  int64_t non_finite_steps = 0;  // whose loss was not finite
  int64_t first_non_finite = 0;  // of these, from 0
  double loss_scale = 1;         // at the end
};

/// In order of what they concern: divergence, memory, waiting, communication, loss scale. Empty when nothing stands out.
std::vector<Finding> find_findings(const FindingsInput& input);

/// From one step of a device: see FindingsInput. Nothing where the step has no backward or no bucket.
std::optional<double> first_bucket_begin(const StepView& view);

// Each by itself; nothing where it does not apply.
std::optional<Finding> divergence(const FindingsInput& input);
std::optional<Finding> uneven_memory(const FindingsInput& input);
std::optional<Finding> little_headroom(const FindingsInput& input);
std::optional<Finding> large_workspace(const FindingsInput& input);
std::optional<Finding> waits_for_data(const FindingsInput& input);
std::optional<Finding> waits_for_host(const FindingsInput& input);
std::optional<Finding> idle_device(const FindingsInput& input);
std::optional<Finding> waits_for_peers(const FindingsInput& input);
std::optional<Finding> single_bucket(const FindingsInput& input);
std::optional<Finding> late_first_bucket(const FindingsInput& input);
std::optional<Finding> exposed_communication(const FindingsInput& input);
std::optional<Finding> skipped_steps(const FindingsInput& input);

}  // namespace vitrine::tools
