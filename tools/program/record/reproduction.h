// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/program/record/record.h"

/// Results of a reproduction: figures by configuration, and the published ones. The terminal, the JSON and the page
/// show the same.
namespace vitrine::tools {

/// The nine configurations; some have no accuracy or no time.
const std::vector<PublishedFigure>& published_figures();

bool is_complete(const RunRecord& run);
/// Seconds of training over all epochs, without evaluation.
double training_seconds(const RunRecord& run);

/// The configurations in the order of their first runs. requires RunRecord::reproduced of every run
std::vector<ConfigurationSummary> summarize(const std::vector<RunRecord>& runs);

/// A sentence for each run that did not end well.
std::vector<std::string> run_problems(const Record& record);
/// The record with those runs only that have measurements of their devices, and without summaries.
Record measured_runs(const Record& record);

/// How the published conditions differ from good practice, and what follows.
const std::vector<std::string>& published_conditions();

}  // namespace vitrine::tools
