// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace vitrine {

class Event;
class Stream;

/// A range of bytes that an operation reads or writes. Addresses of meta devices work like any other.
struct MemoryAccess {
  const void* address = nullptr;
  int64_t bytes = 0;
  bool write = false;
  const char* what = "";  // name of the operation
};

/// The memory that one operation may access. While an object of DeclaredScope lives, View::as() on its thread checks
/// what it accesses.
struct DeclaredMemory {
  const char* operation = "";
  std::vector<MemoryAccess> accesses;
};

class DeclaredScope {
 public:
  /// declared  null: nothing is checked
  explicit DeclaredScope(const DeclaredMemory* declared);
  ~DeclaredScope();
  DeclaredScope(const DeclaredScope&) = delete;
  DeclaredScope& operator=(const DeclaredScope&) = delete;

 private:
  const DeclaredMemory* previous_;
};

/// Reports two unsynchronized operations on the same bytes if one of them writes. Keeps a vector clock for every
/// stream, every event and the host, advanced by record, wait and synchronize at the time of issue. The verdict
/// therefore depends on the program only, never on timing, and is the same on meta, CPU and CUDA. Thread-safe. source
/// Fidge 1988, Mattern 1989 (vector clocks); Flanagan and Freund 2009 (epochs)
class OrderChecker {
 public:
  OrderChecker();
  ~OrderChecker();
  OrderChecker(const OrderChecker&) = delete;
  OrderChecker& operator=(const OrderChecker&) = delete;

  /// Registers a stream and returns its index in the clocks.
  int add_stream(const std::string& name);
  void on_record(int stream, uint64_t event);
  void on_wait(int stream, uint64_t event);
  void on_host_wait_event(uint64_t event);
  void on_host_wait_stream(int stream);

  /// Called when an operation is issued on `stream`. throws OrderError naming both operations, both streams, and the
  /// bytes they share.
  void on_operation(int stream, const char* operation, std::span<const MemoryAccess> accesses);
  /// Called when the host itself accesses memory that streams use (a batch that they read, a record that they wrote).
  /// throws OrderError naming both.
  void on_host_access(const char* operation, std::span<const MemoryAccess> accesses);
  /// Called with every operation that is issued on a stream and with the memory that it declares: reads, then writes,
  /// without empty views. Replaces the observer before; null removes it. It must not issue operations.
  using Observer = std::function<void(const char* operation, std::span<const MemoryAccess> accesses)>;
  void observe(Observer observer);
  /// For tests of this class and of ThreadSanitizer: omits the wait with this number, counted from now (0: the next
  /// one), as if the program had forgotten it. Negative: none.
  void leave_out_wait(int64_t number);
  /// Called by Stream::wait; true if the wait is to be omitted.
  bool leaves_out_next_wait();
  /// Number of waits that streams have requested so far.
  int64_t wait_count() const;
  /// Stops throwing findings from now on, so that another tool can find them.
  void mute();
  /// Forgets every access so far (not the clocks), after an error left operations unfinished.
  void forget_accesses();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vitrine
