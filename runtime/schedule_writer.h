// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <ostream>

namespace vitrine {

class DeviceGroup;

/// Writes what the host issues to a group's devices while this object lives, as JSON Lines (docs/schedule.md): streams,
/// blocks, other memory, operations with the memory that they declare, events, waits and collectives.
class ScheduleWriter {
 public:
  /// out  must outlive this object
  /// throws ConfigError if the group has no order checker (DeviceGroupOptions::check_order)
  ScheduleWriter(DeviceGroup& devices, std::ostream& out);
  ~ScheduleWriter();
  ScheduleWriter(const ScheduleWriter&) = delete;
  ScheduleWriter& operator=(const ScheduleWriter&) = delete;

  /// States the peak of a device's plan, its rank, and how many collectives the rank has issued. A schedule without the
  /// peaks of all its devices is incomplete.
  void state_peak(int device, int64_t bytes);

 private:
  DeviceGroup& devices_;
  std::ostream& out_;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vitrine
