// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/program/record/record.h"
#include "tools/program/text/tables.h"

/// Results of a reproduction: figures by configuration, and the published ones. The terminal, the JSON and the page
/// show the same.
namespace vitrine::tools {

SeedSpread spread_over(const std::vector<double>& values);

/// The nine configurations; some have no accuracy or no time.
const std::vector<PublishedFigure>& published_figures();

/// Whether the devices were measured in training: not if the process that ended the run trained no step.
bool has_measurements(const RunRecord& run);
/// Seconds of training over all epochs, without evaluation; nothing if the log lacks epochs.
std::optional<double> training_seconds(const RunRecord& run);
/// Samples per second of the measured steps, which are those after a process's first; nothing without any.
std::optional<double> training_rate(const RunRecord& run);
/// Accuracy of the last saved epoch; nothing without one.
std::optional<double> final_accuracy(const RunRecord& run);

/// The configurations in the order of their first runs. requires RunRecord::reproduced of every run
std::vector<ConfigurationSummary> summarize(const std::vector<RunRecord>& runs);

// Tables of a record with summaries (conclude()).
/// One row for each configuration and each set of its devices with the same memory.
Table reproduction_table(const Record& record);
/// The spread over seeds; nothing for one seed.
std::optional<Table> seeds_table(const Record& record);
/// Test accuracy of each saved epoch, evaluated from its files: a row for each epoch, a column for each run. Nothing
/// without one.
std::optional<Table> saved_epochs_table(const Record& record);
/// With --as-published: the published figures beside those of this reproduction. Nothing otherwise.
std::optional<Table> published_table(const Record& record);
/// Peak memory of each run's devices; devices that agree share a row.
Table peaks_table(const Record& record);
/// A sentence for each run that did not end well.
std::vector<std::string> run_problems(const Record& record);
/// The record with those runs only that have measurements of their devices, and without summaries.
Record measured_runs(const Record& record);

/// How the published conditions differ from good practice, and what follows.
const std::vector<std::string>& published_conditions();

/// "3 h 20 min", "21 min 30 s", "42 s", "0.8 s".
std::string format_duration(double seconds);

}  // namespace vitrine::tools
