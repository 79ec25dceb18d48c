// SPDX-License-Identifier: Apache-2.0
#include "tools/evaluate.h"

#include <cstring>
#include <utility>

#include "runtime/error.h"
#include "tools/batches.h"
#include "tools/interrupt.h"
#include "tools/progress.h"

namespace vitrine::tools {

namespace {

/// What a process found of its part.
struct Part {
  double loss_sum = 0;
  int64_t valid = 0, correct = 0;
  int64_t interrupted = 0;
};

/// The sum over all processes.
Part sum_over_world(World& world, const Part& mine) {
  Part sum;
  for (const std::string& bytes : world.all_gather("what the evaluation found", std::string(reinterpret_cast<const char*>(&mine), sizeof mine))) {
    Part part;
    if (bytes.size() != sizeof part) throw CommError("evaluation: another process found something else; do all run the same version?");
    std::memcpy(&part, bytes.data(), sizeof part);
    sum.loss_sum += part.loss_sum;
    sum.valid += part.valid;
    sum.correct += part.correct;
    sum.interrupted += part.interrupted;
  }
  return sum;
}

/// All processes' outputs of one batch, in batch order, on rank 0.
void gather_logits(Run& run, std::vector<float>& all, std::vector<float>& mine) {
  const std::vector<std::string> parts = run.devices->world()->all_gather(
      "the outputs of a batch", std::string(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(float)));
  mine.clear();
  if (run.devices->process() != 0) return;
  // Processes' rows follow each other: an evaluation batch is one micro-batch.
  for (const std::string& part : parts) {
    const size_t before = all.size();
    all.resize(before + part.size() / sizeof(float));
    std::memcpy(all.data() + before, part.data(), part.size());
  }
}

}  // namespace

std::optional<Evaluation> evaluate_test_set(const Options& options, const Job& job, Run& run, const std::string& label, std::vector<float>* logits) {
  const LoaderConfig config = evaluate_loader_config(options, job, run);
  const int64_t batches = (job.data.test.size() + config.batch_size - 1) / config.batch_size;
  const bool alone = run.devices->process_count() == 1;
  const int64_t begin = steady_now_ns();
  BatchSource source(job.data.test, config);
  Progress progress(label, batches, {options.quiet, options.command == Options::Command::eval ? options.log_every : 0});
  Part sum;
  std::vector<float> part_logits;
  for (int64_t done = 0; const auto item = source.next(done);) {
    const Totals totals = run.engine->evaluate(item->batch, alone ? logits : logits != nullptr ? &part_logits : nullptr);
    if (!alone && logits != nullptr) gather_logits(run, *logits, part_logits);
    Part part{totals.loss_sum, totals.valid, totals.correct, interrupted() ? 1 : 0};
    // Batch by batch: so no process gets far ahead of the others, who hangs is noticed, and all end together.
    if (!alone) part = sum_over_world(*run.devices->world(), part);
    if (part.interrupted > 0) return std::nullopt;
    sum.loss_sum += part.loss_sum;
    sum.valid += part.valid;
    sum.correct += part.correct;
    progress.update(++done, sum.valid, sum.loss_sum / static_cast<double>(sum.valid));
  }
  VITRINE_ASSERT(sum.valid == job.data.test.size(), "every sample is evaluated once");
  Evaluation result;
  result.loss = sum.loss_sum / static_cast<double>(sum.valid);
  result.accuracy = static_cast<double>(sum.correct) / static_cast<double>(sum.valid);
  result.samples = sum.valid;
  result.seconds = static_cast<double>(steady_now_ns() - begin) * 1e-9;
  return result;
}

}  // namespace vitrine::tools
