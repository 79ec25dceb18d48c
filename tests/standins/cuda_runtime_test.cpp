// SPDX-License-Identifier: Apache-2.0
// The stand-in for the CUDA runtime has CUDA's order and reports CUDA's errors.
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "tests/standins/controls.h"
#include "tests/standins/device_interface.h"

namespace vitrine::standins {
namespace {

class CudaRuntime : public ::testing::Test {
 protected:
  void SetUp() override {
    configure({.lazy_loading = false});
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  }
  void TearDown() override {
    cudaGetLastError();
    EXPECT_EQ(live_objects(), 0);
    reset();
  }
};

cudaStream_t make_stream(int device) {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  return stream;
}

cudaEvent_t make_event(unsigned flags = cudaEventDefault) {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, flags), cudaSuccess);
  return event;
}

template <class T>
T* device_memory(int device, size_t count) {
  void* p = nullptr;
  EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&p, count * sizeof(T)), cudaSuccess);
  return static_cast<T*>(p);
}

/// Work that blocks a stream until it is released.
struct Gate {
  std::atomic<bool> open{false};
  static void wait(void* gate) {
    while (!static_cast<Gate*>(gate)->open.load()) std::this_thread::yield();
  }
  void block(cudaStream_t stream) { EXPECT_EQ(cudaLaunchHostFunc(stream, &wait, this), cudaSuccess); }
};

TEST_F(CudaRuntime, AStreamWaitsForAnEventOfAnotherDevice) {
  const cudaStream_t a = make_stream(0), b = make_stream(1);
  int* const p = device_memory<int>(0, 1);
  int* const q = device_memory<int>(1, 1);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  const cudaEvent_t event = make_event(cudaEventDisableTiming);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess) << "never recorded: complete";
  EXPECT_EQ(cudaStreamWaitEvent(b, event, 0), cudaSuccess);
  Gate gate;
  gate.block(a);
  ASSERT_EQ(cudaMemsetAsync(p, 7, sizeof(int), a), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, a), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(b, event, 0), cudaSuccess);
  ASSERT_EQ(cudaMemcpyPeerAsync(q, 1, p, 0, sizeof(int), b), cudaSuccess);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(b), cudaErrorNotReady);
  gate.open = true;
  EXPECT_EQ(cudaStreamSynchronize(b), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(a), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(a), cudaSuccess);
  int value = 0;
  ASSERT_EQ(cudaMemcpyAsync(&value, q, sizeof value, cudaMemcpyDefault, b), cudaSuccess);
  EXPECT_EQ(value, 0x07070707) << "a copy to pageable memory is done when it returns";
  cudaEventDestroy(event);
  cudaFree(p);
  cudaFree(q);
  cudaStreamDestroy(a);
  cudaStreamDestroy(b);
}

TEST_F(CudaRuntime, AWaitRefersToTheLatestRecord) {
  const cudaStream_t a = make_stream(0), b = make_stream(0);
  const cudaEvent_t event = make_event();
  ASSERT_EQ(cudaEventRecord(event, a), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(b, event, 0), cudaSuccess);
  Gate gate;
  gate.block(a);
  ASSERT_EQ(cudaEventRecord(event, a), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(b), cudaSuccess) << "waits for the first record only";
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  gate.open = true;
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  cudaEventDestroy(event);
  cudaStreamDestroy(a);
  cudaStreamDestroy(b);
}

TEST_F(CudaRuntime, EventsMeasureTheTimeBetweenThem) {
  const cudaStream_t stream = make_stream(0);
  const cudaEvent_t begin = make_event(), end = make_event(), untimed = make_event(cudaEventDisableTiming);
  ASSERT_EQ(cudaEventRecord(begin, stream), cudaSuccess);
  ASSERT_EQ(cudaLaunchHostFunc(
                stream, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }, nullptr),
            cudaSuccess);
  ASSERT_EQ(cudaEventRecord(end, stream), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(untimed, stream), cudaSuccess);
  float milliseconds = 0;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaErrorNotReady);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ASSERT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaSuccess);
  EXPECT_GE(milliseconds, 19.9F);
  EXPECT_LT(milliseconds, 5000.0F);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, untimed), cudaErrorInvalidResourceHandle);
  for (cudaEvent_t event : {begin, end, untimed}) cudaEventDestroy(event);
  cudaStreamDestroy(stream);
}

