// SPDX-License-Identifier: Apache-2.0
#include "tools/program/run/batches.h"

#include <utility>

namespace vitrine::tools {

std::optional<HostBatch> BatchSource::next(int64_t step, int64_t ahead) {
  SpanRecord wait;
  wait.info.phase = Phase::data;
  wait.info.step = step;
  wait.begin_ns = steady_now_ns();
  if (ahead > 0) error_ahead_ = loader_.error_within(ahead + 1);
  std::optional<HostBatch> batch = loader_.next();
  wait.end_ns = steady_now_ns();
  if (!batch) return std::nullopt;
  wait.bytes = batch->images.bytes() + batch->labels.bytes();
  spans_.push_back(wait);
  return batch;
}

std::vector<SpanRecord> BatchSource::take_spans() { return std::exchange(spans_, {}); }

}  // namespace vitrine::tools
