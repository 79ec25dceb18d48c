// SPDX-License-Identifier: Apache-2.0
#include "runtime/schedule_writer.h"

#include <map>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "runtime/device.h"
#include "runtime/error.h"
#include "runtime/order_checker.h"

namespace vitrine {
namespace {

using Json = nlohmann::ordered_json;
using Kind = ScheduleEvent::Kind;

Json ranges(const ScheduleEvent& event, bool write) {
  Json list = Json::array();
  for (const MemoryAccess& a : event.accesses) {
    if (a.write == write) list.push_back({reinterpret_cast<uintptr_t>(a.address), a.bytes});
  }
  return list;
}

/// What the lines so far say about the next ones.
struct State {
  std::map<int, int64_t> sequences;  // collectives issued, by rank
  std::string cause;                 // of the next wait
};

Json line_of(const ScheduleEvent& event, State& state) {
  const int stream = event.stream;
  const auto address = [&] { return reinterpret_cast<uintptr_t>(event.accesses[0].address); };
  switch (event.kind) {
    case Kind::stream:
      return {{"do", "stream"}, {"stream", stream}, {"name", event.name}, {"device", event.number}};
    case Kind::operation:
      return {{"do", "operation"},
              {"stream", stream},
              {"name", event.name},
              {"reads", ranges(event, false)},
              {"writes", ranges(event, true)}};
    case Kind::record:
      return {{"do", "record"}, {"stream", stream}, {"event", event.event}};
    case Kind::cause:
      state.cause = event.name;
      return {};
    case Kind::wait:
      return {{"do", "wait"}, {"stream", stream}, {"event", event.event}, {"for", std::exchange(state.cause, {})}};
    case Kind::host_wait:
      if (event.event != 0) return {{"do", "host_wait"}, {"event", event.event}};
      return {{"do", "host_wait"}, {"stream", stream}};
    case Kind::collective:
      return {{"do", "collective"},          {"stream", stream},
              {"rank", event.number},        {"sequence", state.sequences[event.number]++},
              {"name", event.name},          {"bytes", event.bytes},
              {"signature", event.signature}};
    case Kind::allocate:
      return {{"do", "allocate"},       {"stream", stream},
              {"address", address()},   {"bytes", event.accesses[0].bytes},
              {"offset", event.offset}, {"tensor", event.name}};
    case Kind::free:
      return {{"do", "free"}, {"stream", stream}, {"address", address()}, {"bytes", event.accesses[0].bytes}};
    case Kind::forget:
      state = {};
      return {{"do", "recover"}};
  }
  return {};
}

}  // namespace

ScheduleWriter::ScheduleWriter(DeviceGroup& devices, std::ostream& out) : devices_(devices), out_(out) {
  if (devices.checker() == nullptr)
    throw ConfigError("ScheduleWriter: the group has no order checker; set DeviceGroupOptions::check_order");
  out_ << Json{{"do", "schedule"}, {"version", 1}} << '\n';
  devices.checker()->observe([this, state = State()](const ScheduleEvent& event) mutable {
    const Json line = line_of(event, state);
    if (!line.is_null()) out_ << line << '\n';
  });
}

ScheduleWriter::~ScheduleWriter() { devices_.checker()->observe(nullptr); }

void ScheduleWriter::state_peak(int device, int64_t bytes) {
  out_ << Json{{"do", "peak"}, {"device", device}, {"name", devices_[device].name()}, {"bytes", bytes}} << '\n';
}

}  // namespace vitrine
