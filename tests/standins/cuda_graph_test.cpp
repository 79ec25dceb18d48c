// SPDX-License-Identifier: Apache-2.0
// The stand-in for CUDA graphs: captured work runs when it is launched, in the order of the captured edges, and a
// capture fails where CUDA's does.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "tests/standins/device_interface.h"
#include "tests/standins/library_fixture.h"

namespace vitrine::standins {
namespace {

__global__ void add_one(int* p) { *p += 1; }
__global__ void copy_to(const int* from, int* to) { *to = *from; }

class CudaGraphs : public LibraryTest {
 protected:
  void SetUp() override {
    LibraryTest::SetUp();
    numbers_ = upload(std::vector<int>(2));
    ASSERT_EQ(cudaEventCreate(&event_), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&other_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(other_), cudaSuccess);
    LibraryTest::TearDown();
  }
  void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    ASSERT_EQ(cudaStreamBeginCapture(stream_, mode), cudaSuccess);
  }
  cudaError_t end() {
    cudaGraph_t graph = nullptr;
    const cudaError_t code = cudaStreamEndCapture(stream_, &graph);
    EXPECT_EQ(graph != nullptr, code == cudaSuccess);
    if (graph == nullptr) return code;
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return code;
  }
  cudaGraphExec_t instantiate() {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return executable;
  }
  void add() { cuda::launch(stream_, add_one, dim3(1), dim3(1), numbers_); }
  std::vector<int> numbers() { return download(numbers_, 2); }

  cudaEvent_t event_ = nullptr;
  cudaStream_t other_ = nullptr;
  int* numbers_ = nullptr;
};

TEST_F(CudaGraphs, WorkRunsAtEachLaunchInOrder) {
  begin();
  add();
  cuda::launch(stream_, copy_to, dim3(1), dim3(1), static_cast<const int*>(numbers_), numbers_ + 1);
  add();
  const cudaGraphExec_t graph = instantiate();
  EXPECT_EQ(numbers(), (std::vector<int>{0, 0}));
  take_call_counts();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cudaGraphLaunch(graph, stream_), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(graph), cudaSuccess);
  EXPECT_EQ(take_call_counts().graph_launches, 3);
  EXPECT_EQ(numbers(), (std::vector<int>{6, 5}));
}

TEST_F(CudaGraphs, TellWhetherAStreamIsCaptured) {
  cudaStreamCaptureStatus status{};
  EXPECT_EQ(cudaStreamIsCapturing(stream_, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  begin();
  EXPECT_EQ(cudaStreamIsCapturing(stream_, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), cudaErrorIllegalState);
  EXPECT_EQ(end(), cudaSuccess);
  EXPECT_EQ(cudaStreamIsCapturing(stream_, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
}

TEST_F(CudaGraphs, ACallThatWaitsOrAllocatesInvalidatesTheCapture) {
  const auto invalidates = [&](cudaError_t expected, const auto& call) {
    begin();
    add();
    EXPECT_EQ(call(), expected);
    EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  };
  void* p = nullptr;
  int on_host = 0;
  ASSERT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
  invalidates(cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamSynchronize(stream_); });
  invalidates(cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamQuery(stream_); });
  invalidates(cudaErrorStreamCaptureUnsupported, [&] { return cudaDeviceSynchronize(); });
  invalidates(cudaErrorStreamCaptureUnsupported, [&] { return cudaEventQuery(event_); });
  invalidates(cudaErrorStreamCaptureUnsupported, [&] { return cudaEventSynchronize(event_); });
  invalidates(cudaErrorStreamCaptureUnsupported, [&] { return cudaMalloc(&p, 8); });
  invalidates(cudaErrorStreamCaptureUnsupported, [&] { return cudaHostAlloc(&p, 8, 0); });
  invalidates(cudaErrorStreamCaptureUnsupported, [&] { return cudaFree(numbers_); });
  invalidates(cudaErrorStreamCaptureUnsupported,
              [&] { return cudaMemcpyAsync(numbers_, &on_host, 4, cudaMemcpyHostToDevice, stream_); });
  invalidates(cudaErrorStreamCaptureIsolation, [&] { return cudaStreamWaitEvent(stream_, event_, 0); });
  EXPECT_EQ(numbers(), (std::vector<int>{0, 0}));
}

TEST_F(CudaGraphs, InRelaxedModeAThreadMayAllocate) {
  begin(cudaStreamCaptureModeRelaxed);
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, 8), cudaSuccess);
  EXPECT_EQ(end(), cudaSuccess);
  EXPECT_EQ(cudaFree(p), cudaSuccess);
}

TEST_F(CudaGraphs, InThreadLocalModeOtherThreadsMayAllocate) {
  begin();
  std::thread([] {
    void* p = nullptr;
    EXPECT_EQ(cudaMalloc(&p, 8), cudaSuccess);
    EXPECT_EQ(cudaFree(p), cudaSuccess);
  }).join();
  EXPECT_EQ(end(), cudaSuccess);
}

TEST_F(CudaGraphs, AnEventOfACaptureIsOfNoUseOutside) {
  begin();
  EXPECT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(stream_, event_, 0), cudaSuccess);
  EXPECT_EQ(end(), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaStreamWaitEvent(other_, event_, 0), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaSuccess);
}

