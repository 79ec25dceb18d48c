// SPDX-License-Identifier: Apache-2.0
#include "runtime/order_checker.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "runtime/error.h"

namespace vitrine {
namespace {

using Clock = std::vector<uint32_t>;  // by stream index; 0 is the host; missing entries are 0

void merge(Clock& into, const Clock& from) {
  if (into.size() < from.size()) into.resize(from.size(), 0);
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

uint32_t at(const Clock& clock, int stream) {
  return static_cast<size_t>(stream) < clock.size() ? clock[static_cast<size_t>(stream)] : 0;
}

/// A past access: its stream, and the stream's own time of the access.
struct Past {
  int stream = -1;  // -1: none
  uint32_t epoch = 0;
  const char* operation = "";
  bool operator==(const Past&) const = default;
};

/// A range of bytes with the same history.
struct Region {
  uintptr_t end = 0;
  Past write;
  std::vector<Past> reads;  // since the last write; unordered among each other
};

}  // namespace

struct OrderChecker::State {
  std::mutex mutex;
  std::vector<std::string> names{"host"};
  std::vector<int> devices{-1};
  std::vector<Clock> clocks{Clock{0}};
  std::unordered_map<uint64_t, Clock> events;
  std::map<uintptr_t, Region> regions;
  int64_t waits = 0;
  int64_t left_out = -1;
  bool muted = false;
  Observer observer;

  void note(const ScheduleEvent& event) const {
    if (observer) observer(event);
  }
  void note_stream(size_t stream) const {
    note({.kind = ScheduleEvent::Kind::stream,
          .stream = static_cast<int>(stream),
          .name = names[stream],
          .number = devices[stream]});
  }

  Clock& advance(int stream) {
    Clock& clock = clocks[static_cast<size_t>(stream)];
    if (stream != 0) merge(clock, clocks[0]);
    if (clock.size() <= static_cast<size_t>(stream)) clock.resize(static_cast<size_t>(stream) + 1, 0);
    ++clock[static_cast<size_t>(stream)];
    return clock;
  }

  void split(uintptr_t address) {
    auto it = regions.upper_bound(address);
    if (it == regions.begin()) return;
    --it;
    if (it->first == address || it->second.end <= address) return;
    Region right = it->second;
    it->second.end = address;
    regions.emplace(address, std::move(right));
  }

  void check(const Past& past, const Clock& now, int stream, const char* operation, bool write, bool past_write,
             uintptr_t bytes) const {
    if (muted || past.stream < 0 || past.stream == stream || past.epoch <= at(now, past.stream)) return;
    throw OrderError(
        fmt::format("{} on {} {} {} bytes that {} on {} {}, but the two accesses are unsynchronized; record an event "
                    "after the first and wait on it "
                    "before the second",
                    operation, names[static_cast<size_t>(stream)], write ? "writes" : "reads", bytes, past.operation,
                    names[static_cast<size_t>(past.stream)], past_write ? "writes" : "reads"));
  }

  void access(int stream, const Clock& now, const MemoryAccess& a) {
    const auto begin = reinterpret_cast<uintptr_t>(a.address);
    const uintptr_t end = begin + static_cast<uintptr_t>(a.bytes);
    split(begin);
    split(end);
    const auto first = regions.lower_bound(begin);
    for (auto it = first; it != regions.end() && it->first < end; ++it) {
      const uintptr_t bytes = it->second.end - it->first;
      check(it->second.write, now, stream, a.what, a.write, true, bytes);
      if (!a.write) continue;
      for (const Past& read : it->second.reads) check(read, now, stream, a.what, true, false, bytes);
    }
    const Past self{stream, at(now, stream), a.what};
    if (a.write) {
      regions.erase(first, regions.lower_bound(end));
      regions.emplace(begin, Region{end, self, {}});
    } else {
      note_read(begin, end, now, self);
    }
  }

