// SPDX-License-Identifier: Apache-2.0
#include "tools/evaluate.h"

#include "tools/batches.h"
#include "tools/interrupt.h"
#include "tools/progress.h"

namespace vitrine::tools {

std::optional<Evaluation> evaluate_test_set(const Options& options, const Job& job, Engine& engine, const std::string& label,
                                            std::vector<float>* logits) {
  const LoaderConfig config = evaluate_loader_config(options, job);
  const int64_t batches = (job.data.test.size() + config.batch_size - 1) / config.batch_size;
  const int64_t begin = steady_now_ns();
  BatchSource source(job.data.test, config);
  Progress progress(label, batches);
  Totals sum;
  for (int64_t done = 0; const auto item = source.next(done);) {
    if (interrupted()) return std::nullopt;
    const Totals totals = engine.evaluate(item->batch, logits);
    sum.loss_sum += totals.loss_sum;
    sum.valid += totals.valid;
    sum.correct += totals.correct;
    progress.update(++done, sum.valid, sum.mean_loss());
  }
  Evaluation result;
  result.loss = sum.mean_loss();
  result.accuracy = static_cast<double>(sum.correct) / static_cast<double>(sum.valid);
  result.samples = sum.valid;
  result.seconds = static_cast<double>(steady_now_ns() - begin) * 1e-9;
  return result;
}

}  // namespace vitrine::tools
