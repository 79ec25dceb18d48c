// SPDX-License-Identifier: Apache-2.0
// Contracts of opening and using GPUs, on real ones and on the stand-ins.
#include <chrono>
#include <cstdlib>
#include <thread>

#include <cuda_runtime_api.h>

#include "runtime/copy.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/native.h"
#include "runtime/error.h"
#include "runtime/trace/span.h"
#include "tests/support/device_fixture.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#ifdef VITRINE_HOST_CUDA
#include "tests/standins/controls.h"
#endif

namespace vitrine::test {
namespace {

DeviceGroupOptions gpus(int count, int64_t memory_bytes = int64_t{16} << 20) {
  return {.devices = test_devices(count), .memory_bytes = {memory_bytes}, .check_order = true};
}

/// Number of objects that exist in CUDA, including events, which only the stand-ins report.
int64_t live_cuda_objects() {
#ifdef VITRINE_HOST_CUDA
  return standins::live_objects();
#else
  return 0;
#endif
}

/// With the default capacity.
[[maybe_unused]] DeviceGroupOptions whole_gpus(const std::vector<int>& indices) {
  DeviceGroupOptions options;
  for (const int index : indices) options.devices.push_back({Backend::cuda, index});
  return options;
}

TEST(CudaDevice, AnIndexBeyondTheGpusIsNamedWithTheirNumber) {
  DeviceGroupOptions options = gpus(1);
  options.devices[0].index = 99;
  const std::string text = error_of<DeviceError>([&] { DeviceGroup group(options); });
  expect_contains(text, "cuda:99", "this process sees " + std::to_string(cuda_device_count()));
}

TEST(CudaDevice, CopiesSurviveARoundTripThroughEveryDevice) {
  constexpr int kDevices = 3;
  DeviceGroup group(gpus(kDevices));
  HostBuffer in(4000, group.host_memory()), out(4000, group.host_memory());
  const View source = in.view({1000}, DType::f32), target = out.view({1000}, DType::f32);
  for (int64_t i = 0; i < 1000; ++i) source.as<float>()[i] = static_cast<float>(i) * 0.5F;
  std::vector<Tensor> stops;
  std::vector<std::unique_ptr<Event>> events;
  for (int d = 0; d < kDevices; ++d) {
    ExecContext& ctx = group[d].copy();
    stops.push_back(ctx.allocate({1000}, DType::f32, Category::staging, "stop"));
    if (d > 0) ctx.wait(*events.back(), "the device before");
    copy(ctx, d == 0 ? ConstView(source) : ConstView(stops[static_cast<size_t>(d) - 1]), stops.back());
    events.push_back(ctx.stream().make_event());
    ctx.record(*events.back());
  }
  ExecContext& last = group[kDevices - 1].compute();
  last.wait(*events.back(), "the copy");
  copy(last, stops.back(), target);
  group.synchronize();
  for (int64_t i = 0; i < 1000; ++i) ASSERT_EQ(target.as<float>()[i], static_cast<float>(i) * 0.5F);
  EXPECT_THROW(
      {
        zero(group[0].compute(), stops[0]);  // not ordered after the copy stream
        copy(group[0].copy(), source, stops[0]);
      },
      OrderError);
}

TEST(CudaDevice, SpansNestAndCarryBytes) {
  DeviceGroupOptions options = gpus(1);
  options.trace = TraceLevel::operation;
  DeviceGroup group(options);
  ExecContext& ctx = group[0].compute();
  const Tensor a = ctx.allocate({1 << 20}, DType::u8, Category::staging, "a"),
               b = ctx.allocate({1 << 20}, DType::u8, Category::staging, "b");
  const int64_t before = steady_now_ns();
  for (int round = 0; round < 2; ++round) {
    {
      const PhaseScope phase(ctx, Phase::scatter);
      zero(ctx, a);
      copy(ctx, a, b);
    }
    group.synchronize();
    const int64_t after = steady_now_ns();
    const std::vector<SpanRecord> spans = ctx.stream().take_spans();
    ASSERT_EQ(spans.size(), 3U);
    EXPECT_STREQ(spans[0].info.operation, "zero");
    EXPECT_STREQ(spans[1].info.operation, "copy");
    EXPECT_EQ(spans[1].bytes, 1 << 20);
    EXPECT_EQ(spans[2].info.phase, Phase::scatter);
    EXPECT_EQ(spans[2].bytes, 1 << 20);
    EXPECT_EQ(spans[2].depth, 0);
    EXPECT_EQ(spans[1].depth, 1);
    EXPECT_LE(spans[2].begin_ns, spans[0].begin_ns);
    EXPECT_LE(spans[0].end_ns, spans[1].begin_ns + 1000);
    EXPECT_LE(spans[1].end_ns, spans[2].end_ns);
    EXPECT_GE(spans[2].begin_ns, before - 1000000);
    EXPECT_LE(spans[2].end_ns, after + 1000000);
  }
}

TEST(CudaDevice, SpansAreBoundedAndTheirEventsReused) {
  DeviceGroupOptions options = gpus(1);
  options.trace = TraceLevel::phase;
  DeviceGroup group(options);
  ExecContext& ctx = group[0].compute();
  const auto run = [&](int64_t spans) {
    for (int64_t step = 0; step < spans; ++step) {
      ctx.set_step(step);
      const PhaseScope scope(ctx, Phase::forward, "layer");
      if (step % 512 == 511) group.synchronize();
    }
  };
  // Two events for each span whose work is not known to be done, less those that spans share.
  const int64_t most_objects = live_cuda_objects() + 2 * (1024 + 512);
  const auto spans = static_cast<int64_t>(2 * SpanLog::kMostSpans);
  run(spans);
  EXPECT_LE(live_cuda_objects(), most_objects) << "events";
  group.synchronize();
  const std::vector<SpanRecord> kept = ctx.stream().take_spans();
  EXPECT_LE(kept.size(), SpanLog::kMostSpans);
  ASSERT_GE(kept.size(), SpanLog::kMostSpans / 2);
  EXPECT_EQ(kept.back().info.step, spans - 1);
  for (size_t i = 1; i < kept.size(); ++i) ASSERT_LE(kept[i - 1].end_ns, kept[i].begin_ns + 1000) << i;
}

TEST(CudaDevice, SpansCanBePolledDuringWork) {
  DeviceGroupOptions options = gpus(1);
  options.trace = TraceLevel::phase;
  DeviceGroup group(options);
  ExecContext& ctx = group[0].compute();
  int64_t polled = 0;
  for (int64_t step = 0; step < 300; ++step) {
    { const PhaseScope scope(ctx, Phase::forward, "layer"); }
    for (const SpanRecord& span : ctx.stream().poll_spans()) {
      EXPECT_LE(span.begin_ns, span.end_ns);
      ++polled;
    }
  }
  group.synchronize();
  EXPECT_EQ(polled + static_cast<int64_t>(ctx.stream().take_spans().size()), 300);
}

TEST(CudaDevice, EventsMeasureTheTimeBetweenThem) {
  DeviceGroup group(gpus(1));
  ExecContext& ctx = group[0].compute();
  const Tensor a = ctx.allocate({1 << 20}, DType::u8, Category::staging, "a");
  const auto start = ctx.stream().make_event(EventTiming::on), end = ctx.stream().make_event(EventTiming::on),
             untimed = ctx.stream().make_event();
  ctx.record(*start);
  zero(ctx, a);
  ctx.record(*end);
  ctx.record(*untimed);
  EXPECT_GE(end->elapsed_seconds(*start), 0);
  EXPECT_LE(start->elapsed_seconds(*end), 0);
  EXPECT_THROW(end->elapsed_seconds(*untimed), UnsupportedError);
}

TEST(CudaDevice, PinnedMemoryIsAlignedAndZeroed) {
  HostBuffer buffer(10000, HostMemory::pinned);
  const View view = buffer.view({10000}, DType::u8);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % 4096, 0U);
  for (int64_t i = 0; i < 10000; ++i) ASSERT_EQ(view.as<uint8_t>()[i], 0);
}

TEST(CudaDevice, APoolWithoutAPlanAllocatesItsCapacityOnce) {
  DeviceGroup group(gpus(1, 8 << 20));
  ExecContext& ctx = group[0].compute();
  {
    const Tensor a = ctx.allocate({1000}, DType::u8, Category::staging, "a");
    EXPECT_EQ(group[0].pool().statistics().reserved_bytes, 8 << 20);
    const Tensor b = ctx.allocate({4 << 20}, DType::u8, Category::staging, "b");
    EXPECT_THROW(ctx.allocate({8 << 20}, DType::u8, Category::staging, "c"), OutOfMemory);
  }
  EXPECT_GE(group[0].gpu_used_bytes(), 8 << 20);
}

TEST(CudaDevice, ASlabGrowsFromPlanToPlan) {
  DeviceGroup group(gpus(1, 8 << 20));
  for (const int64_t bytes : {1 << 20, 3 << 20, 2 << 20}) {
    group[0].pool().reserve(bytes);
    const Tensor t = group[0].compute().allocate({bytes}, DType::u8, Category::staging, "all");
    zero(group[0].compute(), t);
    group.synchronize();
    EXPECT_GE(group[0].pool().statistics().reserved_bytes, bytes);
  }
}

TEST(CudaDevice, MoreMemoryThanTheGpuHasIsRefused) {
  const std::string text = error_of<OutOfMemory>([] { DeviceGroup group(gpus(1, int64_t{1} << 50)); });
  expect_contains(text, "1024.0 TiB");
}

TEST(CudaDevice, WorkRunsOnAStreamOfTheUser) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaSetDevice(test_devices(1)[0].index), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  {
    DeviceGroupOptions options = gpus(1);
    options.cuda_compute_streams = {stream};
    DeviceGroup group(options);
    ExecContext& ctx = group[0].compute();
    const Tensor t = ctx.allocate({100}, DType::u8, Category::staging, "t");
    zero(ctx, t);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);  // the work ran on it
    std::vector<uint8_t> values(100, 1);
    ASSERT_EQ(cudaMemcpyAsync(values.data(), t.view().data, 100, cudaMemcpyDeviceToHost, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(values, std::vector<uint8_t>(100, 0));
    options.cuda_compute_streams = {stream, stream};
    expect_contains(error_of<ConfigError>([&] { DeviceGroup again(options); }), "2 CUDA compute streams for 1 devices");
    options.cuda_compute_streams = {nullptr};
    expect_contains(error_of<ConfigError>([&] { DeviceGroup again(options); }), "null stream");
  }
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess) << "the user's stream outlives the devices";
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST(CudaDevice, KeepsTheCurrentDeviceOfTheCaller) {
  const int gpu_count = cuda_device_count();
  DeviceGroup group(gpus(gpu_count > 1 ? 2 : 1));
  ASSERT_EQ(cudaSetDevice(gpu_count - 1), cudaSuccess);
  const Tensor t = group[0].compute().allocate({100}, DType::u8, Category::staging, "t");
  zero(group[0].compute(), t);
  group.synchronize();
  int current = -1;
  ASSERT_EQ(cudaGetDevice(&current), cudaSuccess);
  EXPECT_EQ(current, gpu_count - 1);
}

/// A plan that reports what it finds when it is destroyed.
struct Witness {
  struct Findings {
    bool stream_lives = false;
    int current_device = -1;
  };
  ~Witness() {
    if (findings == nullptr) return;
    findings->stream_lives = cudaStreamQuery(stream) == cudaSuccess;
    cudaGetDevice(&findings->current_device);
  }
  cudaStream_t stream = nullptr;
  Findings* findings = nullptr;
};

TEST(CudaDevice, PlansAreDestroyedBeforeTheirStreamWithTheirGpuCurrent) {
  const std::vector<DeviceId> ids = test_devices(2);
  std::vector<Witness::Findings> findings(6);
  {
    DeviceGroup group(gpus(2));
    size_t next = 0;
    for (int d = 0; d < 2; ++d) {
      for (ExecContext* ctx : {&group[d].compute(), &group[d].copy(), &group[d].communication()}) {
        auto& witness = ctx->plans().get<Witness>();
        witness.stream = cuda::native_stream(*ctx);
        witness.findings = &findings[next++];
      }
    }
    ASSERT_EQ(cudaSetDevice(ids[0].index), cudaSuccess);
  }
  for (size_t i = 0; i < findings.size(); ++i) {
    EXPECT_TRUE(findings[i].stream_lives) << i;
    EXPECT_EQ(findings[i].current_device, ids[i / 3].index) << i;
  }
  cudaGetLastError();
}

#ifdef VITRINE_HOST_CUDA

class CudaStandins : public ::testing::Test {
 protected:
  ~CudaStandins() override { standins::reset(); }
};

TEST_F(CudaStandins, WithoutADriverTheReasonIsReported) {
  standins::configure({.driver = standins::Driver::missing});
  EXPECT_EQ(cuda_device_count(), 0);
  const GpuReport report = query_gpus(true);
  EXPECT_TRUE(report.gpus.empty());
  expect_contains(report.problem, "driver");
  const std::string text = error_of<DeviceError>([] { DeviceGroup group(whole_gpus({0})); });
  expect_contains(text, report.problem, "cuda:0");
}

TEST_F(CudaStandins, AHiddenGpuIsReported) {
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  standins::configure({});
  expect_contains(query_gpus(false).problem, "CUDA_VISIBLE_DEVICES is \"\"");
  setenv("CUDA_VISIBLE_DEVICES", "3,1", 1);
  standins::configure({});
  EXPECT_EQ(cuda_device_count(), 2);
  expect_contains(error_of<DeviceError>([] { DeviceGroup group(whole_gpus({2})); }), "CUDA_VISIBLE_DEVICES is \"3,1\"");
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_F(CudaStandins, AGpuWithTooManyPeersCopiesThroughTheHost) {
  standins::configure({.most_peers = 1});
  DeviceGroup group(gpus(3));
  std::vector<int32_t> sent(1000, 7), got(1000);
  const Tensor from = group[0].compute().allocate({1000}, DType::i32, Category::staging, "from");
  const Tensor to = group[2].compute().allocate({1000}, DType::i32, Category::staging, "to");
  copy(group[0].compute(), View{sent.data(), {1000}, DType::i32, DeviceId::host()}, from);
  group.synchronize();
  copy(group[2].compute(), from, to);
  copy(group[2].compute(), to, View{got.data(), {1000}, DType::i32, DeviceId::host()});
  group.synchronize();
  EXPECT_EQ(got, sent);
}

TEST_F(CudaStandins, AGpuThatAnotherProcessUsesAloneIsNamedWithTheRemedy) {
  standins::configure({.taken = 0});
  expect_contains(error_of<CudaError>([] { DeviceGroup group(whole_gpus({0})); }), "cudaErrorDevicesUnavailable",
                  "exclusive compute mode");
  for (const cudaError_t code :
       {cudaErrorSystemNotReady, cudaErrorNotPermitted, cudaErrorECCUncorrectable, cudaErrorStubLibrary})
    EXPECT_STRNE(cuda::remedy(code), "");
}

TEST_F(CudaStandins, CollectivesComeBeforeKernels) {
  DeviceGroup group(gpus(1));
  int usual = 0, highest = 0, compute = 0, communication = 0;
  ASSERT_EQ(cudaDeviceGetStreamPriorityRange(&usual, &highest), cudaSuccess);
  ASSERT_EQ(cudaStreamGetPriority(cuda::native_stream(group[0].compute()), &compute), cudaSuccess);
  ASSERT_EQ(cudaStreamGetPriority(cuda::native_stream(group[0].communication()), &communication), cudaSuccess);
  EXPECT_EQ(compute, usual);
  EXPECT_EQ(communication, highest);
}

TEST_F(CudaStandins, GpusAndTheirPeersAreListed) {
  standins::configure({.device_count = 3});
  const GpuReport report = query_gpus(true);
  ASSERT_EQ(report.gpus.size(), 3U);
  EXPECT_FALSE(report.gpus[1].name.empty());
  EXPECT_FALSE(report.gpus[1].pci_bus_id.empty());
  EXPECT_GT(report.gpus[1].free_bytes, 0);
  EXPECT_EQ(report.gpus[1].peers, (std::vector<bool>{true, false, true}));
}

TEST_F(CudaStandins, OutOfMemoryNamesTheDeviceAndReleasesEverything) {
  const int64_t before = standins::live_objects();
  {
    DeviceGroup group(gpus(3));
    if (group[2].id().index != 2) GTEST_SKIP() << "one GPU";
    standins::fail_next_malloc(2);
    const auto allocate = [&](int d) { return group[d].compute().allocate({100}, DType::u8, Category::staging, "t"); };
    const Tensor zero_is_fine = allocate(0);
    expect_contains(error_of<OutOfMemory>([&] { allocate(2); }), "cuda:2");
    EXPECT_NO_THROW(allocate(2));  // the next one succeeds
  }
  EXPECT_EQ(standins::live_objects(), before);
}

TEST_F(CudaStandins, SpansWithoutWorkInBetweenShareAnEvent) {
  DeviceGroupOptions options = gpus(1);
  options.trace = TraceLevel::phase;
  DeviceGroup group(options);
  ExecContext& ctx = group[0].compute();
  const Tensor t = ctx.allocate({100}, DType::u8, Category::staging, "t");
  // The host may lose its core between two spans, which then get an event each: only rounds that were quick count.
  constexpr int64_t kQuickNs = 4000;
  int quick_opened = 0, quick_closed = 0;
  for (int i = 0; i < 10'000 && (quick_opened < 10 || quick_closed < 10); ++i) {
    int64_t closing = 0;
    standins::take_call_counts();
    const int64_t opening = steady_now_ns();
    {
      const PhaseScope outer(ctx, Phase::forward, "outer"), inner(ctx, Phase::forward, "inner");
      if (steady_now_ns() - opening < kQuickNs) {
        ++quick_opened;
        ASSERT_LE(standins::take_call_counts().timed_records, 1) << "the begin of both";
      }
      zero(ctx, t);
      standins::take_call_counts();
      closing = steady_now_ns();
    }
    if (steady_now_ns() - closing < kQuickNs) {
      ++quick_closed;
      ASSERT_EQ(standins::take_call_counts().timed_records, 1) << "the end of both, after work";
    }
  }
#if !defined(__SANITIZE_THREAD__)  // under which no round may be quick
  EXPECT_GE(quick_opened, 10);
  EXPECT_GE(quick_closed, 10);
#endif
  group.synchronize();
  ctx.stream().take_spans();
  { const PhaseScope phase(ctx, Phase::forward, "before"); }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const int64_t now = steady_now_ns();
  { const PhaseScope phase(ctx, Phase::forward, "after"); }
  group.synchronize();
  const std::vector<SpanRecord> spans = ctx.stream().take_spans();
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_GE(spans[1].begin_ns, now - 5000000) << "an idle stream's next span begins when the host opens it";
}

TEST_F(CudaStandins, CapacityIsFreeMemoryDividedByTheDevicesThatShareAGpu) {
  standins::configure({.device_count = 1, .capacity_bytes = int64_t{1} << 30});
  DeviceGroup group(whole_gpus({0, 0}));
  EXPECT_EQ(group[0].pool().capacity_bytes(), group[1].pool().capacity_bytes());
  // Libraries need at least 1.5 GiB outside the pools; of a small GPU half.
  EXPECT_EQ(group[0].pool().capacity_bytes(), ((int64_t{1} << 30) - standins::kContextBytes) / 4);
}

TEST_F(CudaStandins, LibrariesGetMemoryOutsideThePools) {
  standins::configure({.device_count = 1, .capacity_bytes = int64_t{16} << 30});
  DeviceGroup group(whole_gpus({0}));
  EXPECT_EQ(group[0].pool().capacity_bytes(), (int64_t{16} << 30) - standins::kContextBytes - (int64_t{3} << 29));
}

TEST_F(CudaStandins, EnlargedBuffersOfNcclStayOutsideThePools) {
  standins::configure({.device_count = 2, .capacity_bytes = int64_t{16} << 30});
  const auto capacity = [](const std::vector<int>& gpus) {
    DeviceGroup group(whole_gpus(gpus));
    return group[0].pool().capacity_bytes();
  };
  const int64_t usual = capacity({0, 1});
  setenv("NCCL_BUFFSIZE", "16777216", 1);
  EXPECT_EQ(usual - capacity({0, 1}), int64_t{32 * 12} << 20) << "32 channels";
  EXPECT_EQ(capacity({0}), usual) << "a GPU alone does not use NCCL";
  setenv("NCCL_MAX_NCHANNELS", "2", 1);
  EXPECT_EQ(usual - capacity({0, 1}), int64_t{2 * 12} << 20);
  setenv("NCCL_BUFFSIZE", "1048576", 1);
  EXPECT_EQ(capacity({0, 1}), usual);
  unsetenv("NCCL_MAX_NCHANNELS");
  unsetenv("NCCL_BUFFSIZE");
}

#endif

}  // namespace
}  // namespace vitrine::test
