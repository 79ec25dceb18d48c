// SPDX-License-Identifier: Apache-2.0
#include "tools/program/run/evaluate.h"

#include <cstring>
#include <numeric>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "runtime/error.h"
#include "tools/program/run/batches.h"
#include "tools/program/run/interrupt.h"
#include "tools/program/run/warnings.h"
#include "tools/program/text/progress.h"

namespace vitrine::tools {

namespace {

// How many batches lie between two synchronizations of the processes: none gets far ahead, a hanging process is
// detected, and all end together.
constexpr int64_t kExchanges = 16;
constexpr int64_t kTopClasses = 5;

/// The sums over all processes; `stop_votes` counts those that were interrupted.
StepResult sum_over_processes(ProcessGroup& process_group, const StepResult& mine) {
  const std::vector<double> sums = process_group.sum(
      "what the evaluation found", {mine.loss_sum, static_cast<double>(mine.valid), static_cast<double>(mine.correct),
                                    static_cast<double>(mine.top5), static_cast<double>(mine.stop_votes)});
  StepResult all;
  all.loss_sum = sums[0];
  all.valid = static_cast<int64_t>(sums[1]), all.correct = static_cast<int64_t>(sums[2]);
  all.top5 = static_cast<int64_t>(sums[3]), all.stop_votes = static_cast<int>(sums[4]);
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
  Run run = open_run(std::move(devices), job, config, evaluate_workload(options, job),
                     {weights,
                      {.allow_non_finite = options.allow_non_finite, .strip_prefix = options.strip_prefix},
                      options.weights.empty() ? "" : "--weights"});
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
  BatchSource source(job.data.test, config);
  Progress progress(label, batches, {options.quiet, options.command == Options::Command::eval ? options.log_every : 0});
  StepResult sum, recent;
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
    recent.add_totals(batch);
    if (matrix) {
      const std::span<const int32_t> labels(item->labels.as<int32_t>(), static_cast<size_t>(item->labels.numel()));
      matrix->add(labels, std::span(*wanted).subspan(logits != nullptr ? before : 0));
    }
    outputs.counts.push_back(outputs.values.size() - before);
    if (++done % interval != 0 && done < batches) continue;
    recent.stop_votes = interrupted() ? 1 : 0;
    if (!alone) recent = sum_over_processes(*run.devices->process_group(), recent);
    if (recent.stop_votes > 0) return std::nullopt;
    sum.add_totals(recent);
    recent = {};
    progress.update(done, sum.valid, sum.mean_loss());
  }
  if (logits != nullptr)
    *logits = alone ? std::move(outputs.values) : gather_outputs(*run.devices->process_group(), outputs);
  if (!losses.empty()) {
    if (!alone) losses = run.devices->process_group()->sum("the losses of leaves", losses);
    sum.loss_sum = std::accumulate(losses.begin(), losses.end(), 0.0);
  }
  VITRINE_ASSERT(sum.valid == job.data.test.size(), "every sample is evaluated once");
  Evaluation result;
  result.loss = sum.mean_loss();
  result.accuracy = static_cast<double>(sum.correct) / static_cast<double>(sum.valid);
  if (job.model.classes > kTopClasses) result.top5 = static_cast<double>(sum.top5) / static_cast<double>(sum.valid);
  if (matrix && !alone) matrix->sum_over_processes(*run.devices->process_group());
  result.confusion = std::move(matrix);
  result.samples = sum.valid;
  result.seconds = static_cast<double>(steady_now_ns() - begin) * 1e-9;
  return result;
}

}  // namespace vitrine::tools
