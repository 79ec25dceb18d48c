// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/chrome_trace.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <ostream>
#include <string_view>

#include <fmt/format.h>

namespace vitrine {
namespace {

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      result += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      result += c;
    }
  }
  result += '"';
  return result;
}

/// Nanoseconds as the format's microseconds, exactly.
std::string microseconds(int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

/// What the slice is called: the narrowest thing that it stands for. Where no phase is around a layer, its name tells that too: "reduce bucket 3".
std::string slice_name(const SpanRecord& span) {
  const SpanInfo& info = span.info;
  if (info.phase == Phase::wait) return std::string("wait: ") + info.cause;
  if (info.operation[0] != '\0') return info.operation;
  if (info.layer[0] != '\0') return span.depth > 0 ? info.layer : fmt::format("{} {}", phase_name(info.phase), info.layer);
  return phase_name(info.phase);
}

/// When a history begins; nothing where it tells of no moment.
std::optional<int64_t> begin_of(const MemoryHistory& history) {
  std::optional<int64_t> begin;
  if (!history.changes.empty()) begin = history.changes.front().time_ns;
  if (!history.steps.empty()) begin = std::min(begin.value_or(history.steps.front().time_ns), history.steps.front().time_ns);
  return begin;
}

class TraceWriter {
 public:
  explicit TraceWriter(std::ostream& out) : out_(out) { out_ << "{\"displayTimeUnit\": \"ns\", \"traceEvents\": ["; }
  void finish() { out_ << "\n]}\n"; }

  void metadata(size_t pid, size_t tid, const char* what, const std::string& argument) {
    event(fmt::format(R"({{"ph": "M", "pid": {}, "tid": {}, "name": "{}", "args": {{{}}}}})", pid, tid, what, argument));
  }

  void slice(size_t pid, size_t tid, const SpanRecord& span, int64_t start_ns) {
    const std::string head = fmt::format(R"("pid": {}, "tid": {}, "ts": {}, "name": {}, "cat": "{}")", pid, tid,
                                         microseconds(span.begin_ns - start_ns), quoted(slice_name(span)), phase_name(span.info.phase));
    if (span.info.phase == Phase::step) {
      event(fmt::format(R"({{"ph": "i", "s": "p", {}, "args": {{"step": {}}}}})", head, span.info.step));
      return;
    }
    std::string args = fmt::format(R"("phase": "{}", "step": {}, "bytes": {})", phase_name(span.info.phase), span.info.step, span.bytes);
    const auto add = [&](const char* key, const char* value) {
      if (value[0] != '\0') args += fmt::format(R"(, "{}": {})", key, quoted(value));
    };
    add("layer", span.info.layer);
    add("operation", span.info.operation);
    add("cause", span.info.cause);
    event(fmt::format(R"({{"ph": "X", {}, "dur": {}, "args": {{{}}}}})", head, microseconds(span.end_ns - span.begin_ns), args));
  }

  void memory(size_t pid, const MemoryHistory& history, int64_t start_ns) {
    BytesByCategory held{};
    for (const MemoryEvent& block : history.at_start) held[static_cast<size_t>(block.category)] += block.bytes;
    if (const auto begin_ns = begin_of(history)) counter(pid, held, *begin_ns - start_ns);
    for (const MemoryEvent& change : history.changes) {
      held[static_cast<size_t>(change.category)] += change.bytes;
      counter(pid, held, change.time_ns - start_ns);
    }
  }

 private:
  void counter(size_t pid, const BytesByCategory& held, int64_t time_ns) {
    std::string args;
    for (size_t c = 0; c < held.size(); ++c) {
      args += fmt::format(R"({}"{}": {})", args.empty() ? "" : ", ", category_name(static_cast<Category>(c)), held[c]);
    }
    event(fmt::format(R"({{"ph": "C", "pid": {}, "ts": {}, "name": "memory", "args": {{{}}}}})", pid, microseconds(time_ns), args));
  }

  void event(const std::string& json) {
    out_ << (first_ ? "\n" : ",\n") << json;
    first_ = false;
  }

  std::ostream& out_;
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

/// Outer spans before those that begin with them: viewers nest slices in the order of the file. Each ends
/// within those around it and before the next.
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
  const int64_t start_ns = first_time_ns(processes);
  TraceWriter writer(out);
  for (size_t pid = 0; pid < processes.size(); ++pid) {
    const TraceProcess& process = processes[pid];
    writer.metadata(pid, 0, "process_name", "\"name\": " + quoted(process.name));
    writer.metadata(pid, 0, "process_sort_index", fmt::format("\"sort_index\": {}", pid));
    for (size_t tid = 0; tid < process.threads.size(); ++tid) {
      const TraceThread& thread = process.threads[tid];
      writer.metadata(pid, tid, "thread_name", "\"name\": " + quoted(thread.name));
      writer.metadata(pid, tid, "thread_sort_index", fmt::format("\"sort_index\": {}", tid));
      for (const SpanRecord& span : outermost_first(thread.spans)) writer.slice(pid, tid, span, start_ns);
    }
    writer.memory(pid, process.memory, start_ns);
  }
  writer.finish();
}

}  // namespace vitrine
