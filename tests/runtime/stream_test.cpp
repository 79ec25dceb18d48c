// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "runtime/copy.h"
#include "runtime/device.h"
#include "runtime/error.h"

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
  int64_t value = 0;  // plain: ThreadSanitizer watches
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
  group.synchronize();
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
  a.record(*event);  // later than the wait above, which must not hang on it
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

TEST(Stream, AFailedOperationSkipsTheRestAndIsToldOnce) {
  DeviceGroup group(cpu_devices(2));
  auto& a = group[0].compute();
  auto& b = group[1].compute();
  const auto event = a.stream().make_event();
  bool skipped = true;
  worker(a).enqueue([] { throw DataError("planted"); });
  worker(a).enqueue([&skipped] { skipped = false; });
  a.record(*event);
  b.wait(*event, "test");  // completes all the same, but stops what was to use the result
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

TEST(Stream, TellsItsErrorHandlerOnce) {
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

TEST(Stream, ManyStreamsEndCleanlyWithWorkQueued) {
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
