// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <vitrine/runtime/device.h>

namespace vitrine {

/// Work of a device's communication stream beside its compute stream: what a reduction that overlaps with backward is
/// made of. Two events order the streams, and each side waits for the other's:
///
///     compute         backward of layer 9, record ready, backward of layers 8 ... 0, wait done, update
///     communication   wait ready, all-reduce of layer 9's gradients, record done
///
class Overlap {
 public:
  explicit Overlap(Device& device) : device_(device) {}

  /// Makes the events: before the first use, and after a failure, while all streams are idle.
  void reset() {
    for (auto* event : {&ready_, &done_}) *event = device_.compute().stream().make_event();
  }
  /// Queues work(communication context) after what the compute stream has queued so far, in a span of `phase`, and
  /// `name` if that is not null.
  ///   cause  named by the wait: "backward"
  template <class Work>
  void start(Phase phase, const char* name, const char* cause, const Work& work) {
    device_.compute().record(*ready_);
    const PhaseScope scope(device_.communication(), phase, name);
    device_.communication().wait(*ready_, cause);
    work(device_.communication());
  }
  /// Marks the end of the work so far, for wait().
  void mark_done() { device_.communication().record(*done_); }
  /// What the compute stream queues from here on begins after the latest mark_done().
  void wait(const char* cause) { device_.compute().wait(*done_, cause); }
  /// What the compute stream queues from here on begins after all that was started.
  void join(const char* cause) {
    mark_done();
    wait(cause);
  }

 private:
  Device& device_;
  std::unique_ptr<Event> ready_;  // compute: what the work reads is final
  std::unique_ptr<Event> done_;   // communication: the work is done
};

}  // namespace vitrine
