// SPDX-License-Identifier: Apache-2.0
#include "tools/program/run/evaluate.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "runtime/error.h"
#include "tools/program/process/interrupt.h"
#include "tools/program/run/batches.h"
#include "tools/program/run/unread.h"
#include "tools/program/run/warnings.h"
#include "tools/program/text/progress.h"

namespace vitrine::tools {

namespace {

// How many batches lie between two synchronizations of the processes: none gets far ahead, a hanging process is
// detected, and all end together.
constexpr int64_t kExchanges = 16;
constexpr int64_t kTopClasses = 5;

/// What some batches have added.
struct Part {
  StepResult totals;
  int64_t skipped = 0;      // samples
  int64_t interrupted = 0;  // processes
  int64_t failed = 0;       // processes that could not read an image
};

/// The sums over all processes.
Part sum_over_processes(ProcessGroup& process_group, const Part& mine) {
  const std::vector<double> sums = process_group.sum(
      "what the evaluation found",
      {mine.totals.loss_sum, static_cast<double>(mine.totals.valid), static_cast<double>(mine.totals.correct),
       static_cast<double>(mine.totals.top5), static_cast<double>(mine.skipped), static_cast<double>(mine.interrupted),
       static_cast<double>(mine.failed)});
  const auto count = [&](size_t i) { return static_cast<int64_t>(sums[i]); };
  Part all;
  all.totals.loss_sum = sums[0];
  all.totals.valid = count(1), all.totals.correct = count(2), all.totals.top5 = count(3);
  all.skipped = count(4), all.interrupted = count(5), all.failed = count(6);
  return all;
}

/// This process's outputs of all batches, and their number in each batch.
struct Outputs {
  std::vector<float> values;
  std::vector<size_t> counts;
};

/// All processes' outputs on rank 0, batch by batch: a batch's rows follow each other in rank order.
std::vector<float> gather_outputs(ProcessGroup& process_group, const Outputs& mine) {
  const std::string counts(reinterpret_cast<const char*>(mine.counts.data()), mine.counts.size() * sizeof(size_t));
  const std::vector<std::string> counts_of = process_group.gather("the sizes of outputs", counts);
  const std::vector<std::string> values_of = process_group.gather(
      "the outputs",
      std::string(reinterpret_cast<const char*>(mine.values.data()), mine.values.size() * sizeof(float)));
  std::vector<float> all;
  std::vector<size_t> taken(values_of.size(), 0);
  for (size_t batch = 0; batch < mine.counts.size(); ++batch) {
    for (size_t r = 0; r < values_of.size(); ++r) {
      size_t count = 0;
      if (counts_of[r].size() != counts.size())
        throw CommError("evaluation: another process evaluated other batches; do all run the same version?");
      std::memcpy(&count, counts_of[r].data() + batch * sizeof count, sizeof count);
      const size_t bytes = count * sizeof(float), before = all.size();
      if (values_of[r].size() - taken[r] < bytes)
        throw CommError("evaluation: another process sent too few outputs; do all run the same version?");
      all.resize(before + count);
      if (bytes > 0) std::memcpy(all.data() + before, values_of[r].data() + taken[r], bytes);
      taken[r] += bytes;
    }
  }
  return all;
}

}  // namespace

std::string describe_top5(const std::optional<double>& top5) {
  return top5 ? fmt::format("  top-5 accuracy {:.4f}", *top5) : std::string();
}

Run open_evaluation(const Options& options, const Job& job, std::unique_ptr<DeviceGroup> devices,
                    const std::string& weights) {
  EngineConfig config = engine_config(options, job, scheme_preset("ddp"), resolve_precision(options));
  config.forward_only = true;
  Run run =
      open_run(std::move(devices), job, config, evaluate_workload(options, job),
               {weights, {.allow_non_finite = options.allow_non_finite}, options.weights.empty() ? "" : "--weights"});
  print_warnings(options, workspace_warnings(run.engine->facts().plans.front()));
  return run;
}

std::optional<Evaluation> evaluate_test_set(const Options& options, const Job& job, Run& run, const std::string& label,
                                            bool confusion, std::vector<float>* logits) {
  const LoaderConfig config = evaluate_loader_config(options, job, run);
  const int64_t batches = (job.data.test.size() + config.batch_size - 1) / config.batch_size;
  const bool alone = run.devices->process_count() == 1;
  const int64_t interval = alone ? 1 : (batches + kExchanges - 1) / kExchanges;
  const int64_t begin = steady_now_ns();
  // An image that cannot be read ends the evaluation in all processes together.
  const auto unread = std::make_shared<UnreadSamples>();
  const Dataset test = skip_unread(job.data.test, unread, SkippedErrors::any);
  BatchSource source(test, config);
  Progress progress(label, batches, {options.quiet, options.command == Options::Command::eval ? options.log_every : 0});
  const int64_t targets_per_sample = test.targets_per_sample();
  Part sum, recent;
  std::vector<double> losses;  // exact mode: of each leaf, over all batches, in this process
  Outputs outputs;
  std::vector<float> batch_logits;
  std::optional<ConfusionMatrix> matrix;
  if (confusion) matrix.emplace(job.model.classes);
  for (int64_t done = 0; const auto item = source.next(done);) {
    const size_t before = outputs.values.size();
    batch_logits.clear();
    std::vector<float>* const wanted = logits != nullptr ? &outputs.values : &batch_logits;
    StepResult batch = run.engine->evaluate(*item, logits != nullptr || confusion ? wanted : nullptr);
    losses.resize(batch.leaf_losses.size());
    for (size_t i = 0; i < losses.size(); ++i) losses[i] += batch.leaf_losses[i];
    batch.leaf_losses.clear();
    recent.totals.add_totals(batch);
    const std::span<const int32_t> labels(item->labels.as<int32_t>(), static_cast<size_t>(item->labels.numel()));
    const auto classes = static_cast<size_t>(job.model.classes);
    for (size_t row = 0; row < labels.size(); ++row) {
      if (labels[row] != kIgnoredLabel) continue;
      ++recent.skipped;
      if (logits != nullptr)
        std::ranges::fill(std::span(outputs.values).subspan(before + row * classes, classes), std::nanf(""));
    }
    if (matrix) matrix->add(labels, std::span(*wanted).subspan(logits != nullptr ? before : 0));
    outputs.counts.push_back(outputs.values.size() - before);
    if (++done % interval != 0 && done < batches) continue;
    const std::vector<std::exception_ptr> errors = unread->errors();
    recent.interrupted = interrupted() ? 1 : 0;
    recent.failed = errors.empty() ? 0 : 1;
    if (!alone) recent = sum_over_processes(*run.devices->process_group(), recent);
    if (recent.interrupted > 0) return std::nullopt;
    if (recent.failed > 0) {
      throw DataError(first_error(run.devices->process_group(), errors.empty() ? "" : describe_unread(errors.front())));
    }
    sum.totals.add_totals(recent.totals);
    sum.skipped += recent.skipped;
    recent = {};
    progress.update(done, sum.totals.valid / targets_per_sample, sum.totals.mean_loss());
  }
  if (logits != nullptr)
    *logits = alone ? std::move(outputs.values) : gather_outputs(*run.devices->process_group(), outputs);
  StepResult& totals = sum.totals;
  if (!losses.empty()) {
    if (!alone) losses = run.devices->process_group()->sum("the losses of leaves", losses);
    totals.loss_sum = std::accumulate(losses.begin(), losses.end(), 0.0);
  }
  VITRINE_ASSERT(totals.valid + sum.skipped == test.size() * targets_per_sample, "every sample is evaluated once");
  if (totals.valid == 0)
    throw DataError(fmt::format("{}: none of its {} images can be decoded", test.name, test.size()));
  Evaluation result;
  result.loss = totals.mean_loss();
  result.accuracy = static_cast<double>(totals.correct) / static_cast<double>(totals.valid);
  if (job.model.classes > kTopClasses)
    result.top5 = static_cast<double>(totals.top5) / static_cast<double>(totals.valid);
  if (matrix && !alone) matrix->sum_over_processes(*run.devices->process_group());
  result.confusion = std::move(matrix);
  result.samples = totals.valid / targets_per_sample;
  result.skipped = sum.skipped;
  result.seconds = static_cast<double>(steady_now_ns() - begin) * 1e-9;
  return result;
}

}  // namespace vitrine::tools