TEST_F(CudaRuntime, CopiesFromPageableMemoryAreStagedDuringTheCall) {
  const cudaStream_t stream = make_stream(0);
  int* const p = device_memory<int>(0, 1);
  int value = 42;
  Gate gate;
  gate.block(stream);
  ASSERT_EQ(cudaMemcpyAsync(p, &value, sizeof value, cudaMemcpyHostToDevice, stream), cudaSuccess);
  value = 0;
  gate.open = true;
  ASSERT_EQ(cudaMemcpyAsync(&value, p, sizeof value, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(value, 42);
  cudaFree(p);
  cudaStreamDestroy(stream);
}

TEST_F(CudaRuntime, CopiesFromPinnedMemoryReadItLater) {
  const cudaStream_t stream = make_stream(0);
  int* const p = device_memory<int>(0, 1);
  void* pinned = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, sizeof(int), cudaHostAllocDefault), cudaSuccess);
  std::memset(pinned, 1, sizeof(int));
  Gate gate;
  gate.block(stream);
  ASSERT_EQ(cudaMemcpyAsync(p, pinned, sizeof(int), cudaMemcpyHostToDevice, stream), cudaSuccess);
  std::memset(pinned, 2, sizeof(int));  // too early: the copy has not run
  gate.open.store(true);
  int value = 0;
  ASSERT_EQ(cudaMemcpyAsync(&value, p, sizeof value, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(value, 0x02020202);
  cudaFree(p);
  cudaFreeHost(pinned);
  cudaStreamDestroy(stream);
}

TEST_F(CudaRuntime, ADeviceHasALimitedCapacity) {
  configure({.device_count = 2, .capacity_bytes = int64_t{64} << 20});
  size_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
  EXPECT_EQ(total_bytes, size_t{64} << 20);
  EXPECT_EQ(free_bytes, total_bytes - kContextBytes);
  void *p = nullptr, *q = nullptr;
  EXPECT_EQ(cudaMalloc(&p, free_bytes + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&p, free_bytes), cudaSuccess);
  EXPECT_EQ(allocated_bytes(0), static_cast<int64_t>(free_bytes));
  EXPECT_EQ(cudaMalloc(&q, 1), cudaErrorMemoryAllocation);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&q, 1), cudaSuccess);
  EXPECT_THROW(reset(), std::logic_error) << "p and q live";
  EXPECT_EQ(cudaFree(p), cudaSuccess);
  EXPECT_EQ(cudaFree(q), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  fail_next_malloc(0);
  EXPECT_EQ(cudaMalloc(&p, 1), cudaErrorMemoryAllocation);
  ASSERT_EQ(cudaMalloc(&p, 1), cudaSuccess);
  EXPECT_EQ(cudaFree(p), cudaSuccess);
}

TEST_F(CudaRuntime, WrongPointersAreDetectedDuringTheCall) {
  const cudaStream_t stream = make_stream(0);
  auto* const p = device_memory<char>(0, 1000);
  auto* const other = device_memory<char>(1, 1000);
  std::vector<char> host(2000);
  EXPECT_EQ(cudaMemcpyAsync(p, host.data(), 1001, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue)
      << "out of bounds";
  EXPECT_EQ(cudaMemcpyAsync(host.data(), p + 500, 501, cudaMemcpyDeviceToHost, stream), cudaErrorInvalidValue)
      << "out of bounds";
  EXPECT_EQ(cudaMemcpyAsync(p, host.data(), 8, cudaMemcpyDeviceToDevice, stream), cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(cudaMemcpyPeerAsync(p, 0, p + 500, 1, 8, stream), cudaErrorInvalidValue) << "not of device 1";
  EXPECT_EQ(cudaMemsetAsync(host.data(), 0, 8, stream), cudaErrorInvalidValue) << "host memory";
  EXPECT_EQ(cudaFree(host.data()), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(p + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(p), cudaSuccess);
  EXPECT_EQ(cudaFree(p), cudaErrorInvalidValue) << "twice";
  EXPECT_EQ(cudaMemcpyAsync(p, host.data(), 8, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue) << "freed";
  cudaFree(other);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess) << "nothing was queued, nothing stays";
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaErrorInvalidResourceHandle)
      << "the default stream is not supported by the stand-in";
}

TEST_F(CudaRuntime, EventsAndStreamsBelongToTheirDevice) {
  const cudaStream_t a = make_stream(0), b = make_stream(1);
  const cudaEvent_t event = make_event();  // of device 1
  EXPECT_EQ(cudaEventRecord(event, a), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(event, b), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(a, event, 0), cudaSuccess);
  int device = -1;
  EXPECT_EQ(cudaStreamGetDevice(b, &device), cudaSuccess);
  EXPECT_EQ(device, 1);
  cudaEventDestroy(event);
  EXPECT_EQ(cudaEventSynchronize(event), cudaErrorInvalidResourceHandle);
  cudaStreamDestroy(a);
  cudaStreamDestroy(b);
}

/// As in CUDA, the current device gives memory, whichever device the arguments belong to.
TEST_F(CudaRuntime, TheFirstCallOfAThreadUsesItsCurrentDevice) {
  const auto contexts = [] {
    std::vector<int> devices;
    for (int d = 0; d < 8; ++d) {
      if (has_context(d)) devices.push_back(d);
    }
    return devices;
  };
  reset();
  const cudaStream_t stream = make_stream(3);
  auto* const p = device_memory<char>(3, 100);
  EXPECT_EQ(contexts(), std::vector<int>{3});
  std::thread([] {
    int device = -1;
    EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
    EXPECT_EQ(device, 0);
  }).join();
  EXPECT_EQ(contexts(), std::vector<int>{3}) << "a query of the device";
  std::thread([&] { EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess); }).join();
  EXPECT_EQ(contexts(), (std::vector<int>{0, 3}));
  std::thread([&] {
    EXPECT_EQ(cudaSetDevice(5), cudaSuccess);
    EXPECT_EQ(cudaFree(p), cudaSuccess);
  }).join();
  EXPECT_EQ(contexts(), (std::vector<int>{0, 3, 5}));
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(CudaRuntime, CallsAreCounted) {
  const cudaStream_t stream = make_stream(0);
  auto* const p = device_memory<char>(0, 100);
  const cudaEvent_t timed = make_event(), untimed = make_event(cudaEventDisableTiming);
  take_call_counts();
  EXPECT_EQ(cudaMemsetAsync(p, 0, 100, stream), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(p, p + 50, 50, cudaMemcpyDeviceToDevice, stream), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(timed, stream), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(untimed, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(stream, timed, 0), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  const CallCounts counts = take_call_counts();
  EXPECT_EQ(counts.fills, 1);
  EXPECT_EQ(counts.copies, 1);
  EXPECT_EQ(counts.timed_records, 1);
  EXPECT_EQ(counts.records, 1);
  EXPECT_EQ(counts.waits, 1);
  EXPECT_EQ(counts.launches, 0);
  EXPECT_EQ(counts.all, 6);
  EXPECT_EQ(take_call_counts().all, 0);
  cudaEventDestroy(timed);
  cudaEventDestroy(untimed);
  cudaFree(p);
  cudaStreamDestroy(stream);
}

__global__ void increment(int* p) { ++*p; }

TEST_F(CudaRuntime, AFailedLaunchPutsOnlyItsDeviceInError) {
  const cudaStream_t a = make_stream(0), b = make_stream(1);
  int* const p = device_memory<int>(0, 1);
  const cudaEvent_t event = [] {
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
    return make_event();
  }();
  ASSERT_EQ(cudaMemsetAsync(p, 0, sizeof(int), a), cudaSuccess);
  fail_launch(0, 2);
  cuda::launch(a, increment, dim3(1), dim3(3), p);
  int value = 0;
  ASSERT_EQ(cudaMemcpyAsync(&value, p, sizeof value, cudaMemcpyDeviceToHost, a), cudaSuccess);
  EXPECT_EQ(value, 3);
  Gate gate;
  gate.block(a);
  cuda::launch(a, increment, dim3(1), dim3(3), p);
  ASSERT_EQ(cudaEventRecord(event, a), cudaSuccess) << "the failure comes later";
  ASSERT_EQ(cudaStreamWaitEvent(b, event, 0), cudaSuccess);
  gate.open = true;
  EXPECT_EQ(cudaStreamSynchronize(a), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaMemsetAsync(p, 0, sizeof(int), a), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&value), 1), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamSynchronize(b), cudaSuccess) << "events are reached, other devices go on";
  cudaGetLastError();
  cudaEventDestroy(event);
  cudaFree(p);
  cudaStreamDestroy(a);
  cudaStreamDestroy(b);
}

TEST_F(CudaRuntime, MachinesWithoutGpuOrDriverReportIt) {
  int count = -1;
  configure({.driver = Driver::missing});
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
  EXPECT_EQ(count, 0);
  EXPECT_EQ(cudaSetDevice(0), cudaErrorInsufficientDriver);
  configure({.driver = Driver::without_gpu});
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  configure({.device_count = 3, .peer_access = false});
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 3);
  int can = 1;
  EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 0, 1), cudaSuccess);
  EXPECT_EQ(can, 0);
  EXPECT_EQ(cudaSetDevice(3), cudaErrorInvalidDevice);
}

