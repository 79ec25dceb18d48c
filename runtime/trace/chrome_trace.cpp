// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/chrome_trace.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <ostream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace vitrine {
namespace {

/// The format's time unit. A double holds the nanoseconds of a trace of some days exactly.
double microseconds(int64_t ns) { return static_cast<double>(ns) / 1000; }

/// Names the most specific thing that the span stands for. The name of a layer without a phase around it includes its
/// phase: "reduce bucket 3".
std::string slice_name(const SpanRecord& span) {
  const SpanInfo& info = span.info;
  if (info.phase == Phase::wait) return std::string("wait: ") + info.cause;
  if (info.operation[0] != '\0') return info.operation;
  if (info.layer[0] != '\0')
    return span.depth > 0 ? info.layer : fmt::format("{} {}", phase_name(info.phase), info.layer);
  return phase_name(info.phase);
}

/// Time at which a history begins; nothing if the history is empty.
std::optional<int64_t> begin_of(const MemoryHistory& history) {
  std::optional<int64_t> begin;
  if (!history.changes.empty()) begin = history.changes.front().time_ns;
  if (!history.steps.empty())
    begin = std::min(begin.value_or(history.steps.front().time_ns), history.steps.front().time_ns);
  return begin;
}

class TraceWriter {
 public:
  TraceWriter(std::ostream& out, int64_t start_ns) : out_(out), start_ns_(start_ns) {
    out_ << R"({"displayTimeUnit": "ns", "traceEvents": [)";
  }
  void finish() { out_ << "\n]}\n"; }

  void metadata(size_t pid, size_t tid, const char* what, const nlohmann::json& args) {
    write({{"ph", "M"}, {"pid", pid}, {"tid", tid}, {"name", what}, {"args", args}});
  }

  void slice(size_t pid, size_t tid, const SpanRecord& span) {
    const SpanInfo& info = span.info;
    const char* const phase = phase_name(info.phase);
    nlohmann::json event = {{"pid", pid},
                            {"tid", tid},
                            {"ts", microseconds(span.begin_ns - start_ns_)},
                            {"name", slice_name(span)},
                            {"cat", phase}};
    nlohmann::json args = {{"step", info.step}};
    if (info.phase == Phase::step) {
      event.update({{"ph", "i"}, {"s", "p"}});
    } else {
      event.update({{"ph", "X"}, {"dur", microseconds(span.end_ns - span.begin_ns)}});
      args.update({{"phase", phase}, {"bytes", span.bytes}});
      for (const auto& [key, value] :
           {std::pair{"layer", info.layer}, {"operation", info.operation}, {"cause", info.cause}}) {
        if (*value != '\0') args[key] = value;
      }
    }
    event["args"] = std::move(args);
    write(event);
  }

  void memory(size_t pid, const MemoryHistory& history) {
    BytesByCategory held{};
    for (const MemoryEvent& block : history.at_start) held[static_cast<size_t>(block.category)] += block.bytes;
    if (const auto begin_ns = begin_of(history)) counter(pid, held, *begin_ns);
    for (const MemoryEvent& change : history.changes) {
      held[static_cast<size_t>(change.category)] += change.bytes;
      counter(pid, held, change.time_ns);
    }
  }

 private:
  void counter(size_t pid, const BytesByCategory& held, int64_t time_ns) {
    nlohmann::json args;
    for (size_t c = 0; c < held.size(); ++c) args[category_name(static_cast<Category>(c))] = held[c];
    write({{"ph", "C"},
           {"pid", pid},
           {"ts", microseconds(time_ns - start_ns_)},
           {"name", "memory"},
           {"args", std::move(args)}});
  }

  void write(const nlohmann::json& event) {
    out_ << (first_ ? "\n" : ",\n") << event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    first_ = false;
  }

  std::ostream& out_;
  int64_t start_ns_;
  bool first_ = true;
};

int64_t first_time_ns(std::span<const TraceProcess> processes) {
  int64_t first = std::numeric_limits<int64_t>::max();
  for (const TraceProcess& process : processes) {
    for (const TraceThread& thread : process.threads) {
      for (const SpanRecord& span : thread.spans) first = std::min(first, span.begin_ns);
    }
    first = std::min(first, begin_of(process.memory).value_or(first));
  }
  return first;
}

/// Sorts spans by begin, outer ones first, because viewers nest slices in the order of the file. Cuts a span at the end
/// of the one around it and at the beginning of the next.
std::vector<SpanRecord> outermost_first(std::vector<SpanRecord> spans) {
  std::stable_sort(spans.begin(), spans.end(), [](const SpanRecord& a, const SpanRecord& b) {
    if (a.begin_ns != b.begin_ns) return a.begin_ns < b.begin_ns;
    return a.depth < b.depth;
  });
  std::vector<SpanRecord*> open;
  for (SpanRecord& span : spans) {
    if (span.info.phase == Phase::step) continue;
    while (!open.empty() && (open.back()->end_ns <= span.begin_ns || open.back()->depth >= span.depth)) {
      open.back()->end_ns = std::min(open.back()->end_ns, span.begin_ns);
      open.pop_back();
    }
    if (!open.empty()) span.end_ns = std::min(span.end_ns, open.back()->end_ns);
    open.push_back(&span);
  }
  return spans;
}

}  // namespace

void write_chrome_trace(std::ostream& out, std::span<const TraceProcess> processes) {
  TraceWriter writer(out, first_time_ns(processes));
  for (size_t pid = 0; pid < processes.size(); ++pid) {
    const TraceProcess& process = processes[pid];
    writer.metadata(pid, 0, "process_name", {{"name", process.name}});
    writer.metadata(pid, 0, "process_sort_index", {{"sort_index", pid}});
    for (size_t tid = 0; tid < process.threads.size(); ++tid) {
      const TraceThread& thread = process.threads[tid];
      writer.metadata(pid, tid, "thread_name", {{"name", thread.name}});
      writer.metadata(pid, tid, "thread_sort_index", {{"sort_index", tid}});
      for (const SpanRecord& span : outermost_first(thread.spans)) writer.slice(pid, tid, span);
    }
    writer.memory(pid, process.memory);
  }
  writer.finish();
}

}  // namespace vitrine
