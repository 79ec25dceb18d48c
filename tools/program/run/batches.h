// SPDX-License-Identifier: Apache-2.0
#pragma once

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
  std::optional<HostBatch> next(int64_t step);
  /// The waits since the last call.
  std::vector<SpanRecord> take_spans();

 private:
  Loader loader_;
  std::vector<SpanRecord> spans_;
};

}  // namespace vitrine::tools
