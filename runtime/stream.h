// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <vitrine/runtime/device_id.h>
#include <vitrine/runtime/trace/span.h>

namespace vitrine {

class OrderChecker;

/// What a stream of a device is for; each device has one of each.
enum class StreamRole : uint8_t { compute, copy, communication };
const char* stream_role_name(StreamRole role);

/// A point in a stream's work, in CUDA's sense: recorded on one stream, waited for by others or by the host. A wait refers to the
/// latest record() issued before it; an event that was never recorded is complete.
class Event {
 public:
  Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  virtual ~Event() = default;

  /// Blocks the host until the latest recorded point is reached.
  void synchronize();
  /// True when that point is reached, or the GPU has failed. Never blocks; orders nothing: synchronize() follows.
  virtual bool reached() const = 0;
  /// Identity for the order checker; unique in the process.
  uint64_t id() const { return id_; }

 protected:
  virtual void do_synchronize() = 0;

 private:
  friend class Stream;
  uint64_t id_;
  OrderChecker* checker_ = nullptr;  // that of the stream which recorded the event last
};

/// A queue of work on one device, in CUDA's sense: work runs in order, asynchronously to the host and to other streams, which see it only
/// through an Event. One thread at a time issues to a stream.
///
/// An operation that fails leaves the stream in error: later operations are skipped, event records still complete (nobody hangs) but put every
/// stream that waits for them in error too (CommError), and the next synchronize() rethrows the first error once and clears it.
class Stream {
 public:
  struct Identity {
    DeviceId device;
    int ordinal = 0;  // of the logical device within its group
    StreamRole role = StreamRole::compute;
  };

  Stream(Identity identity, OrderChecker* checker);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;

  const Identity& identity() const { return identity_; }
  /// "cpu:1/compute".
  std::string name() const;

  virtual std::unique_ptr<Event> make_event() = 0;
  /// Marks the point behind all work issued so far.
  void record(Event& event);
  /// Work issued from now on starts only after the event's latest recorded point. Never blocks the host.
  void wait(Event& event);
  /// Blocks the host until all work issued so far is done. throws the stream's first error.
  void synchronize();
  /// True when an operation has failed and synchronize() has not told yet. Never blocks.
  virtual bool failed() const = 0;
  /// True when the device itself is in error, so that peers which wait for work on it would wait without end. Never blocks. Only GPUs are lost.
  virtual bool lost() const { return false; }
  /// Called once, from wherever the failure is noticed, when the stream goes into error: to wake peers that would wait for it. Set while idle.
  virtual void set_error_handler(std::function<void(const std::string& reason)> handler) = 0;

  /// Makes the stream's GPU current on the calling thread until leave(), which is given what enter() returned. Nothing on other backends.
  virtual int enter() { return -1; }
  virtual void leave(int /*previous*/) noexcept {}

  /// Opens and closes a timed span around the work issued in between; spans nest. Costs nothing when the level is off.
  virtual void begin_span(const SpanInfo& info) = 0;
  /// bytes  what the work in the span moved
  virtual void end_span(int64_t bytes) = 0;
  /// The spans closed so far, oldest first, times in nanoseconds on the host's steady clock. Only after synchronize().
  virtual std::vector<SpanRecord> take_spans() = 0;

  /// The number of this stream in the order checker's clocks.
  int checker_index() const { return checker_index_; }
  OrderChecker* checker() const { return checker_; }

 protected:
  virtual void do_record(Event& event) = 0;
  virtual void do_wait(Event& event) = 0;
  virtual void do_synchronize() = 0;

 private:
  Identity identity_;
  OrderChecker* checker_;
  int checker_index_ = 0;
};

}  // namespace vitrine
