// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <optional>
#include <vector>

#include "data/loader.h"
#include "nn/parallel/engine.h"
#include "runtime/trace/span.h"

namespace vitrine::tools {

/// The loader's batches in the form the engine takes. Times how long the host waits for each.
class BatchSource {
 public:
  /// The data set must outlive it.
  BatchSource(const Dataset& dataset, LoaderConfig config) : loader_(dataset, std::move(config)) {}

  /// The next batch, or nothing at the end. The wait for it is recorded under `step`.
  ///   ahead  so many batches after it are waited for, too: see error_ahead()
  std::optional<HostBatch> next(int64_t step, int64_t ahead = 0);
  /// What the last call found wrong with the batches after its own; null: nothing.
  const std::exception_ptr& error_ahead() const { return error_ahead_; }
  /// What is wrong with one of the next batches; null: nothing.
  std::exception_ptr error_within(int64_t count) { return loader_.error_within(count); }
  /// The waits since the last call.
  std::vector<SpanRecord> take_spans();

 private:
  Loader loader_;
  std::vector<SpanRecord> spans_;
  std::exception_ptr error_ahead_;
};

}  // namespace vitrine::tools
