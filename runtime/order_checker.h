// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
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
  bool host = false;      // memory of the host, not of a device
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

/// What the host has issued, as the order checker sees it.
struct ScheduleEvent {
  enum class Kind : uint8_t {
    stream,      // `stream` of device `number` exists, with this name
    operation,   // on `stream`; name, accesses: reads, then writes, without empty views
    record,      // of `event` on `stream`
    cause,       // name: what the next wait is for
    wait,        // of `stream` for `event`
    host_wait,   // of the host for `event`, or if that is 0 for all work of `stream`
    collective,  // the next operation on `stream` is rank `number`'s part in a collective; name, bytes, signature
    allocate,    // of accesses[0] for `stream`, at `offset` of the device's slab; name: of the tensor
    free,        // of accesses[0]
    adopt,       // accesses[0] is memory that a tensor has adopted (ExecContext::adopt)
    forget,      // a failure has ended the work so far
  };
  Kind kind;
  int stream = 0;  // 0: the host
  std::string_view name = {};
  std::span<const MemoryAccess> accesses = {};
  uint64_t event = 0;
  int number = 0;
  int64_t offset = 0;
  int64_t bytes = 0;
  uint64_t signature = 0;  // equal on all ranks
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

  /// Registers a stream of a device and returns its index in the clocks.
  int add_stream(const std::string& name, int device);
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
  /// Passes an event of the kinds cause, collective, allocate, free and adopt to the observer.
  void note(const ScheduleEvent& event);
  /// Called with the streams that exist, then with everything that is issued, before it is checked. Replaces the
  /// observer before; null removes it. It must not issue operations.
  using Observer = std::function<void(const ScheduleEvent& event)>;
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