  void note_read(uintptr_t begin, uintptr_t end, const Clock& now, const Past& self) {
    uintptr_t covered = begin;
    for (auto it = regions.lower_bound(begin); covered < end;) {
      if (it == regions.end() || it->first > covered) {
        const uintptr_t gap_end = it == regions.end() ? end : std::min(end, it->first);
        regions.emplace(covered, Region{gap_end, {}, {self}});
        covered = gap_end;
        continue;
      }
      auto& reads = it->second.reads;
      std::erase_if(reads, [&](const Past& r) { return r.stream == self.stream || r.epoch <= at(now, r.stream); });
      reads.push_back(self);
      covered = it->second.end;
      ++it;
    }
  }
};

OrderChecker::OrderChecker() : state_(std::make_unique<State>()) {}
OrderChecker::~OrderChecker() = default;

int OrderChecker::add_stream(const std::string& name, int device) {
  const std::lock_guard lock(state_->mutex);
  state_->names.push_back(name);
  state_->devices.push_back(device);
  state_->clocks.emplace_back();
  state_->note_stream(state_->names.size() - 1);
  return static_cast<int>(state_->names.size()) - 1;
}

void OrderChecker::on_record(int stream, uint64_t event) {
  const std::lock_guard lock(state_->mutex);
  state_->note({.kind = ScheduleEvent::Kind::record, .stream = stream, .event = event});
  merge(state_->clocks[static_cast<size_t>(stream)], state_->clocks[0]);
  state_->events[event] = state_->clocks[static_cast<size_t>(stream)];
}

void OrderChecker::on_wait(int stream, uint64_t event) {
  const std::lock_guard lock(state_->mutex);
  state_->note({.kind = ScheduleEvent::Kind::wait, .stream = stream, .event = event});
  const auto it = state_->events.find(event);
  if (it != state_->events.end()) merge(state_->clocks[static_cast<size_t>(stream)], it->second);
}

void OrderChecker::on_host_wait_event(uint64_t event) {
  const std::lock_guard lock(state_->mutex);
  state_->note({.kind = ScheduleEvent::Kind::host_wait, .event = event});
  const auto it = state_->events.find(event);
  if (it != state_->events.end()) merge(state_->clocks[0], it->second);
}

void OrderChecker::on_host_wait_stream(int stream) {
  const std::lock_guard lock(state_->mutex);
  state_->note({.kind = ScheduleEvent::Kind::host_wait, .stream = stream});
  merge(state_->clocks[0], state_->clocks[static_cast<size_t>(stream)]);
}

void OrderChecker::observe(Observer observer) {
  const std::lock_guard lock(state_->mutex);
  state_->observer = std::move(observer);
  for (size_t stream = 0; stream < state_->names.size(); ++stream) state_->note_stream(stream);
}

void OrderChecker::note(const ScheduleEvent& event) {
  const std::lock_guard lock(state_->mutex);
  state_->note(event);
}

void OrderChecker::on_operation(int stream, const char* operation, std::span<const MemoryAccess> accesses) {
  const std::lock_guard lock(state_->mutex);
  state_->note({.kind = ScheduleEvent::Kind::operation, .stream = stream, .name = operation, .accesses = accesses});
  const Clock& now = state_->advance(stream);
  for (const MemoryAccess& a : accesses) {
    if (a.bytes > 0) state_->access(stream, now, a);
  }
}

void OrderChecker::on_host_access(const char* operation, std::span<const MemoryAccess> accesses) {
  on_operation(0, operation, accesses);
}

void OrderChecker::leave_out_wait(int64_t number) {
  const std::lock_guard lock(state_->mutex);
  state_->left_out = number < 0 ? -1 : state_->waits + number;
}

bool OrderChecker::leaves_out_next_wait() {
  const std::lock_guard lock(state_->mutex);
  return state_->waits++ == state_->left_out;
}

int64_t OrderChecker::wait_count() const {
  const std::lock_guard lock(state_->mutex);
  return state_->waits;
}

void OrderChecker::mute() {
  const std::lock_guard lock(state_->mutex);
  state_->muted = true;
}

void OrderChecker::forget_accesses() {
  const std::lock_guard lock(state_->mutex);
  state_->note({.kind = ScheduleEvent::Kind::forget});
  state_->regions.clear();
}

}  // namespace vitrine
