// SPDX-License-Identifier: Apache-2.0
#include "runtime/schedule_writer.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "runtime/device.h"
#include "runtime/error.h"
#include "runtime/order_checker.h"

namespace vitrine {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Kind = ScheduleEvent::Kind;

OrderedJson ranges(const ScheduleEvent& event, bool write) {
  OrderedJson list = OrderedJson::array();
  for (const MemoryAccess& a : event.accesses) {
    if (a.write == write) list.push_back({reinterpret_cast<uintptr_t>(a.address), a.bytes});
  }
  return list;
}

/// Adds [begin, end) to disjoint ranges. Returns false if they contain it already.
bool add_range(std::map<uintptr_t, uintptr_t>& ranges, uintptr_t begin, uintptr_t end) {
  auto it = ranges.upper_bound(begin);
  if (it != ranges.begin() && std::prev(it)->second >= begin) --it;
  if (it != ranges.end() && it->first <= begin && end <= it->second) return false;
  while (it != ranges.end() && it->first <= end) {
    begin = std::min(begin, it->first);
    end = std::max(end, it->second);
    it = ranges.erase(it);
  }
  ranges.emplace(begin, end);
  return true;
}

}  // namespace

/// What the lines so far say about the next ones.
struct ScheduleWriter::State {
  std::map<int, int64_t> sequences, collectives;  // issued by each rank: since the last recovery, and in all
  std::string cause;                              // of the next wait
  std::map<uintptr_t, uintptr_t> outside;         // memory that is no block: begin -> end

  OrderedJson line_of(const ScheduleEvent& event);
  void write_outside(const MemoryAccess& memory, std::ostream& out);
};

void ScheduleWriter::State::write_outside(const MemoryAccess& memory, std::ostream& out) {
  const auto begin = reinterpret_cast<uintptr_t>(memory.address);
  if (add_range(outside, begin, begin + static_cast<uintptr_t>(memory.bytes)))
    out << OrderedJson{{"do", "outside"}, {"address", begin}, {"bytes", memory.bytes}} << '\n';
}

OrderedJson ScheduleWriter::State::line_of(const ScheduleEvent& event) {
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
      cause = event.name;
      return {};
    case Kind::wait:
      return {{"do", "wait"}, {"stream", stream}, {"event", event.event}, {"for", std::exchange(cause, {})}};
    case Kind::host_wait:
      if (event.event != 0) return {{"do", "host_wait"}, {"event", event.event}};
      return {{"do", "host_wait"}, {"stream", stream}};
    case Kind::collective:
      ++collectives[event.number];
      return {{"do", "collective"},          {"stream", stream},
              {"rank", event.number},        {"sequence", sequences[event.number]++},
              {"name", event.name},          {"bytes", event.bytes},
              {"signature", event.signature}};
    case Kind::allocate:
      return {{"do", "allocate"},       {"stream", stream},
              {"address", address()},   {"bytes", event.accesses[0].bytes},
              {"offset", event.offset}, {"tensor", event.name}};
    case Kind::free:
      return {{"do", "free"}, {"stream", stream}, {"address", address()}, {"bytes", event.accesses[0].bytes}};
    case Kind::forget:
      sequences.clear();
      cause.clear();
      return {{"do", "recover"}};
    case Kind::adopt:
      return {};
  }
  return {};
}

ScheduleWriter::ScheduleWriter(DeviceGroup& devices, std::ostream& out)
    : devices_(devices), out_(out), state_(std::make_unique<State>()) {
  if (devices.checker() == nullptr)
    throw ConfigError("ScheduleWriter: the group has no order checker; set DeviceGroupOptions::check_order");
  out_ << OrderedJson{{"do", "schedule"}, {"version", 2}} << '\n';
  devices.checker()->observe([this](const ScheduleEvent& event) {
    for (const MemoryAccess& memory : event.accesses) {
      if (memory.host || event.kind == Kind::adopt) state_->write_outside(memory, out_);
    }
    const OrderedJson line = state_->line_of(event);
    if (!line.is_null()) out_ << line << '\n';
  });
}

ScheduleWriter::~ScheduleWriter() { devices_.checker()->observe(nullptr); }

void ScheduleWriter::state_peak(int device, int64_t bytes) {
  const int rank = devices_.first_rank() + device;
  out_ << OrderedJson{{"do", "peak"},   {"device", device}, {"name", devices_[device].name()},
                      {"bytes", bytes}, {"rank", rank},     {"collectives", state_->collectives[rank]}}
       << '\n';
}

}  // namespace vitrine
