// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <vitrine/runtime/device_id.h>
#include <vitrine/runtime/reason.h>
#include <vitrine/runtime/trace/span.h>

namespace vitrine {

class OrderChecker;

/// Purpose of a stream; each device has one of each.
enum class StreamRole : uint8_t { compute, copy, communication };
const char* stream_role_name(StreamRole role);

/// Whether an event records the time at which it is reached. On GPUs, events without timing cost less.
enum class EventTiming : uint8_t { off, on };

/// A point in a stream's work, as in CUDA: recorded on one stream; other streams or the host wait for it. A wait refers
/// to the latest record() issued before it. An event that was never recorded is complete.
class Event {
 public:
  Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  virtual ~Event() = default;

  /// Blocks the host until the latest recorded point is reached.
  void synchronize();
  /// True if that point has been reached or the GPU has failed. Never blocks. Orders nothing: call synchronize() for
  /// that.
  virtual bool reached() const = 0;
  /// Seconds from `start`'s latest recorded point to this event's; negative if this one was reached earlier.
  /// The resolution is about one microsecond. Blocks the host until both are reached. Both must come from
  /// make_event(EventTiming::on), on streams of one GPU or of CPU devices.
  /// throws  UnsupportedError for events without timing and on meta, where no time passes; ConfigError for an event
  ///         that was never recorded;
  /// DeviceError for events of different GPUs or backends
  double elapsed_seconds(Event& start);
  /// Identity for the order checker, unique in the process.
  uint64_t id() const { return id_; }

 protected:
  virtual void do_synchronize() = 0;
  /// Implementation of elapsed_seconds(): both events are recorded and reached, have timing, and belong to one backend.
  virtual double do_elapsed_seconds(const Event& start) const = 0;

 private:
  friend class Stream;
  uint64_t id_;
  EventTiming timing_ = EventTiming::off;
  DeviceId recorded_on_;  // the device of the stream that recorded it last
  bool recorded_ = false;
  OrderChecker* checker_ = nullptr;  // of the stream that recorded the event last
};

/// Work that a stream has captured instead of running it, and that it can launch any number of times: a CUDA graph.
/// Destroy it before its stream.
class CapturedWork {
 public:
  CapturedWork() = default;
  CapturedWork(const CapturedWork&) = delete;
  CapturedWork& operator=(const CapturedWork&) = delete;
  virtual ~CapturedWork() = default;
};

/// A queue of work on one device, as in CUDA: work runs in order, asynchronously to the host and to other streams,
/// which synchronize with it only through an Event. One thread at a time issues to a stream.
///
/// A failed operation puts the stream in error: later operations are skipped; event records still complete, so no
/// stream hangs, but put every stream that waits for them in error too (CommError). The next synchronize() rethrows the
/// first error once and clears it.
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
  /// Marks the point after all work issued so far.
  void record(Event& event);
  /// Delays work issued from now on until the event's latest recorded point is reached. Never blocks the host.
  void wait(Event& event);
  /// Blocks the host until all work issued so far is done. throws the stream's first error.
  void synchronize();
  /// Announces a following synchronize() for all work issued so far. Calling it on several streams before the first
  /// synchronize() waits for all of them together instead of one after the other.
  virtual void begin_synchronize() {}
  /// True if an operation has failed and synchronize() has not reported it yet. Never blocks.
  virtual bool failed() const = 0;
  /// The part of failed() that asks no driver: on GPUs, whether a kernel has raised a fault.
  virtual bool has_fault() const { return failed(); }
  /// True if the device itself is in error, so that peers would wait for its work forever. Never blocks. Only GPUs can
  /// be lost.
  virtual bool lost() const { return false; }
  /// Sets a function that is called once, on the thread that detects the failure, when the stream goes into error, for
  /// example to wake waiting peers. requires an idle stream
  virtual void set_error_handler(std::function<void(const Reason& reason)> handler) = 0;

  /// throws DeviceError if `data` is known to be memory that work on this stream cannot access. Does nothing on CPU and
  /// meta.
  virtual void check_owner(const void* /*data*/) {}
  /// Makes the stream's GPU current on the calling thread until leave(), which takes the result of enter(). Does
  /// nothing on other backends.
  virtual int enter() { return -1; }
  virtual void leave(int /*previous*/) noexcept {}

  /// False: begin_capture() throws UnsupportedError. Only GPUs capture, on streams that the group created.
  virtual bool can_capture() const { return false; }
  /// From here to end_capture() work that is issued to this stream, and to the `joined` streams of the same GPU, does
  /// not run. Until then the thread must not wait for any stream or event, allocate device or pinned memory, or make
  /// these streams wait for an event that was recorded before; a span that is closed during the capture must have been
  /// opened during it. A launch waits for this stream's earlier work, also with the work of joined streams, and what
  /// is queued on this stream after a launch begins when all of it is done.
  /// Each launch also records the spans that are opened during the capture.
  virtual void begin_capture(std::span<Stream* const> joined);
  void begin_capture() { begin_capture({}); }
  /// Returns the work issued since begin_capture(). throws CudaError if it contains what cannot be captured.
  virtual std::unique_ptr<CapturedWork> end_capture();
  /// Ends the capture, if there is one, and discards its work.
  virtual void abandon_capture() noexcept {}
  /// Queues work that this stream has captured. Its spans repeat the captured ones in step `step`; the host waits for
  /// the spans of the launch before, if that has not ended.
  virtual void launch(CapturedWork& work, int64_t step);

  /// Opens and closes a timed span around the work issued in between. Spans nest. Costs nothing if tracing is off.
  virtual void begin_span(const SpanInfo& info) = 0;
  virtual void end_span(const SpanBytes& bytes) = 0;
  /// Takes the spans closed so far, oldest first, with times in nanoseconds on the host's steady clock. requires a
  /// preceding synchronize(). A stream keeps the latest SpanLog::kMostSpans that have not been taken.
  virtual std::vector<SpanRecord> take_spans() = 0;
  /// Takes those spans whose work is already done, while other work is still running. Never blocks; callable from any
  /// thread.
  virtual std::vector<SpanRecord> poll_spans() = 0;

  /// Number of this stream in the order checker's clocks.
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
