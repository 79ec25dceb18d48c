// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <vitrine/runtime/exec_context.h>
#include <vitrine/runtime/reason.h>

namespace vitrine {

/// What a CPU's libraries answered when they were asked for the workspace of operations, for plans that are made where
/// they cannot be asked (EngineConfig::workspace_record). What was not asked has no answer.
class WorkspaceRecord {
 public:
  /// Bytes of one operation: with `best` it runs at full speed; if these are too many it uses up to `other` (below 0:
  /// that was not asked), and at least `least`.
  struct Answer {
    int64_t best = 0, other = 0, least = 0;
    bool operator==(const Answer&) const = default;
  };

  /// library  whose answers these are: "oneDNN 2.6.3, AMD EPYC"
  explicit WorkspaceRecord(std::string library = "no library") : library_(std::move(library)) {}
  const std::string& library() const { return library_; }

  /// operation  without the dimension that grows with the batch, which is `size`
  void add(const std::string& operation, int64_t size, const Answer& answer) { answers_[operation][size] = answer; }
  std::optional<Answer> find(const std::string& operation, int64_t size) const;

  /// A line for each operation. Sizes at equal distances that have the same answer share an entry.
  std::string text() const;
  /// throws DataError
  static WorkspaceRecord parse(const std::string& text);

 private:
  std::string library_;
  std::map<std::string, std::map<int64_t, Answer>> answers_;
};

/// The device whose libraries are asked for their needs.
struct WorkspaceTarget {
  DeviceId device;       // a GPU: cuDNN's plans for it, which nothing runs; any other: the CPU's libraries
  int thread_count = 1;  // of a CPU device: libraries need scratch for each thread
  bool tf32 = false;     // of a GPU: its convolutions may round f32 to TF32
  const WorkspaceRecord* record = nullptr;  // of a CPU device: answers instead of the libraries
};

/// An operation whose best algorithm needs more workspace than allowed.
struct WorkspaceShortage {
  std::string operation;  // "conv2d_forward x (512, 227, 227, 3) w (64, 11, 11, 3) stride 4 pad 2, bf16"
  int64_t needed_bytes = 0;
  bool operator==(const WorkspaceShortage&) const = default;
};

struct WorkspaceNeed {
  int64_t best_bytes = 0;   // every operation runs by the best algorithm that needs at most the allowed bytes; 0: no
                            // operation needs a workspace
  int64_t least_bytes = 0;  // with less, an operation could not run at all
  std::vector<WorkspaceShortage> shortages;  // largest first
  Reason unknown;                            // why cuDNN could not be asked, or what the record lacks; empty: nothing
};

/// The workspace that the convolutions and products issued to a meta context so far would use on a device, where
/// `allowed_bytes` is the most that it can have. Asks the libraries, whose choice depends on the shapes, the processor
/// or GPU, its threads, and the libraries' versions.
///   recorded  a context of a meta device
WorkspaceNeed workspace_need(ExecContext& recorded, const WorkspaceTarget& target, int64_t allowed_bytes);

/// throws OutOfMemory if the context's workspace is too small for any of these operations, as that would which needs
/// most. Not checked on GPUs, whose libraries tell it when they run.
void require_workspace(ExecContext& recorded, const WorkspaceTarget& target);

/// Whether convolutions were issued to the meta context so far: on a GPU only cuDNN is asked.
bool has_convolutions(ExecContext& recorded);

/// Adds what the CPU's libraries answer for these operations.   requires  a target that is a CPU device
void record_workspace(ExecContext& recorded, const WorkspaceTarget& target, int64_t allowed_bytes,
                      WorkspaceRecord& record);

}  // namespace vitrine
