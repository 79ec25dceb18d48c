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

/// Whether an event keeps the time at which it is reached. On GPUs those that do not cost less.
enum class EventTiming : uint8_t { off, on };

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
  /// Seconds from the latest recorded point of `start` to that of this event, negative when it was reached earlier; resolves about a microsecond.
  /// Blocks the host until both are reached. Both were made with EventTiming::on, by streams of one GPU or of CPU devices.
  /// throws  UnsupportedError for events without timing and on meta, where no time passes; ConfigError when one was never recorded; DeviceError for
  /// events of different GPUs or backends
  double elapsed_seconds(Event& start);
  /// Identity for the order checker; unique in the process.
  uint64_t id() const { return id_; }

 protected:
  virtual void do_synchronize() = 0;
  /// Both are recorded and reached, keep the time, and are of one backend.
  virtual double do_elapsed_seconds(const Event& start) const = 0;

 private:
  friend class Stream;
  uint64_t id_;
  EventTiming timing_ = EventTiming::off;
  DeviceId recorded_on_;  // the device of the stream that recorded it last
  bool recorded_ = false;
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

  std::unique_ptr<Event> make_event(EventTiming timing = EventTiming::off);
  /// Marks the point behind all work issued so far.
  void record(Event& event);
  /// Work issued from now on starts only after the event's latest recorded point. Never blocks the host.
  void wait(Event& event);
  /// Blocks the host until all work issued so far is done. throws the stream's first error.
  void synchronize();
  /// Lets a synchronize() that follows wait for all work issued so far: called on several streams before the first synchronize(), they are waited for
  /// together rather than one after the other.
  virtual void begin_synchronize() {}
  /// True when an operation has failed and synchronize() has not told yet. Never blocks.
  virtual bool failed() const = 0;
  /// True when the device itself is in error, so that peers which wait for work on it would wait without end. Never blocks. Only GPUs are lost.
  virtual bool lost() const { return false; }
  /// Called once, from wherever the failure is noticed, when the stream goes into error: to wake peers that would wait for it. Set while idle.
  virtual void set_error_handler(std::function<void(const std::string& reason)> handler) = 0;

  /// throws DeviceError when `data` is known to be memory that work on this stream cannot use. Nothing on CPU and meta.
  virtual void check_owner(const void* /*data*/) {}
  /// Makes the stream's GPU current on the calling thread until leave(), which is given what enter() returned. Nothing on other backends.
  virtual int enter() { return -1; }
  virtual void leave(int /*previous*/) noexcept {}

  /// Opens and closes a timed span around the work issued in between; spans nest. Costs nothing when the level is off.
  virtual void begin_span(const SpanInfo& info) = 0;
  /// bytes  what the work in the span moved
  virtual void end_span(int64_t bytes) = 0;
  /// The spans closed so far, oldest first, times in nanoseconds on the host's steady clock. Only after synchronize(). A stream keeps the latest
  /// SpanLog::kMostSpans that are not taken.
  virtual std::vector<SpanRecord> take_spans() = 0;
  /// Of these, while work goes on, the ones whose work is done. Never blocks; from any thread.
  virtual std::vector<SpanRecord> poll_spans() = 0;

  /// The number of this stream in the order checker's clocks.
  int checker_index() const { return checker_index_; }
  OrderChecker* checker() const { return checker_; }

 protected:
  virtual std::unique_ptr<Event> do_make_event(EventTiming timing) = 0;
  virtual void do_record(Event& event) = 0;
  virtual void do_wait(Event& event) = 0;
  virtual void do_synchronize() = 0;

 private:
  Identity identity_;
  OrderChecker* checker_;
  int checker_index_ = 0;
};

}  // namespace vitrine
