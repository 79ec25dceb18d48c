// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <vitrine/runtime/comm/reduce_op.h>
#include <vitrine/runtime/device.h>

namespace vitrine {

/// One rank's end of a group of ranks, in NCCL's manner: every rank calls the same collectives in the same order, each with its own views on
/// its own stream (`ctx`, which may be the device's communication or compute context); work is asynchronous. Sums are added in rank order, so results
/// have the same bits on every rank and in every run. Reductions take f32, f16, bf16 (in one process combined in
/// f32 and rounded once; NCCL rounds at each hop) and i32; copies take any dtype. Counts are rows along dimension 0; zero is fine.
/// On CUDA devices the ranks meet on the host while they issue, so each rank's collectives must be issued by a thread of its own; one that waits for
/// its peers longer than DeviceGroupOptions::comm_timeout_ms throws CommError naming them.
///   bytes_moved of each call is booked in ctx's open span: what this rank sends or receives.
/// throws  ShapeError, DtypeError on views that cannot be meant; CommError from the stream's synchronize() when ranks disagree (operation, bytes,
/// root or counts), or after abort().
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// "in-process, 4 ranks": for logs.
  virtual std::string description() const = 0;

  /// output becomes the sum (or what `op` says) over all ranks of input; output may be input.
  virtual void all_reduce(ExecContext& ctx, ConstView input, View output, ReduceOp op) = 0;
  void all_reduce(ExecContext& ctx, ConstView input, View output) { all_reduce(ctx, input, output, ReduceOp::sum); }
  void all_reduce(ExecContext& ctx, View inout) { all_reduce(ctx, inout, inout); }
  /// On the root, output becomes the sum (or what `op` says) over all ranks of input; output may be input; elsewhere output is ignored.
  virtual void reduce(ExecContext& ctx, ConstView input, View output, int root, ReduceOp op) = 0;
  void reduce(ExecContext& ctx, ConstView input, View output, int root) { reduce(ctx, input, output, root, ReduceOp::sum); }
  /// Every rank's output becomes the root's input; output may be input; elsewhere input is ignored.
  virtual void broadcast(ExecContext& ctx, ConstView input, View output, int root) = 0;
  void broadcast(ExecContext& ctx, View inout, int root) { broadcast(ctx, inout, inout, root); }
  /// input (size * n, ...): rank r's output (n, ...) becomes the sum (or what `op` says) of all ranks' rows [r * n, (r + 1) * n); it may be those
  /// rows of its input.
  virtual void reduce_scatter(ExecContext& ctx, ConstView input, View output, ReduceOp op) = 0;
  void reduce_scatter(ExecContext& ctx, ConstView input, View output) { reduce_scatter(ctx, input, output, ReduceOp::sum); }
  /// input (n, ...): every rank's output (size * n, ...) becomes the inputs in rank order; input may be this rank's rows of output.
  virtual void all_gather(ExecContext& ctx, ConstView input, View output) = 0;
  /// Rank r's output (counts[r], ...) becomes its rows of the root's input (sum of counts, ...), and may be them; input is ignored elsewhere.
  virtual void scatter(ExecContext& ctx, ConstView input, std::span<const int64_t> counts, View output, int root) = 0;
  /// The root's output (sum of counts, ...) becomes the inputs (counts[r], ...) in rank order; output is ignored elsewhere.
  virtual void gather(ExecContext& ctx, ConstView input, std::span<const int64_t> counts, View output, int root) = 0;
  /// input and output (size * n, ...): rows [s * n, (s + 1) * n) of rank r's output become rows [r * n, (r + 1) * n) of rank s's input. The output
  /// must not overlap the input.
  virtual void all_to_all(ExecContext& ctx, ConstView input, View output) = 0;
  /// Rank `to`'s output becomes this rank's input, and this rank's output the input of rank `from`, which names this rank as its `to`; all inputs and
  /// outputs of the group have one shape, and the output must not overlap the input. -1 for `to` or `from`: this rank sends or receives nothing, and
  /// that view is ignored. Like every collective, all ranks call it, with several processes each with at least one of the views.
  virtual void send_receive(ExecContext& ctx, ConstView input, int to, View output, int from) = 0;
  virtual void barrier(ExecContext& ctx) = 0;

  /// Ends every collective that waits for a peer, on all ranks of the group, now and later, with CommError(reason). From any thread.
  virtual void abort(const std::string& reason) = 0;
  /// Why the group is broken (an abort, an asynchronous error of its library), or empty. Never blocks; from any thread.
  virtual std::string failure() { return {}; }
};

/// One communicator for each device of the group, in order, among the devices of all processes of its process group: in-process for CPU devices,
/// nothing but bookkeeping on meta; for GPUs NCCL, or, where logical devices share a GPU or NCCL is not built in, direct access to the peers' memory.
/// CPU devices of several processes exchange over MPI. throws UnsupportedError naming what cannot meet and the remedy; CommError when ranks do not
/// meet in time.
std::vector<std::unique_ptr<Communicator>> make_communicators(DeviceGroup& devices);

/// "2.28.9"; empty where NCCL is not built in.
std::string nccl_version();

}  // namespace vitrine
