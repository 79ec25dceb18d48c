// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/plan_timing.h"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>

#include "runtime/cuda/check.h"
#include "runtime/cuda/native.h"
#include "runtime/error.h"

namespace vitrine::cuda {
namespace {

// A plan that takes this many times the best time is not run again.
constexpr double kTooSlow = 2.0;

/// An event with a time.
class TimedEvent {
 public:
  TimedEvent() { VITRINE_CUDA_CHECK(cudaEventCreate(&event_)); }
  ~TimedEvent() { cudaEventDestroy(event_); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;
  void record(cudaStream_t stream) { VITRINE_CUDA_CHECK(cudaEventRecord(event_, stream)); }
  /// Microseconds from `begin` to this event. requires that both are reached
  double since(const TimedEvent& begin) const {
    float milliseconds = 0;
    VITRINE_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin.event_, event_));
    return double{milliseconds} * 1000.0;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

using Events = std::array<TimedEvent, kTimedRuns + 1>;

/// Times `runs` runs in a row.
std::vector<double> time_runs(const TimedCandidate& candidate, int runs, cudaStream_t stream, Events& events) {
  events[0].record(stream);
  for (int i = 0; i < runs; ++i) {
    candidate.run();
    events[static_cast<size_t>(i) + 1].record(stream);
  }
  VITRINE_CUDA_CHECK(cudaStreamSynchronize(stream));
  std::vector<double> times;
  for (size_t i = 0; i < static_cast<size_t>(runs); ++i) times.push_back(events[i + 1].since(events[i]));
  return times;
}

/// Median of the times in microseconds. Nothing if it took too long to be the best.
std::optional<double> median_time(const TimedCandidate& candidate, std::optional<double> best, cudaStream_t stream,
                                  Events& events) {
  candidate.run();  // loads its kernels
  std::vector<double> times = time_runs(candidate, 1, stream, events);
  if (best && times.front() > kTooSlow * *best) return std::nullopt;
  for (const double time : time_runs(candidate, kTimedRuns - 1, stream, events)) times.push_back(time);
  std::nth_element(times.begin(), times.begin() + kTimedRuns / 2, times.end());
  return times[kTimedRuns / 2];
}

}  // namespace

int time_candidates(ExecContext& ctx, const std::string& operation, const std::vector<TimedCandidate>& candidates) {
  auto& tuner = ctx.plans().get<PlanTuner>();
  VITRINE_ASSERT(tuner.searches(), "plans are timed by tune_plans()");
  const cudaStream_t stream = native_stream(ctx);
  TuneResult& result = tuner.result();
  Events events;
  TunedPlan chosen;
  chosen.operation = operation;
  std::optional<double> best;
  int best_index = -1;
  for (size_t i = 0; i < candidates.size() && !tuner.out_of_time(); ++i) {
    std::optional<double> median;
    try {
      median = median_time(candidates[i], best, stream, events);
    } catch (const CudaError&) {
      // The GPU itself may have failed: that is thrown here. Otherwise it was the plan, and the next one may serve.
      VITRINE_CUDA_CHECK(cudaStreamSynchronize(stream));
      ++result.failed_candidates;
      continue;
    }
    ++chosen.candidates;
    if (i == 0) chosen.first_microseconds = *median;
    if (!median || (best && *median >= *best)) continue;
    best = median;
    best_index = static_cast<int>(i);
  }
  if (best) {
    chosen.microseconds = *best;
  } else if (tuner.out_of_time()) {
    for (size_t i = 0; i < candidates.size() && best_index < 0; ++i) {
      try {
        candidates[i].run();
        best_index = static_cast<int>(i);
      } catch (const CudaError&) {
        VITRINE_CUDA_CHECK(cudaStreamSynchronize(stream));
        ++result.failed_candidates;
      }
    }
    VITRINE_CUDA_CHECK(cudaStreamSynchronize(stream));
    if (best_index >= 0)
      result.notes.push_back(fmt::format("time ran out before {}: it has the library's choice", operation));
  }
  if (best_index < 0) return -1;
  chosen.plan = candidates[static_cast<size_t>(best_index)].plan;
  result.plans.put(std::move(chosen));
  if (best) ++result.timed;
  return best_index;
}

}  // namespace vitrine::cuda
