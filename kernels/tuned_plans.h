// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <vitrine/runtime/exec_context.h>

/// The choice among the plans that cuDNN and cuBLASLt have for an operation, by time: measured once, kept as text, and
/// used again.
namespace vitrine {

/// The plan that one kind of operation runs by, and how it was chosen.
struct TunedPlan {
  std::string operation;  // library, pass, shapes, dtypes, epilogue, workspace
  std::string plan;       // as the library identifies it
  double microseconds =
      0;  // median of its times; 0: time ran out before a plan was timed, so this is the library's choice
  double first_microseconds = 0;  // of the library's own choice; 0: it was not timed, or failed
  int candidates = 0;             // plans that were timed
  bool operator==(const TunedPlan&) const = default;
};

/// Plans for operations on GPUs of one kind.
struct TunedPlans {
  std::string device;     // tuned_device()
  std::string libraries;  // tuned_libraries()
  int64_t workspace_bytes = 0;
  bool tf32 = false;
  std::vector<TunedPlan> plans;  // ordered by operation, each once
  bool operator==(const TunedPlans&) const = default;

  /// The plan of an operation, or null.
  const TunedPlan* find(const std::string& operation) const;
  /// Adds the plan, or replaces the operation's present one.
  void put(TunedPlan plan);
};

/// "NVIDIA H100 80GB HBM3, compute capability 9.0": GPUs of one kind have the same text. requires a GPU of this machine
std::string tuned_device(DeviceId gpu);
/// "cuDNN 9.14.0, cuBLASLt 13.0.2": a plan is valid for exactly these versions. Loads cuBLASLt.
std::string tuned_libraries();

/// The convolutions and products that were issued to a meta device's context so far, each once, as lines for
/// tune_plans().
std::vector<std::string> recorded_operations(ExecContext& recorded);

/// What tune_plans() did.
struct TuneResult {
  TunedPlans plans;
  int timed = 0, reused = 0;       // kinds of operations
  int failed_candidates = 0;       // plans that the libraries proposed but could not run
  std::vector<std::string> notes;  // what was not timed, and why
  double seconds = 0;              // that it took
};

/// Runs each operation in memory of the context's pool. An operation that `known` has a plan for takes that plan; for
/// each other one all plans that the library proposes and the usual rules allow (deterministic, accurate, within the
/// workspace) are timed with CUDA events: a first run, then the median of kTimedRuns; a plan that takes
/// over twice the time of the best so far runs only twice. All memory is returned to the pool. With alignment below 16
/// bytes an operation has no tuned plan.
///   operations       recorded_operations(), of any devices      known  plans of the same device, libraries, workspace
///                    and tf32
///   workspace_bytes  of the context later; it has none yet      most_seconds  no plan is timed after that; what is
///                    left takes the library's choice
///   workspace_setting  see ExecContext::reserve_workspace()
/// requires  a GPU's context with a reserved pool that is empty. Ends with an idle stream, and with the use of tuned
///           plans off.
/// throws    CudaError; UnsupportedError for a context that is not a GPU's
TuneResult tune_plans(ExecContext& ctx, const std::vector<std::string>& operations, const TunedPlans& known,
                      int64_t workspace_bytes, double most_seconds,
                      Setting workspace_setting = settings::kReserveWorkspace);
inline constexpr int kTimedRuns = 5;

/// Lets the context's operations run by these plans from now on, and all others by the library's choice; null: all by
/// the library's choice. An operation throws CudaError if the library refuses its plan.
void use_tuned_plans(ExecContext& ctx, std::shared_ptr<const TunedPlans> plans);

/// Operations that ran by the library's choice although use_tuned_plans() had plans for others.
std::vector<std::string> untuned_operations(ExecContext& ctx);

}  // namespace vitrine
