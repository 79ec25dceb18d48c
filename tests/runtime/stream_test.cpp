// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <thread>

#include <gtest/gtest.h>

#include "runtime/copy.h"
#include "runtime/device.h"
#include "runtime/error.h"
#include "runtime/trace/span.h"
#include "tests/support/error_of.h"

namespace vitrine {
namespace {

DeviceGroupOptions cpu_devices(int count, bool check_order = true) {
  DeviceGroupOptions options;
  for (int i = 0; i < count; ++i) options.devices.push_back({Backend::cpu, i});
  options.memory_bytes = {int64_t{64} << 20};
  options.check_order = check_order;
  return options;
}

CpuStream& worker(ExecContext& ctx) { return static_cast<CpuStream&>(ctx.stream()); }

TEST(Stream, RunsWorkInOrderAndAsynchronously) {
  DeviceGroup group(cpu_devices(1));
  std::atomic<bool> go{false};
  std::vector<int> order;
  auto& stream = worker(group[0].compute());
  stream.enqueue([&] {
    while (!go) std::this_thread::yield();
  });
  for (int i = 0; i < 1000; ++i) stream.enqueue([&order, i] { order.push_back(i); });
  go = true;  // reached only because enqueue does not wait for the work
  group.synchronize();
  ASSERT_EQ(order.size(), 1000U);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(Stream, AnEventOrdersTwoStreams) {
  DeviceGroup group(cpu_devices(2));
  auto& a = group[0].compute();
  auto& b = group[1].compute();
  const auto event = a.stream().make_event();
  int64_t value = 0;  // not atomic, so that ThreadSanitizer checks it
  for (int i = 0; i < 2000; ++i) {
    worker(a).enqueue([&value] { ++value; });
    a.record(*event);
    b.wait(*event, "test");
    worker(b).enqueue([&value] { value *= 1; });
    b.record(*event);
    a.wait(*event, "test");
  }
  group.synchronize();
  EXPECT_EQ(value, 2000);
}

TEST(Stream, ANeverRecordedEventIsComplete) {
  DeviceGroup group(cpu_devices(1));
  const auto event = group[0].compute().stream().make_event();
  event->synchronize();
  group[0].copy().wait(*event, "test");
  bool continued = false;
  worker(group[0].copy()).enqueue([&] { continued = true; });
  group.synchronize();
  EXPECT_TRUE(continued);
}

TEST(Stream, AWaitRefersToTheRecordBeforeIt) {
  DeviceGroup group(cpu_devices(2));
  auto& a = group[0].compute();
  auto& b = group[1].compute();
  const auto event = a.stream().make_event();
  std::atomic<bool> release{false};
  a.record(*event);
  b.wait(*event, "test");
  worker(a).enqueue([&] {
    while (!release) std::this_thread::yield();
  });
  a.record(*event);  // later than the wait above, which must not refer to it
  group[1].synchronize();
  release = true;
  group.synchronize();
}

TEST(Stream, HostWaitsForAnEvent) {
  DeviceGroup group(cpu_devices(1));
  auto& a = group[0].compute();
  const auto event = a.stream().make_event();
  int value = 0;
  worker(a).enqueue([&value] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    value = 7;
  });
  a.record(*event);
  event->synchronize();
  EXPECT_EQ(value, 7);
}

TEST(Stream, AFailedOperationSkipsTheRestAndIsReportedOnce) {
  DeviceGroup group(cpu_devices(2));
  auto& a = group[0].compute();
  auto& b = group[1].compute();
  const auto event = a.stream().make_event();
  bool skipped = true;
  worker(a).enqueue([] { throw DataError("planted"); });
  worker(a).enqueue([&skipped] { skipped = false; });
  a.record(*event);
  b.wait(*event, "test");  // completes nevertheless, but stops work that would use the result
  worker(b).enqueue([&skipped] { skipped = false; });
  EXPECT_THROW(group[1].synchronize(), CommError);
  EXPECT_TRUE(a.stream().failed());
  EXPECT_THROW(group[0].synchronize(), DataError);
  EXPECT_FALSE(a.stream().failed());
  EXPECT_TRUE(skipped);
  worker(a).enqueue([&skipped] { skipped = false; });
  group.synchronize();
  EXPECT_FALSE(skipped);
}

TEST(Stream, CallsItsErrorHandlerOnce) {
  DeviceGroup group(cpu_devices(1));
  auto& a = group[0].compute();
  std::vector<std::string> reasons;
  a.stream().set_error_handler([&reasons](const std::string& reason) { reasons.push_back(reason); });
  for (int i = 0; i < 3; ++i) worker(a).enqueue([] { throw DataError("planted"); });
  EXPECT_THROW(group.synchronize(), DataError);
  EXPECT_EQ(reasons, std::vector<std::string>{"planted"});
}

TEST(Stream, SpansNestAndCarryBytes) {
  DeviceGroupOptions options = cpu_devices(1);
  options.trace = TraceLevel::operation;
  DeviceGroup group(options);
  auto& ctx = group[0].compute();
  Tensor a = ctx.allocate({1024}, DType::f32, Category::activations, "a");
  Tensor b = ctx.allocate({1024}, DType::f32, Category::activations, "b");
  {
    const PhaseScope phase(ctx, Phase::forward);
    const LayerScope layer(ctx, "features.0");
    zero(ctx, a);
    copy(ctx, a, b);
  }
  group.synchronize();
  const auto spans = ctx.stream().take_spans();
  ASSERT_EQ(spans.size(), 4U);
  EXPECT_STREQ(spans[0].info.operation, "zero");
  EXPECT_EQ(spans[0].depth, 2);
  EXPECT_EQ(spans[0].bytes, 0);
  EXPECT_EQ(spans[1].bytes, 4096);
  EXPECT_STREQ(spans[2].info.layer, "features.0");
  EXPECT_EQ(spans[3].depth, 0);
  EXPECT_EQ(spans[3].info.phase, Phase::forward);
  EXPECT_EQ(spans[3].bytes, 4096);
  EXPECT_LE(spans[3].begin_ns, spans[0].begin_ns);
  EXPECT_GE(spans[3].end_ns, spans[1].end_ns);
}

TEST(Stream, KeepsABoundedNumberOfTheLatestSpans) {
  DeviceGroupOptions options = cpu_devices(1, false);
  options.trace = TraceLevel::phase;
  DeviceGroup group(options);
  ExecContext& ctx = group[0].compute();
  const auto spans = static_cast<int64_t>(3 * SpanLog::kMostSpans);
  for (int64_t step = 0; step < spans; ++step) {
    ctx.set_step(step);
    const PhaseScope scope(ctx, Phase::forward, "layer");
  }
  group.synchronize();
  const std::vector<SpanRecord> kept = ctx.stream().take_spans();
  EXPECT_LE(kept.size(), SpanLog::kMostSpans);
  EXPECT_GE(kept.size(), SpanLog::kMostSpans / 2);
  EXPECT_LE(kept.capacity() * sizeof(SpanRecord), size_t{2} << 20);
  EXPECT_EQ(kept.back().info.step, spans - 1);
  EXPECT_EQ(kept.front().info.step, spans - static_cast<int64_t>(kept.size()));
}

TEST(Stream, SpansCanBeTakenDuringWork) {
  DeviceGroupOptions options = cpu_devices(1, false);
  options.trace = TraceLevel::phase;
  DeviceGroup group(options);
  ExecContext& ctx = group[0].compute();
  std::atomic<bool> first_done{false}, release{false};
  { const PhaseScope scope(ctx, Phase::forward, "first"); }
  const PhaseScope second(ctx, Phase::forward, "second");
  worker(ctx).enqueue([&] {
    first_done = true;
    while (!release) std::this_thread::yield();
  });
  while (!first_done) std::this_thread::yield();
  const std::vector<SpanRecord> polled = ctx.stream().poll_spans();
  release = true;
  ASSERT_EQ(polled.size(), 1U);
  EXPECT_STREQ(polled[0].info.layer, "first");
  EXPECT_TRUE(ctx.stream().poll_spans().empty()) << "a span is given once, and an open one not at all";
}

TEST(Event, MeasuresTheTimeBetweenTwoPoints) {
  DeviceGroup group(cpu_devices(2));
  ExecContext &a = group[0].compute(), &b = group[1].compute();
  const auto start = a.stream().make_event(EventTiming::on), end = a.stream().make_event(EventTiming::on),
             other = b.stream().make_event(EventTiming::on);
  a.record(*start);
  worker(a).enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  a.record(*end);
  b.wait(*end, "test");
  b.record(*other);
  const double elapsed = end->elapsed_seconds(*start);
  EXPECT_GE(elapsed, 0.02);
  EXPECT_EQ(start->elapsed_seconds(*end), -elapsed);
  EXPECT_GE(other->elapsed_seconds(*start), elapsed) << "CPU devices have one clock";
  a.record(*start);
  EXPECT_LT(end->elapsed_seconds(*start), 0) << "the latest record counts";
}

TEST(Event, ReportsWhyItHasNoTime) {
  DeviceGroup group(cpu_devices(1));
  ExecContext& ctx = group[0].compute();
  const auto timed = ctx.stream().make_event(EventTiming::on), untimed = ctx.stream().make_event();
  EXPECT_EQ(error_of([&] { timed->elapsed_seconds(*timed); }),
            "Event::elapsed_seconds: an event was never recorded; record both on a stream first");
  ctx.record(*timed);
  ctx.record(*untimed);
  EXPECT_EQ(error_of([&] { timed->elapsed_seconds(*untimed); }),
            "Event::elapsed_seconds: an event does not keep its time; make it with make_event(EventTiming::on)");
  DeviceGroupOptions options;
  options.devices = {{Backend::meta, 0}};
  DeviceGroup meta(options);
  const auto event = meta[0].compute().stream().make_event(EventTiming::on);
  meta[0].compute().record(*event);
  EXPECT_EQ(error_of([&] { event->elapsed_seconds(*event); }),
            "Event::elapsed_seconds: meta devices run nothing, so no time passes on them; use cpu or cuda devices");
}

/// Number of times that threads of this process have gone to sleep.
int64_t sleeps_of_all_threads() {
  int64_t sleeps = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(thread.path() / "status");
    for (std::string line; std::getline(status, line);) {
      constexpr std::string_view kField = "voluntary_ctxt_switches:";
      if (line.starts_with(kField)) sleeps += std::stoll(line.substr(kField.size()));
    }
  }
  return sleeps;
}

TEST(Stream, SynchronizingIdleStreamsDoesNotWakeWorkers) {
  DeviceGroup group(cpu_devices(2, false));
  for (int d = 0; d < 2; ++d) worker(group[d].compute()).enqueue([] {});
  group.synchronize();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // until the workers sleep
  const int64_t before = sleeps_of_all_threads();
  for (int i = 0; i < 1000; ++i) group.synchronize();
  EXPECT_LT(sleeps_of_all_threads() - before, 100);
}

TEST(Stream, SynchronizesAllWorkIssuedBefore) {
  DeviceGroup group(cpu_devices(1, false));
  CpuStream& stream = worker(group[0].compute());
  int done = 0;
  stream.enqueue([&] { ++done; });
  stream.begin_synchronize();
  stream.begin_synchronize();
  stream.enqueue([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ++done;
  });
  stream.synchronize();
  EXPECT_EQ(done, 2);
  stream.enqueue([] { throw DataError("planted"); });
  stream.begin_synchronize();
  stream.enqueue([&] { ++done; });
  EXPECT_THROW(stream.synchronize(), DataError) << "an error is not lost to a synchronize() that was only begun";
  stream.synchronize();
}

TEST(Stream, ManyStreamsCanBeDestroyedWithQueuedWork) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> done{0};
    {
      DeviceGroup group(cpu_devices(4, false));
      for (int i = 0; i < 4; ++i) {
        for (int k = 0; k < 50; ++k) worker(group[i].compute()).enqueue([&done] { ++done; });
      }
    }
    EXPECT_EQ(done, 200);
  }
}

}  // namespace
}  // namespace vitrine