TEST_F(CudaRuntime, TheFirstLaunchOfAFunctionWaitsForItsDevice) {
  configure({});
  const cudaStream_t a = make_stream(0), b = make_stream(0);
  int* const p = device_memory<int>(0, 3);
  for (const bool first : {true, false}) {
    Gate gate;
    gate.block(a);
    std::atomic<bool> launched{false};
    std::thread launcher([&] {
      EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
      cuda::launch(b, increment, dim3(1), dim3(3), p);
      launched = true;
    });
    if (first) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      EXPECT_FALSE(launched) << "work on another stream is not done";
      gate.open = true;
    }
    launcher.join();
    gate.open = true;
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  cudaFree(p);
  cudaStreamDestroy(a);
  cudaStreamDestroy(b);
}

TEST_F(CudaRuntime, VisibleDevicesAreSelectedAndRenumbered) {
  setenv("CUDA_VISIBLE_DEVICES", "2,0,9,1", 1);
  configure({.device_count = 4});
  unsetenv("CUDA_VISIBLE_DEVICES");
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 2) << "devices after an unknown one are not visible";
  char first[16], second[16];
  ASSERT_EQ(cudaDeviceGetPCIBusId(first, sizeof first, 0), cudaSuccess);
  ASSERT_EQ(cudaDeviceGetPCIBusId(second, sizeof second, 1), cudaSuccess);
  EXPECT_STREQ(first, "0000:03:00.0");
  EXPECT_STREQ(second, "0000:01:00.0");
}

}  // namespace
}  // namespace vitrine::standins
