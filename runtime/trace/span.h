// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace vitrine {

/// Level of tracing: nothing, the phases of a step, or also every operation.
enum class TraceLevel : uint8_t { off, phase, operation };

/// Named parts of a training step. `recompute` is the second computation of activation checkpointing, within backward
/// and not part of it. `decide` checks the reduced gradients, decides whether the step is taken, clips them and updates
/// the loss scale. `checkpoint` is the copy of the training state to the host. `wait` is time in which a stream waited
/// for another stream, a peer or the host. `step` marks the start of a step on a compute stream and lasts no time.
enum class Phase : uint8_t {
  data,
  stage,
  scatter,
  preprocess,
  replicate,
  forward,
  gather,
  loss,
  scatter_grad,
  backward,
  recompute,
  reduce,
  decide,
  optimizer,
  cast,
  broadcast,
  evaluate,
  checkpoint,
  setup,
  wait,
  step,
};
inline constexpr int kPhaseCount = 21;
/// "forward", "scatter_grad", ...
const char* phase_name(Phase phase);

/// Description of a span, given when it is opened. Strings are literals or outlive the tracer's user (layer names of a
/// model).
struct SpanInfo {
  Phase phase = Phase::setup;
  const char* layer = "";      // name of the layer, or empty
  const char* operation = "";  // kernel or collective, or empty for a whole phase
  const char* cause = "";      // for Phase::wait: what it waited for; "cpu:2 in all_reduce" for a late peer
  int64_t step = 0;
};

/// A closed span. Times are nanoseconds on the host's steady clock.
struct SpanRecord {
  SpanInfo info;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t bytes = 0;  // moved within the span
  int depth = 0;      // 0: outermost
};

/// Current time in nanoseconds on the clock of the spans.
int64_t steady_now_ns();

}  // namespace vitrine
