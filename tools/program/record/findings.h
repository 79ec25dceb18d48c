// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tools/program/record/record.h"

namespace vitrine::tools {

// Fill findings, stages and speed from the runs. A command calls it when the record has all of its runs;
// renderers compute nothing.
void conclude(TrainingRecord& record);
void conclude(PlanRecord& record);
void conclude(ComparisonRecord& record);

/// "large": at least a quarter of the step or of the capacity; "moderate": at least a tenth; else "small"; "harmless"
/// for memory of a device that has much to spare; "result" for what costs nothing.
const char* severity_of(const Finding& finding);
/// "large, 32 % of its capacity"; empty for a result.
std::string describe_cost(const Finding& finding);
/// What "large" and "moderate" mean.
std::string describe_severities();
/// The text of a plan, or of runs, without findings. It claims no more than was
/// judged.
std::string no_findings(const PlanRecord& record);
std::string no_findings(std::span<const RunRecord> runs);

/// The device that waits longest; none if it does not wait for long, or if the steps do not show it.
const DeviceRecord* longest_waiting(const RunRecord& run);

/// What costs most comes first. Empty when nothing stands out.
std::vector<Finding> find_findings(const RunRecord& run);

/// Those that do not need a measurement: memory. Empty when nothing stands out.
std::vector<Finding> plan_findings(const RunRecord& plan);

/// What each stage of sharding in the runs saves and costs beside the one below: `stage_below`, or the run under it.
std::vector<Finding> stage_findings(std::span<const RunRecord> runs, int processes,
                                    const std::optional<RunRecord>& stage_below = {});

/// RunRecord::first_bucket_begins of a device's step. Nothing if the step has no backward or no bucket.
std::optional<double> first_bucket_begin(const StepView& view);

/// The finding of one rule of findings.cpp, by its name; nothing where it does not apply.
///   requires  that there is such a rule
std::optional<Finding> apply_rule(std::string_view name, const RunRecord& run);
/// Memory of the fullest devices, bytes of collectives, and speed where both runs have enough rounds.
Finding compare_stages(const RunRecord& run, const RunRecord& stage_below);

/// Whether every round of `fast` was faster than every round of `slow`, and the medians differ by more than either
/// range of rounds and by more than a few percent. False with fewer than four rounds, which do not show the noise.
bool is_faster(const Rates& fast, const Rates& slow);
/// The peak of the fullest device; 0 without devices.
int64_t fullest_bytes(const RunRecord& run);
/// The runs of a comparison by speed, and by what their fullest device holds. requires a run
struct Extremes {
  const RunRecord *slowest, *fastest, *least, *most;
};
Extremes extremes_of(const std::vector<RunRecord>& runs);
/// Whether there are enough rounds to tell differences in speed from noise.
bool judges_speeds(const std::vector<RunRecord>& runs);
/// The names of the other runs than which `fastest` is not faster.
std::vector<std::string> within_noise_of(const RunRecord& fastest, const std::vector<RunRecord>& runs);
/// The fastest of the others, without those.   requires  is_faster() than one of them
const RunRecord& runner_up(const RunRecord& fastest, const std::vector<RunRecord>& runs);
/// The fastest scheme of a comparison, and those within noise of it. Nothing for fewer than two.
std::optional<Finding> compare_speed(const std::vector<RunRecord>& runs);
/// compare_speed(), and the scheme whose fullest device holds least. Empty for fewer than two.
std::vector<Finding> compare_findings(const std::vector<RunRecord>& runs);
/// compare_findings(), then what is not small in single runs, under the run's name. Results come first, then what costs
/// most. A remedy that is one of the runs, or was refused, is not proposed.
std::vector<Finding> comparison_findings(const std::vector<RunRecord>& runs,
                                         const std::vector<RunRecord>& refused = {});

}  // namespace vitrine::tools
