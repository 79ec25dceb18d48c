// SPDX-License-Identifier: Apache-2.0
// Runs recorded operations in scratch tensors, so that the libraries choose their plans.
#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>

#include "kernels/conv2d.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/plan_tuner.h"
#include "kernels/recorded_operations.h"
#include "runtime/copy.h"
#include "runtime/cuda/check.h"
#include "runtime/cuda/native.h"
#include "runtime/error.h"
#include "runtime/trace/span.h"

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

namespace vitrine {
namespace {

/// The pool has no room for the operands of an operation.
struct NoRoom {};

Tensor scratch(ExecContext& ctx, const Shape& shape, DType dtype) {
  Tensor tensor;
  try {
    tensor = ctx.allocate(shape, dtype, Category::workspace, "operand of a timed operation");
  } catch (const UnsupportedError&) {  // of a reserved pool
    throw NoRoom();
  }
  zero(ctx, tensor);
  return tensor;
}

void run(ExecContext& ctx, const RecordedConv2d& c) {
  const Tensor x = scratch(ctx, c.x, c.dtype), y = scratch(ctx, c.y, c.dtype);
  if (c.pass == Conv2dPass::backward_weight) {
    // A separate kernel computes the gradient of the bias; it has no plans.
    const Tensor w = scratch(ctx, c.w, DType::f32);
    return conv2d_backward_weight(ctx, c.config, x, y, w, {},
                                  c.accumulate ? GradMode::accumulate : GradMode::overwrite);
  }
  const Tensor w = scratch(ctx, c.w, c.dtype);
  if (c.pass == Conv2dPass::backward_data) return conv2d_backward_data(ctx, c.config, y, w, x);
  const Tensor bias = c.bias ? scratch(ctx, {c.w[0]}, c.dtype) : Tensor();
  conv2d_forward(ctx, c.config, x, w, bias, y);
}

void run(ExecContext& ctx, const RecordedProduct& p) {
  using cuda::Epilogue;
  const Epilogue epilogue = p.row_sums ? Epilogue::row_sums : p.bias ? Epilogue::bias : Epilogue::none;
  const cuda::Matmul product{p.m, p.n, p.k, p.transpose_a, p.transpose_b, p.dtype, p.c_dtype, p.accumulate, epilogue};
  const Tensor a = scratch(ctx, {p.m, p.k}, p.dtype), b = scratch(ctx, {p.k, p.n}, p.dtype),
               c = scratch(ctx, {p.m, p.n}, p.c_dtype);
  const Tensor bias = p.bias || p.row_sums ? scratch(ctx, {p.row_sums ? p.m : p.n}, p.c_dtype) : Tensor();
  const View a_view = a, b_view = b, c_view = c, bias_view = bias;
  ctx.dispatch(
      {"timed product", {a_view, b_view, c_view}, {c_view, bias_view}}, [] {},
      [&] { cuda::matmul(ctx, product, a_view.data, b_view.data, c_view.data, bias_view.data, ctx.workspace()); });
}

/// Runs the operation; notes it instead where its operands have no room in the pool.
template <class Operation>
void run_or_note(ExecContext& ctx, const Operation& operation, const std::string& name) {
  try {
    run(ctx, operation);
  } catch (const NoRoom&) {
    ctx.plans().get<PlanTuner>().result().notes.push_back(fmt::format(
        "{}: its operands do not fit into the {} bytes that are planned for {}, so it has the library's choice", name,
        ctx.pool().statistics().reserved_bytes, ctx.pool().device_name()));
  }
  ctx.stream().synchronize();
}

std::string name_of(const RecordedProduct& p) { return fmt::format("a product of m {} n {} k {}", p.m, p.n, p.k); }

}  // namespace

TuneResult tune_plans(ExecContext& ctx, const std::vector<std::string>& operations, const TunedPlans& known,
                      int64_t workspace_bytes, double most_seconds, Setting workspace_setting) {
  if (ctx.backend() != Backend::cuda)
    throw UnsupportedError("tune_plans: " + ctx.device().str() +
                           " is not a GPU, so its libraries have no plans to time");
  VITRINE_ASSERT(!ctx.workspace(), "a workspace is reserved while plans are timed");
  RecordedOperations recorded;
  for (const std::string& line : operations) recorded.add_line(line);
  const OnDevice on_device(ctx);
  auto& tuner = ctx.plans().get<PlanTuner>();
  ctx.reserve_workspace(workspace_bytes, workspace_setting);
  tuner.begin(known, steady_now_ns() + static_cast<int64_t>(most_seconds * 1e9));
  const auto end = [&] {
    ctx.release_workspace();
    return tuner.end();
  };
  try {
    for (const auto& [key, convolution] : recorded.convolutions) run_or_note(ctx, convolution, convolution.str());
    for (const auto& [product, unused] : recorded.products) run_or_note(ctx, product, name_of(product));
  } catch (...) {
    end();
    throw;
  }
  return end();
}

}  // namespace vitrine
