// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <vitrine/runtime/comm/reduce_op.h>
#include <vitrine/runtime/device.h>
#include <vitrine/runtime/reason.h>

namespace vitrine {

/// One rank's end of a group of ranks, as in NCCL: every rank calls the same collectives in the same order, each with
/// its own views on its own stream (`ctx`, the device's communication or compute context). Work is asynchronous. Sums
/// are added in rank order, so results have the same bits on every rank and in every run. Reductions support f32, f16,
/// bf16 (in one process combined in f32 and rounded once; NCCL rounds at each hop) and i32; copies support any dtype.
/// Counts are rows along dimension 0 and may be zero. On CUDA devices the ranks synchronize on the host while they
/// issue, so each rank must issue its collectives from a separate thread; there, a rank that waits for its peers longer
/// than DeviceGroupOptions::comm_timeout_ms throws CommError naming them. CPU devices of one process have no deadline:
/// synchronize() waits until every rank has issued the collective, or abort(). The bytes that this rank sends or
/// receives (bytes_moved) count towards ctx's open span. throws  ShapeError, DtypeError for invalid views; CommError
/// from the stream's synchronize() if the ranks disagree
///         (operation, bytes, root or counts) or after abort()
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// "in-process, 4 ranks", for logs.
  virtual std::string description() const = 0;

  /// output becomes the sum (or another `op`) of input over all ranks. output may be input.
  virtual void all_reduce(ExecContext& ctx, ConstView input, View output, ReduceOp op) = 0;
  void all_reduce(ExecContext& ctx, ConstView input, View output) { all_reduce(ctx, input, output, ReduceOp::sum); }
  void all_reduce(ExecContext& ctx, View inout) { all_reduce(ctx, inout, inout); }
  /// On the root, output becomes the sum (or another `op`) of input over all ranks; output may be input. Elsewhere
  /// output is ignored.
  virtual void reduce(ExecContext& ctx, ConstView input, View output, int root, ReduceOp op) = 0;
  void reduce(ExecContext& ctx, ConstView input, View output, int root) {
    reduce(ctx, input, output, root, ReduceOp::sum);
  }
  /// Every rank's output becomes the root's input. output may be input. Elsewhere input is ignored.
  virtual void broadcast(ExecContext& ctx, ConstView input, View output, int root) = 0;
  void broadcast(ExecContext& ctx, View inout, int root) { broadcast(ctx, inout, inout, root); }
  /// input (size * n, ...): rank r's output (n, ...) becomes the sum (or another `op`) of all ranks' rows [r * n, (r +
  /// 1) * n). It may be those rows of its input.
  virtual void reduce_scatter(ExecContext& ctx, ConstView input, View output, ReduceOp op) = 0;
  void reduce_scatter(ExecContext& ctx, ConstView input, View output) {
    reduce_scatter(ctx, input, output, ReduceOp::sum);
  }
  /// input (n, ...): every rank's output (size * n, ...) becomes the inputs in rank order. input may be this rank's
  /// rows of output.
  virtual void all_gather(ExecContext& ctx, ConstView input, View output) = 0;
  /// Every rank's output becomes the sum of all contributions along the tree over leaves (runtime/leaf_tree.h).
  /// Contributions travel as they are, and each element is added by one rank: the result has the same bits however the
  /// leaves are distributed over ranks and processes.
  ///   contributions  of all ranks, the same on every rank, with ascending nodes; 1 to TreeOrder::kMostNodes
  ///   inputs         this rank's, in the order of its nodes; f32, f16 or bf16. output may be one of them
  /// throws  ConfigError (contributions)
  virtual void tree_all_reduce(ExecContext& ctx, std::span<const Contribution> contributions,
                               std::span<const ConstView> inputs, View output) = 0;
  /// tree_all_reduce() without its second half: inputs (size * n, ...); rank r's output (n, ...) becomes rows
  /// [r * n, (r + 1) * n) of the sum, and may be those rows of one of its inputs.
  virtual void tree_reduce_scatter(ExecContext& ctx, std::span<const Contribution> contributions,
                                   std::span<const ConstView> inputs, View output) = 0;
  /// Rank r's output (counts[r], ...) becomes its rows of the root's input (sum of counts, ...), and may be those rows.
  /// input is ignored elsewhere.
  virtual void scatter(ExecContext& ctx, ConstView input, std::span<const int64_t> counts, View output, int root) = 0;
  void scatter(ExecContext& ctx, ConstView input, std::initializer_list<int64_t> counts, View output, int root) {
    scatter(ctx, input, std::span(counts.begin(), counts.size()), output, root);
  }
  /// The root's output (sum of counts, ...) becomes the inputs (counts[r], ...) in rank order. output is ignored
  /// elsewhere.
  virtual void gather(ExecContext& ctx, ConstView input, std::span<const int64_t> counts, View output, int root) = 0;
  void gather(ExecContext& ctx, ConstView input, std::initializer_list<int64_t> counts, View output, int root) {
    gather(ctx, input, std::span(counts.begin(), counts.size()), output, root);
  }
  /// input and output (size * n, ...): rows [s * n, (s + 1) * n) of rank r's output become rows [r * n, (r + 1) * n) of
  /// rank s's input. The output must not overlap the input.
  virtual void all_to_all(ExecContext& ctx, ConstView input, View output) = 0;
  /// Sends input to rank `to` and receives output from rank `from`, which must name this rank as its `to`. All inputs
  /// and outputs of the group have one shape; output must not overlap input. -1 for `to` or `from`: this rank sends or
  /// receives nothing, and that view is ignored. Like every collective, all ranks call it; with several processes each
  /// passes at least one of the views.
  virtual void send_receive(ExecContext& ctx, ConstView input, int to, View output, int from) = 0;
  virtual void barrier(ExecContext& ctx) = 0;

  /// Aborts pending and later collectives on all ranks of the group with CommError(reason). Thread-safe.
  virtual void abort(const Reason& reason) = 0;
  /// Why the group is broken (an abort, an asynchronous error of its library), or empty. Never blocks; thread-safe.
  virtual Reason failure() { return {}; }
};

/// Creates one communicator for each device of the group, in order; ranks count the devices of all processes. CPU
/// devices of one process communicate in memory, of several processes over MPI. GPUs use NCCL or, if logical
/// devices share a GPU or NCCL is not built in, direct access to peer memory. On meta there is only bookkeeping. throws
/// UnsupportedError naming the incompatible devices and the remedy; CommError if ranks do not join in time.
std::vector<std::unique_ptr<Communicator>> make_communicators(DeviceGroup& devices);

/// The most CPU devices of one process that communicate.
inline constexpr int kMostCpuDevices = 64;

/// Version of NCCL, such as "2.28.9"; empty if NCCL is not built in.
std::string nccl_version();

}  // namespace vitrine
