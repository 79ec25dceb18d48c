// SPDX-License-Identifier: Apache-2.0
#include "tools/program/record/reproduction.h"

#include <algorithm>

#include <fmt/format.h>

namespace vitrine::tools {

const std::vector<PublishedFigure>& published_figures() {
  static const std::vector<PublishedFigure> figures = {{"single", "fp32", 0.8191, 22},
                                                       {"single", "fp16:none", 0.8403, 21},
                                                       {"single", "fp16:dynamic", std::nullopt, 27},
                                                       {"dp", "fp32", 0.8216, std::nullopt},
                                                       {"dp", "fp16:none", 0.8188, std::nullopt},
                                                       {"dp", "fp16:dynamic", 0.8409, std::nullopt},
                                                       {"ddp", "fp32", 0.8224, std::nullopt},
                                                       {"ddp", "fp16:none", 0.8162, std::nullopt},
                                                       {"ddp", "fp16:dynamic", 0.8252, std::nullopt}};
  return figures;
}

bool is_complete(const RunRecord& run) { return run.reproduced->state == "complete"; }

double training_seconds(const RunRecord& run) {
  double seconds = 0.0;
  for (const EpochRecord& epoch : run.epochs) seconds += epoch.seconds;
  return seconds;
}

std::vector<ConfigurationSummary> summarize(const std::vector<RunRecord>& runs) {
  std::vector<ConfigurationSummary> all;
  for (const RunRecord& run : runs) {
    const ReproducedRun& of = *run.reproduced;
    const std::string name = of.configuration();
    if (std::ranges::any_of(all, [&](const ConfigurationSummary& summary) { return summary.name == name; })) continue;
    ConfigurationSummary& summary = all.emplace_back();
    summary.name = name, summary.mode = of.mode, summary.precision = of.precision;
  }
  for (ConfigurationSummary& summary : all) {
    std::vector<double> accuracies, seconds;
    for (size_t i = 0; i < runs.size(); ++i) {
      const RunRecord& run = runs[i];
      const ReproducedRun& of = *run.reproduced;
      if (of.configuration() != summary.name) continue;
      ++summary.runs;
      summary.skipped_steps += of.skipped_steps;
      for (const EpochRecord& epoch : run.epochs) {
        if (epoch.test_accuracy > (summary.best ? summary.best->test_accuracy : std::nullopt)) summary.best = epoch;
      }
      const bool measured = measured_steps(run.devices) > 0;
      if (!run.devices.empty() && (!summary.shown || (measured && measured_steps(runs[*summary.shown].devices) == 0)))
        summary.shown = i;
      if (!is_complete(run)) {
        std::vector<std::string>& states = summary.unfinished;
        if (std::ranges::find(states, of.state) == states.end()) states.push_back(of.state);
        continue;
      }
      accuracies.push_back(run.epochs.back().test_accuracy.value_or(0.0));
      seconds.push_back(training_seconds(run));
      summary.rates.rounds.insert(summary.rates.rounds.end(), run.rates.rounds.begin(), run.rates.rounds.end());
    }
    summary.accuracy = spread_of(accuracies);
    summary.seconds = spread_of(seconds);
    for (const PublishedFigure& figure : published_figures()) {
      if (summary.mode == figure.mode && summary.precision == figure.precision) summary.published = &figure;
    }
  }
  return all;
}

std::vector<std::string> run_problems(const Record& record) {
  std::vector<std::string> problems;
  for (const RunRecord& run : record.runs) {
    const ReproducedRun& of = *run.reproduced;
    if (of.state == "diverged") problems.push_back(fmt::format("{} diverged: {}", run.name, run.diverged));
    if (of.state == "failed") problems.push_back(fmt::format("{} failed: {}", run.name, of.failure));
  }
  return problems;
}

Record measured_runs(const Record& record) {
  Record measured = record;
  measured.summaries.clear();  // they refer to the runs of the whole record
  std::erase_if(measured.runs, [](const RunRecord& run) { return measured_steps(run.devices) == 0; });
  return measured;
}

const std::vector<std::string>& published_conditions() {
  static const std::vector<std::string> conditions = {
      "The output layer has 1000 outputs for 10 classes: 990 of them have no sample, and their weights and optimizer "
      "state take memory and time for nothing. Good practice: one output for each class.",
      "Pixels are not normalized: inputs lie between 0 and 1 instead of having mean 0 and deviation 1. Good practice: "
      "subtract the mean and divide by the deviation of the training set.",
      "Samples are not shuffled: every epoch has the same batches in the same order. Good practice: a new order in "
      "each epoch.",
      "The plateau schedule watches the training loss of the last batch of an epoch: one batch, which may be a short "
      "one, is mostly noise, and training loss does not show overfitting. Good practice: the loss on held-out data.",
      "World size 1: dp and ddp run on one device, so their times show what the schemes cost, and no speed-up. All "
      "modes compute the same gradient, so differences in accuracy between them come from rounding and random numbers. "
      "Good practice: at least two devices.",
      "One run for each figure: differences of the size of the spread between seeds mean nothing. Good practice: "
      "several seeds (--seeds 3)."};
  return conditions;
}

}  // namespace vitrine::tools
