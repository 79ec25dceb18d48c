// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace vitrine {

class Event;
class Stream;

/// One range of bytes that an operation reads or writes. Addresses on meta devices are as good as any.
struct MemoryAccess {
  const void* address = nullptr;
  int64_t bytes = 0;
  bool write = false;
  const char* what = "";  // name of the operation that does it
};

/// Reports two operations that touch the same bytes, one of them writing, without an order between them: a vector clock for every stream,
/// event and the host, moved by record, wait and synchronize at the time of issue. So the verdict depends on the program alone, never on
/// timing, and is the same on meta, CPU and CUDA. Thread-safe.
/// source  Fidge 1988, Mattern 1989 (vector clocks); Flanagan and Freund 2009 (epochs)
class OrderChecker {
 public:
  OrderChecker();
  ~OrderChecker();
  OrderChecker(const OrderChecker&) = delete;
  OrderChecker& operator=(const OrderChecker&) = delete;

  /// Gives the stream its index in the clocks.
  int add_stream(const std::string& name);
  void on_record(int stream, uint64_t event);
  void on_wait(int stream, uint64_t event);
  void on_host_wait_event(uint64_t event);
  void on_host_wait_stream(int stream);

  /// An operation is issued on `stream`. throws OrderError naming both operations, both streams, and the bytes they share.
  void on_operation(int stream, const char* operation, std::span<const MemoryAccess> accesses);
  /// The host itself touches memory that streams use (a batch that they read, a record that they wrote). throws OrderError naming both.
  void on_host_access(const char* operation, std::span<const MemoryAccess> accesses);
  /// For tests of this class and of ThreadSanitizer: the wait of this number, counted from now (0: the next), is left out, as if the program had
  /// forgotten it. Negative: none.
  void leave_out_wait(int64_t number);
  /// Called by Stream::wait: true when the wait is to be left out.
  bool leaves_out_next_wait();
  /// Waits that streams have asked for so far.
  int64_t wait_count() const;
  /// From now on findings are not thrown: another tool is to find them.
  void mute();
  /// Forgets every access so far (not the clocks): after an error left operations unfinished.
  void forget_accesses();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vitrine
