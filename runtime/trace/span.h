// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace vitrine {

/// How much is timed: nothing, the phases of a step, or every operation too.
enum class TraceLevel : uint8_t { off, phase, operation };

/// The named parts of a training step. `recompute` is what activation checkpointing computes a second time, within backward and no part of it. `wait`
/// is time in which a stream waited for another one, for a peer or for the host; `step` marks the start of a step on a compute stream and lasts no
/// time.
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
  unscale,
  optimizer,
  cast,
  broadcast,
  evaluate,
  setup,
  wait,
  step,
};
inline constexpr int kPhaseCount = 20;
/// "forward", "scatter_grad", ...
const char* phase_name(Phase phase);

/// What a span says of itself when it is opened. Strings are literals or live as long as the tracer's user (layer names of a model).
struct SpanInfo {
  Phase phase = Phase::setup;
  const char* layer = "";      // name of the layer, or empty
  const char* operation = "";  // kernel or collective, or empty for a whole phase
  const char* cause = "";      // for Phase::wait: what was waited for; "cpu:2 in all_reduce" where a peer is late
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

/// Nanoseconds on the clock that spans use.
int64_t steady_now_ns();

}  // namespace vitrine
