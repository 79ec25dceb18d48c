// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

/// Private to runtime.
namespace vitrine::process_group {

/// MPI from initialization to finalization; at most one per process. MPI's errors are returned, not fatal.
class MpiSession {
 public:
  /// MPI_Init waits for all `size` processes and cannot be interrupted, so the process exits with a message after
  /// `deadline_ms` (0: never). throws UnsupportedError if MPI is not built in or does not support calls from several
  /// threads at once; CommError.
  static std::unique_ptr<MpiSession> open(int rank, int size, int64_t deadline_ms);
  virtual ~MpiSession() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Broadcasts rank 0's text. throws CommError after `timeout_ms`.
  virtual std::string broadcast(const std::string& from_rank0, int64_t timeout_ms) = 0;
  /// Lets MPI finish what it owes to other processes: Open MPI acknowledges a large message only within a call, so a
  /// process that has received everything and calls no more keeps the sender waiting. Never blocks. Thread-safe.
  virtual void progress() = 0;
  /// Finalizes MPI once all processes call it, then calls `wait_for_others`, which returns when all have done so: of a
  /// process that has ended mpirun cannot tell that another one is stopped. The process exits with status 1 after
  /// `deadline_ms` (0: never). Without this call MPI stays initialized: finalization would wait for a dead peer.
  virtual void finish(int64_t deadline_ms, const std::function<void()>& wait_for_others) = 0;
};

}  // namespace vitrine::process_group
