// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <vitrine/runtime/process_group/collective_record.h>

namespace vitrine {

/// How this process joins the others.
struct ProcessGroupOptions {
  int rank = 0, size = 1;
  /// Where they meet: "tcp://host:port" (rank 0 listens there), "file:PATH" on a file system that all see, or empty: over MPI, which the process was
  /// started by.
  std::string rendezvous;
  /// What proves that a process belongs to this run, the same in all of them: required where they meet at a host name or an address that is not
  /// loopback; elsewhere rank 0 makes one, and leaves it where only this user's processes find it. See find_secret() in
  /// runtime/process_group/secret.h.
  std::string secret = {};
  /// All processes are known to run on this machine: rank 0 then listens on its loopback interface only.
  bool one_machine = false;
  /// How long a process may wait for its peers in one collective or exchange; five times as long until set_warm().
  int64_t timeout_ms = 60000;
  /// Ends the process, with status 1, this long after the process group has failed if it has not ended by itself; 0: never.
  int64_t exit_after_ms = 0;
  /// Called, with the reason, in the process that finds that the process group has failed, before the others learn of it: they may end then, and a
  /// launcher end this one. That is rank 0, or those who lost it. It must not wait for anything.
  std::function<void(const std::string&)> on_failure_found = {};
};

/// The processes of a run, as one of them sees them: small exchanges on the host, and a watch over each other. A thread of its own keeps
/// a connection to rank 0, tells it which collectives this process's devices have begun and finished, and learns there when the process group has
/// failed: because a process died, hangs, is late, failed, or began another collective than the others. Failure is for good: everything that waits is
/// ended with CommError, which names the culprit and where it stood; so does every later call.
///   throws  CommError when the processes do not meet in time, ConfigError, UnsupportedError (MPI that is not built in)
class ProcessGroup {
 public:
  explicit ProcessGroup(const ProcessGroupOptions& options);

  // Virtual, like all functions that DeviceGroup calls: vitrine::runtime is linked without this class by those who do not communicate.
  /// Leaves without a word unless close() was called: the others then take this process for dead.
  virtual ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  virtual int rank() const;
  int size() const;
  /// Among the processes on this machine: its index, and their number.
  int local_rank() const;
  virtual int local_size() const;
  /// What tells this machine from others.
  virtual const std::string& machine() const;
  /// "4 processes on 2 hosts, met over MPI": for logs.
  std::string description() const;
  bool over_mpi() const;

  /// Exchanges on the host go through rank 0, one message each way: all processes call the same ones in the same order with the same `what`, and all
  /// wait for each other. None sends every process's bytes to every process.
  using MakeAnswer = std::function<std::vector<std::string>(std::vector<std::string>)>;
  /// On rank 0, `answer` gets all processes' bytes in rank order and returns one answer for all, or one for each rank, which this returns there.
  virtual std::string exchange(const std::string& what, const std::string& mine, const MakeAnswer& answer);
  /// All processes' bytes in rank order on rank 0, nothing elsewhere.
  std::vector<std::string> gather(const std::string& what, const std::string& mine);
  /// Rank 0's bytes.
  std::string broadcast(const std::string& what, const std::string& from_rank0);
  /// Whether all processes hold the same bytes; a hash of them travels.
  bool all_equal(const std::string& what, std::string_view mine);
  /// The sums over all processes, added in rank order: counts are exact up to 2^53.
  std::vector<double> sum(const std::string& what, const std::vector<double>& mine);

  /// Names this process's devices; returns how many each process has, in rank order. Before the first collective.
  virtual std::vector<int> register_devices(const std::vector<std::string>& names);
  /// A number for a group of communicators, the same on all processes, which make them in the same order.
  int new_group();
  /// Told by the communicators: device `device` of this process begins a collective, and has finished one more. From any thread.
  void begin_collective(int device, const CollectiveRecord& record);
  void finish_collective(int device);

  /// While one lives, this process waits for its peers in `what`; the process group fails when that lasts longer than the timeout.
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

  /// From here on the timeout is as configured: the first step is done.
  void set_warm();
  /// This process fails: the others are told, and the process group ends. Returns once they were and all handlers have been called, or after a
  /// second; likewise where the process group has failed already, so that a process may end behind it.
  ///   patience_ms  how long a failure that may be the echo of another process's waits for that one to be found
  void fail(const std::string& reason, int64_t patience_ms = 0);
  /// Why the process group has failed; empty while it has not. From any thread.
  std::string failure() const;
  /// Called once when the process group fails, on the process group's own thread, or at once if it has. The number takes it away again: once
  /// remove_handler() is back it is not being called and never will be. A handler may call on, does not throw, and does not destroy the process
  /// group.
  uint64_t on_failure(std::function<void(const std::string&)> handler);
  void remove_handler(uint64_t id);

  /// Waits until all processes are done, and checks that all began the same collectives: once per process group, as its last call. throws CommError.
  void close();
  bool closed() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vitrine
