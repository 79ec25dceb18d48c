// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

/// Private to runtime.
namespace vitrine::process_group {

/// MPI, from its initialisation to its end: there is one of each in a process. Errors of MPI are returned, not fatal.
class MpiSession {
 public:
  /// MPI waits for all processes to come, and cannot be told to stop. So after `deadline_ms` (0: never) the process is ended with a message.
  /// throws UnsupportedError where MPI is not built in, or does not take calls from several threads; CommError.
  static std::unique_ptr<MpiSession> open(int rank, int64_t deadline_ms);
  virtual ~MpiSession() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Rank 0's text, for all. throws CommError after `timeout_ms`.
  virtual std::string broadcast(const std::string& from_rank0, int64_t timeout_ms) = 0;
  /// Ends MPI, once all processes come here. Without it MPI is left as it is: with a peer dead its end would never come.
  virtual void finish() = 0;
};

}  // namespace vitrine::process_group
