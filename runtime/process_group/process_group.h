// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <vitrine/runtime/reason.h>

namespace vitrine {

/// A collective as one device began it: the values that must be equal on all devices, and the description for messages.
struct CollectiveRecord {
  uint64_t sequence = 0;   // within its group of communicators, from 0
  uint64_t signature = 0;  // of operation, dtype, counts, root, label and step
  std::string operation;   // "all_reduce"
  std::string label;       // "bucket 3", or empty
  std::string phase;       // "reduce"
  int64_t step = 0;
  int64_t bytes = 0;            // size of a rank's buffer
  int group = 0;                // group of communicators, in order of creation
  bool end_is_reported = true;  // the process group is notified when it is finished
  bool in_graph = false;        // launched in a CUDA graph

  /// "collective 17 (all_reduce of bucket 3, 1048576 bytes, phase reduce, step 5)"; groups other than the first:
  /// "collective 17 of group 1 (...)"; in a CUDA graph: "(..., step 5, in a CUDA graph)".
  std::string str() const;
};

/// Options for joining a process group.
struct ProcessGroupOptions {
  int rank = 0, size = 1;
  /// Rendezvous: "tcp://host:port" (rank 0 listens there), "file:PATH" on a file system that all processes share, or
  /// empty: over MPI, which started the process.
  std::string rendezvous;
  /// Proves that a process belongs to this run; equal on all processes. Required for a rendezvous at a host name or an
  /// address that is not loopback. Otherwise rank 0 generates one and stores it where only this user's processes find
  /// it. See find_secret() in runtime/process_group/launch.h.
  std::string secret = {};
  /// Keeps apart runs that meet at one rendezvous; equal on all processes of a run. See Launch::run_id.
  std::string run_id = {};
  /// All processes are known to run on this machine, so rank 0 listens only on its loopback interface.
  bool one_machine = false;
  /// How long a process may wait for its peers in one collective or exchange. It waits up to five times as long for a
  /// rank that is late until set_warm(), or whose processor time advances, and while data moves; up to 25 times as long
  /// for a rank on an overloaded machine, which has had less processor time than timeout_ms meanwhile.
  int64_t timeout_ms = 60000;
  /// The processor time that this rank has used, in ns; empty: this process's. For ranks that share a process.
  std::function<int64_t()> processor_ns = {};
  /// Exits with status 1 this long after the process group has failed if the process has not ended by itself; 0: never.
  int64_t exit_after_ms = 0;
  /// Called with the reason in the process that detects the failure of the process group (rank 0, or a rank that lost
  /// rank 0), before the others learn of it: they may exit then, and a launcher may end this process. Must not block.
  std::function<void(const Reason&)> on_failure_found = {};
  /// Called on rank 0 with the reason when the processes wait longer than timeout_ms for a rank that is slow, not
  /// stuck. Must not block.
  std::function<void(const Reason&)> on_slow = {};
};

/// The processes of a run, as seen by one of them: small exchanges on the host, and mutual failure detection. A thread
/// keeps a connection to rank 0, reports which collectives this process's devices have begun and finished, and receives
/// the verdict when the process group fails because a process died, hangs, is late, failed, or began a different
/// collective. A failure is final: pending and later calls throw CommError, which names the culprit and its progress.
///   throws  CommError if the processes do not connect in time, ConfigError, UnsupportedError (MPI is not built in)
class ProcessGroup {
 public:
  explicit ProcessGroup(const ProcessGroupOptions& options);

  /// Without a preceding close(), the other processes consider this one dead.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const;
  int size() const;
  /// Index and number of the processes on this machine.
  int local_rank() const;
  int local_size() const;
  /// Identifies this machine.
  const std::string& machine() const;
  /// "4 processes on 2 hosts, connected over MPI", for logs.
  std::string description() const;
  bool over_mpi() const;

  /// Exchanges on the host go through rank 0, with one message in each direction. All processes must call the same ones
  /// in the same order with the same `what`, and all wait for each other. None sends every process's bytes to every
  /// process.
  using MakeAnswer = std::function<std::vector<std::string>(std::vector<std::string>)>;
  /// `answer` runs on rank 0 with all processes' bytes in rank order and returns one answer for all or one for each
  /// rank. Returns this rank's answer.
  std::string exchange(const std::string& what, const std::string& mine, const MakeAnswer& answer);
  /// Returns all processes' bytes in rank order on rank 0, nothing elsewhere.
  std::vector<std::string> gather(const std::string& what, const std::string& mine);
  /// Returns rank 0's bytes.
  std::string broadcast(const std::string& what, const std::string& from_rank0);
  /// Whether all processes have the same bytes; only a hash of them is sent.
  bool all_equal(const std::string& what, std::string_view mine);
  /// Returns the sums over all processes, added in rank order. Integers are exact up to 2^53.
  std::vector<double> sum(const std::string& what, const std::vector<double>& mine);

  /// Names this process's devices; returns the number of devices of each process, in rank order. requires no collective
  /// before
  std::vector<int> register_devices(const std::vector<std::string>& names);
  /// Returns a number for a group of communicators, equal on all processes, which must create the groups in the same
  /// order.
  int new_group();
  /// Called by communicators: device `device` of this process begins a collective, or has finished one more.
  /// Thread-safe.
  void begin_collective(int device, const CollectiveRecord& record);
  void finish_collective(int device);

  /// While one exists, this process waits for its peers in `what`; the process group fails if that takes longer than
  /// the timeout.
  class Waiting {
   public:
    Waiting(ProcessGroup& process_group, std::string what);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    ProcessGroup& process_group_;
    uint64_t id_;
  };

  /// Ends the longer timeout of the first step.
  void set_warm();
  /// Data of a collective has arrived. Thread-safe.
  void note_transfer();
  /// Reports that this process fails, which ends the process group. Returns when the others have been notified and all
  /// handlers have been called, at the latest after one second; likewise if the process group has failed already. The
  /// process may exit afterwards.
  ///   patience_ms  how long to wait for the failure of another process of which this one may be a consequence
  void fail(const Reason& reason, int64_t patience_ms = 0);
  /// Why the process group has failed; empty if it has not. Thread-safe.
  Reason failure() const;
  /// Calls the handler once when the process group fails, on the process group's own thread, or immediately if it has
  /// failed. Returns a number for remove_handler(), after which the handler is not running and will not be called. A
  /// handler may call this object, must not throw, and must not destroy it.
  uint64_t on_failure(std::function<void(const Reason&)> handler);
  void remove_handler(uint64_t id);

  /// Waits until all processes are done, and checks that all began the same collectives. Call it once, as the last
  /// call. throws CommError.
  void close();
  bool closed() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vitrine