TEST_F(CudaGraphs, AStreamThatWaitsForACapturedEventTakesPart) {
  cudaEvent_t joined = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming), cudaSuccess);
  begin();
  EXPECT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(other_, event_, 0), cudaSuccess);
  cuda::launch(other_, add_one, dim3(1), dim3(1), numbers_);
  EXPECT_EQ(cudaEventRecord(joined, other_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(stream_, joined, 0), cudaSuccess);
  cuda::launch(stream_, copy_to, dim3(1), dim3(1), static_cast<const int*>(numbers_), numbers_ + 1);
  const cudaGraphExec_t graph = instantiate();
  cudaStreamCaptureStatus status{};
  EXPECT_EQ(cudaStreamIsCapturing(other_, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  EXPECT_EQ(numbers(), (std::vector<int>{0, 0}));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(cudaGraphLaunch(graph, stream_), cudaSuccess);
  EXPECT_EQ(numbers(), (std::vector<int>{2, 2}));
  EXPECT_EQ(cudaGraphExecDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(joined), cudaSuccess);
}

std::atomic<int> arrived{0};

/// Counts itself, and waits for the other one; *result becomes 1 if that has come.
__global__ void meet(int* result) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  arrived.fetch_add(1);
  while (arrived.load() < 2 && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
  *result = arrived.load() == 2 ? 1 : 0;
}

TEST_F(CudaGraphs, WorkOfSeveralStreamsWithoutAnEdgeRunsAtTheSameTime) {
  begin();
  EXPECT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(other_, event_, 0), cudaSuccess);
  cuda::launch(stream_, meet, dim3(1), dim3(1), numbers_);
  cuda::launch(other_, meet, dim3(1), dim3(1), numbers_ + 1);
  EXPECT_EQ(cudaEventRecord(event_, other_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(stream_, event_, 0), cudaSuccess);
  const cudaGraphExec_t graph = instantiate();
  for (int i = 0; i < 3; ++i) {
    arrived = 0;
    EXPECT_EQ(cudaGraphLaunch(graph, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    EXPECT_EQ(numbers(), (std::vector<int>{1, 1}));
  }
  EXPECT_EQ(cudaGraphExecDestroy(graph), cudaSuccess);
}

TEST_F(CudaGraphs, AreOrderedByTheirEdgesAndByTheStreamOfTheLaunch) {
  const auto order = [&](cudaStream_t first, cudaStream_t second) {
    EXPECT_EQ(cudaEventRecord(event_, first), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(second, event_, 0), cudaSuccess);
  };
  begin();
  for (int i = 0; i < 10; ++i) {
    add();
    order(stream_, other_);
    cuda::launch(other_, copy_to, dim3(1), dim3(1), static_cast<const int*>(numbers_), numbers_ + 1);
    order(other_, stream_);
    cuda::launch(stream_, copy_to, dim3(1), dim3(1), static_cast<const int*>(numbers_ + 1), numbers_);
  }
  const cudaGraphExec_t graph = instantiate();
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(cudaGraphLaunch(graph, stream_), cudaSuccess);
    add();
  }
  EXPECT_EQ(cudaGraphExecDestroy(graph), cudaSuccess) << "while launches are in progress";
  EXPECT_EQ(numbers(), (std::vector<int>{220, 219}));
}

TEST_F(CudaGraphs, AStreamThatTakesPartMustBeJoined) {
  for (const bool early : {false, true}) {
    begin();
    EXPECT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(other_, event_, 0), cudaSuccess);
    if (early) cudaEventRecord(event_, other_);  // before its work
    cuda::launch(other_, add_one, dim3(1), dim3(1), numbers_);
    if (early) cudaStreamWaitEvent(stream_, event_, 0);
    EXPECT_EQ(end(), cudaErrorStreamCaptureUnjoined);
  }
  cuda::launch(other_, add_one, dim3(1), dim3(1), numbers_);
  EXPECT_EQ(cudaStreamSynchronize(other_), cudaSuccess);
  EXPECT_EQ(numbers(), (std::vector<int>{1, 0})) << "it runs again what it is given";
}

TEST_F(CudaGraphs, CapturesDoNotMergeAndEndWhereTheyBegan) {
  begin();
  ASSERT_EQ(cudaStreamBeginCapture(other_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(other_, event_, 0), cudaErrorStreamCaptureMerge);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(other_, &graph), cudaErrorStreamCaptureInvalidated);
  begin();
  EXPECT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(other_, event_, 0), cudaSuccess);
  EXPECT_EQ(cudaStreamEndCapture(other_, &graph), cudaErrorStreamCaptureUnmatched);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(CudaGraphs, AnExternalRecordTakesTheTimeOfEachLaunch) {
  cudaEvent_t end_event = nullptr;
  ASSERT_EQ(cudaEventCreate(&end_event), cudaSuccess);
  begin();
  EXPECT_EQ(cudaEventRecordWithFlags(event_, stream_, cudaEventRecordExternal), cudaSuccess);
  add();
  EXPECT_EQ(cudaEventRecordWithFlags(end_event, stream_, cudaEventRecordExternal), cudaSuccess);
  const cudaGraphExec_t graph = instantiate();
  float milliseconds = -1.0F;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, event_, end_event),
            cudaErrorInvalidResourceHandle);  // not recorded yet
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(cudaGraphLaunch(graph, stream_), cudaSuccess);
    EXPECT_EQ(cudaEventSynchronize(end_event), cudaSuccess);
    EXPECT_EQ(cudaEventElapsedTime(&milliseconds, event_, end_event), cudaSuccess);
    EXPECT_GE(milliseconds, 0.0F);
  }
  EXPECT_EQ(cudaGraphExecDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(end_event), cudaSuccess);
}

TEST_F(CudaGraphs, DestroyedGraphsAndOtherDevicesAreRefused) {
  begin();
  add();
  const cudaGraphExec_t graph = instantiate();
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  cudaStream_t other = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(graph, other), cudaErrorInvalidValue);
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(graph, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGraphExecDestroy(graph), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace vitrine::standins
