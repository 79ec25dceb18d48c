// SPDX-License-Identifier: Apache-2.0
// The stand-in for NCCL: collectives between the ranks of one process, non-blocking communicators, failures.
#include <atomic>
#include <chrono>
#include <functional>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include "tests/standins/controls.h"
#include "tests/support/expect_contains.h"

namespace vitrine::standins {
namespace {

constexpr int kRanks = 4;

/// One communicator, stream and buffer for each of four devices.
class Nccl : public ::testing::Test {
 protected:
  void SetUp() override {
    reset();
    for (int r = 0; r < kRanks; ++r) {
      ASSERT_EQ(cudaSetDevice(r), cudaSuccess);
      ASSERT_EQ(cudaStreamCreateWithFlags(&streams_[r], cudaStreamNonBlocking), cudaSuccess);
      void* p = nullptr;
      ASSERT_EQ(cudaMalloc(&p, kBytes), cudaSuccess);
      buffers_[r] = static_cast<float*>(p);
    }
  }
  void TearDown() override {
    for (ncclComm_t& comm : comms_) {
      if (comm != nullptr) ncclCommAbort(comm);
    }
    for (int r = 0; r < kRanks; ++r) {
      cudaStreamDestroy(streams_[r]);
      cudaFree(buffers_[r]);
    }
    cudaGetLastError();
    EXPECT_EQ(live_objects(), 0);
    reset();
  }

  void init(bool blocking) {
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking ? 1 : 0;
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    for (int r = 0; r < kRanks; ++r) {
      ASSERT_EQ(cudaSetDevice(r), cudaSuccess);
      ASSERT_EQ(ncclCommInitRankConfig(&comms_[r], kRanks, id, r, &config), ncclSuccess);
    }
    ASSERT_EQ(ncclGroupEnd(), blocking ? ncclSuccess : ncclInProgress);
  }
  ncclResult_t poll(int rank) {
    ncclResult_t state = ncclSuccess;
    EXPECT_EQ(ncclCommGetAsyncError(comms_[rank], &state), ncclSuccess);
    return state;
  }
  ncclResult_t poll_to_end(int rank) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
    while (std::chrono::steady_clock::now() < deadline) {
      if (const ncclResult_t state = poll(rank); state != ncclInProgress) return state;
    }
    return ncclInProgress;
  }
  ncclResult_t all_reduce(int rank) {
    return ncclAllReduce(buffers_[rank], buffers_[rank], 1, ncclFloat32, ncclSum, comms_[rank], streams_[rank]);
  }
  /// Calls for every rank, in a group.
  void all(const std::function<ncclResult_t(int)>& call) {
    ncclGroupStart();
    for (int r = 0; r < kRanks; ++r) EXPECT_EQ(call(r), ncclSuccess);
    EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
  }
  void fill(int rank, const std::vector<float>& values) {
    ASSERT_EQ(cudaMemcpyAsync(buffers_[rank], values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice,
                              streams_[rank]),
              cudaSuccess);
  }
  std::vector<float> read(int rank, size_t count, size_t offset = 0) {
    std::vector<float> values(count);
    EXPECT_EQ(cudaMemcpyAsync(values.data(), buffers_[rank] + offset, count * sizeof(float), cudaMemcpyDeviceToHost,
                              streams_[rank]),
              cudaSuccess);
    return values;
  }
  /// Rank r holds r * 100, r * 100 + 1, ...
  void fill_all(size_t count) {
    for (int r = 0; r < kRanks; ++r) {
      std::vector<float> values(count);
      std::iota(values.begin(), values.end(), static_cast<float>(r) * 100);
      fill(r, values);
    }
  }

  static constexpr size_t kBytes = size_t{64} << 10;
  cudaStream_t streams_[kRanks] = {};
  ncclComm_t comms_[kRanks] = {};
  float* buffers_[kRanks] = {};
};

TEST_F(Nccl, CollectivesGiveEachRankItsShare) {
  init(true);
  const size_t n = 5000;
  fill_all(n);
  all([&](int r) { return ncclAllReduce(buffers_[r], buffers_[r], n, ncclFloat32, ncclSum, comms_[r], streams_[r]); });
  for (int r = 0; r < kRanks; ++r) {
    const auto sums = read(r, n);
    for (size_t i = 0; i < n; ++i) ASSERT_EQ(sums[i], 600.0F + 4.0F * static_cast<float>(i));
  }
  fill_all(8);
  all([&](int r) {
    return ncclReduceScatter(buffers_[r], buffers_[r] + 100, 2, ncclFloat32, ncclSum, comms_[r], streams_[r]);
  });
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_EQ(read(r, 2, 100),
              (std::vector{600.0F + 8.0F * static_cast<float>(r), 604.0F + 8.0F * static_cast<float>(r)}));
  }
  fill_all(1);
  all([&](int r) { return ncclAllGather(buffers_[r], buffers_[r] + 100, 1, ncclFloat32, comms_[r], streams_[r]); });
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(read(r, 4, 100), (std::vector{0.0F, 100.0F, 200.0F, 300.0F}));
  fill_all(1);
  all([&](int r) { return ncclReduce(buffers_[r], buffers_[r], 1, ncclFloat32, ncclSum, 2, comms_[r], streams_[r]); });
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(read(r, 1)[0], r == 2 ? 600.0F : static_cast<float>(r) * 100);
  all([&](int r) { return ncclBroadcast(buffers_[r], buffers_[r], 4, ncclInt8, 2, comms_[r], streams_[r]); });
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(read(r, 1)[0], 600.0F);
}

/// 2048 + 1 + 1 + 1 in f16 is 2048 if the sum of every two is rounded, and so is 256 + 1 + 1 + 1 in bf16: as in NCCL's
/// ring.
TEST_F(Nccl, HalvesAreRoundedAfterEveryAddition) {
  init(true);
  const auto check = [&]<class T>(ncclDataType_t type, float large, T) {
    const auto typed = [&](int r) { return reinterpret_cast<T*>(buffers_[r]); };
    const auto fill_halves = [&] {
      for (int r = 0; r < kRanks; ++r) {
        std::vector<T> values(8, static_cast<T>(static_cast<float>(r) + 0.5F));
        for (size_t i = 4; i < 8; ++i) values[i] = static_cast<T>(r == 0 ? large : 1.0F);
        ASSERT_EQ(cudaMemcpyAsync(typed(r), values.data(), 8 * sizeof(T), cudaMemcpyHostToDevice, streams_[r]),
                  cudaSuccess);
      }
    };
    const auto expect = [&](int r, size_t at, size_t count, const std::vector<float>& expected) {
      std::vector<T> values(count);
      ASSERT_EQ(cudaMemcpyAsync(values.data(), typed(r) + at, count * sizeof(T), cudaMemcpyDeviceToHost, streams_[r]),
                cudaSuccess);
      for (size_t i = 0; i < count; ++i) EXPECT_EQ(static_cast<float>(values[i]), expected[i]) << "rank " << r;
    };
    fill_halves();
    all([&](int r) { return ncclReduceScatter(typed(r), typed(r) + 100, 2, type, ncclSum, comms_[r], streams_[r]); });
    for (int r = 0; r < kRanks; ++r) expect(r, 100, 2, std::vector(2, r < 2 ? 8.0F : large));
    all([&](int r) { return ncclReduce(typed(r), typed(r) + 100, 8, type, ncclSum, 3, comms_[r], streams_[r]); });
    expect(3, 100, 8, {8.0F, 8.0F, 8.0F, 8.0F, large, large, large, large});
    all([&](int r) { return ncclAllReduce(typed(r), typed(r), 8, type, ncclSum, comms_[r], streams_[r]); });
    for (int r = 0; r < kRanks; ++r) expect(r, 0, 8, {8.0F, 8.0F, 8.0F, 8.0F, large, large, large, large});
  };
  check(ncclFloat16, 2048.0F, __half{});
  check(ncclBfloat16, 256.0F, __nv_bfloat16{});
}

TEST_F(Nccl, GroupedTransfersDoNotWaitForEachOther) {
  init(true);
  fill_all(1);
  // Every rank sends to every other.
  all([&](int r) {
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer == r) continue;
      EXPECT_EQ(ncclSend(buffers_[r], 1, ncclFloat32, peer, comms_[r], streams_[r]), ncclSuccess);
      EXPECT_EQ(ncclRecv(buffers_[r] + 1 + peer, 1, ncclFloat32, peer, comms_[r], streams_[r]), ncclSuccess);
    }
    return ncclSuccess;
  });
  for (int r = 0; r < kRanks; ++r) {
    const auto values = read(r, 1 + kRanks);
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer == r) continue;
      EXPECT_EQ(values[static_cast<size_t>(1 + peer)], static_cast<float>(peer) * 100);
    }
  }
}

TEST_F(Nccl, NonBlockingCommunicatorsProgressWhilePolled) {
  init(false);
  EXPECT_EQ(poll(0), ncclInProgress);
  EXPECT_EQ(all_reduce(0), ncclInvalidArgument) << "not ready yet";
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(poll_to_end(r), ncclSuccess);
  fill_all(1);
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(all_reduce(r), ncclInProgress);
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(cudaStreamSynchronize(streams_[r]), cudaSuccess);
  EXPECT_EQ(read(1, 1)[0], 100.0F) << "nothing was queued yet";
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(poll_to_end(r), ncclSuccess);
  EXPECT_EQ(read(1, 1)[0], 600.0F);
}

TEST_F(Nccl, ACallMustBeAcceptedBeforeACaptureEnds) {
  init(false);
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(poll_to_end(r), ncclSuccess);
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(all_reduce(r), ncclInProgress);
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(poll_to_end(r), ncclSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(all_reduce(0), ncclInProgress);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(poll_to_end(0), ncclInvalidUsage);
}

TEST_F(Nccl, RanksCanBeIssuedFromSeparateThreads) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  fill_all(1);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      cudaSetDevice(r);
      EXPECT_EQ(ncclCommInitRank(&comms_[r], kRanks, id, r), ncclSuccess);
      for (int i = 0; i < 20; ++i) {
        EXPECT_EQ(ncclAllReduce(buffers_[r], buffers_[r] + 1, 1, ncclFloat32, ncclSum, comms_[r], streams_[r]),
                  ncclSuccess);
      }
      EXPECT_EQ(cudaStreamSynchronize(streams_[r]), cudaSuccess);
    });
  }
  for (std::thread& t : threads) t.join();
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(read(r, 1, 1)[0], 600.0F);
}

TEST_F(Nccl, TheFirstCollectiveWaitsForAllRanks) {
  init(true);
  std::atomic<bool> returned{false};
  std::thread first([&] {
    EXPECT_EQ(all_reduce(0), ncclSuccess);
    returned = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(returned);
  ncclResult_t state = ncclSuccess;
  EXPECT_EQ(ncclCommGetAsyncError(comms_[0], &state), ncclInvalidUsage) << "another thread is inside a call";
  ncclGroupStart();
  for (int r = 1; r < kRanks; ++r) EXPECT_EQ(all_reduce(r), ncclSuccess);
  EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
  first.join();
  EXPECT_EQ(all_reduce(0), ncclSuccess) << "the second one does not wait";
  for (int r = 1; r < kRanks; ++r) EXPECT_EQ(all_reduce(r), ncclSuccess);
}

TEST_F(Nccl, AnAbortEndsAFirstCollective) {
  init(true);
  std::thread first([&] { EXPECT_EQ(all_reduce(0), ncclInternalError); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(ncclCommAbort(comms_[0]), ncclSuccess);
  first.join();
  comms_[0] = nullptr;
  EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess) << "nothing was queued";
}

TEST_F(Nccl, TwoRanksOnOneDeviceAreRefused) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ncclGroupStart();
  for (int r = 0; r < 2; ++r) EXPECT_EQ(ncclCommInitRank(&comms_[r], 2, id, r), ncclSuccess);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  expect_contains(ncclGetLastError(comms_[0]), "Duplicate GPU");
}

TEST_F(Nccl, WithoutARankAllStayInProgress) {
  hang_nccl_init(2);
  init(false);
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(poll_to_end(r), ncclInProgress);
}

void expect_stuck(cudaStream_t stream) {
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
}

TEST_F(Nccl, AMissingRankHangsTheOthersUntilTheyAreAborted) {
  init(true);
  hang_nccl_call(1, 2);
  for (int i = 0; i < 2; ++i) {
    all([&](int r) { return all_reduce(r); });
    if (i > 0) break;
    EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
  }
  for (int r = 0; r < kRanks; ++r) expect_stuck(streams_[r]);
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_EQ(poll(r), ncclSuccess) << "no error is detected";
    EXPECT_EQ(ncclCommAbort(comms_[r]), ncclSuccess);
    EXPECT_EQ(cudaStreamSynchronize(streams_[r]), cudaSuccess);
    EXPECT_EQ(ncclCommAbort(comms_[r]), ncclInvalidArgument) << "it is gone";
    comms_[r] = nullptr;
  }
}

TEST_F(Nccl, DisagreeingRanksHangUntilTheyAreAborted) {
  init(true);
  all([&](int r) {
    return ncclAllReduce(buffers_[r], buffers_[r], r == 3 ? 2 : 1, ncclFloat32, ncclSum, comms_[r], streams_[r]);
  });
  for (int r = 0; r < kRanks; ++r) expect_stuck(streams_[r]);
}

TEST_F(Nccl, AFailureIsReportedByTheRanksCommunicator) {
  init(false);
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(poll_to_end(r), ncclSuccess);
  fail_nccl_call(1, 1);
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(all_reduce(r), ncclInProgress);
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(poll_to_end(r), r == 1 ? ncclSystemError : ncclSuccess);
  expect_stuck(streams_[0]);
  break_nccl(3);
  EXPECT_EQ(poll(3), ncclSystemError);
  EXPECT_STRNE(ncclGetLastError(comms_[3]), "");
}

/// The sum over all ranks of one value, in a graph of each.
class NcclInGraphs : public Nccl {
 protected:
  void SetUp() override {
    Nccl::SetUp();
    init(true);
    fill_all(1);
    all([&](int r) { return all_reduce(r); });  // ranks connect
    for (int r = 0; r < kRanks; ++r) EXPECT_EQ(cudaStreamSynchronize(streams_[r]), cudaSuccess);
  }
  void TearDown() override {
    for (cudaGraphExec_t graph : graphs_) {
      if (graph != nullptr) cudaGraphExecDestroy(graph);
    }
    Nccl::TearDown();
  }
  cudaGraphExec_t capture(int r) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    EXPECT_EQ(cudaSetDevice(r), cudaSuccess);
    EXPECT_EQ(cudaStreamBeginCapture(streams_[r], cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(all_reduce(r), ncclSuccess);
    EXPECT_EQ(cudaStreamEndCapture(streams_[r], &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return executable;
  }
  void capture_all() {
    for (int r = 0; r < kRanks; ++r) graphs_[r] = capture(r);
  }

  cudaGraphExec_t graphs_[kRanks] = {};
};

TEST_F(NcclInGraphs, AreCarriedOutByEachLaunch) {
  capture_all();
  EXPECT_EQ(read(2, 1)[0], 600.0F) << "nothing runs while it is captured";
  for (int i = 0; i < 2; ++i) {
    for (int r = 0; r < kRanks; ++r) EXPECT_EQ(cudaGraphLaunch(graphs_[r], streams_[r]), cudaSuccess);
  }
  all([&](int r) { return all_reduce(r); });
  for (int r = 0; r < kRanks; ++r) EXPECT_EQ(read(r, 1)[0], 600.0F * 4 * 4 * 4);
}

TEST_F(NcclInGraphs, AreLaunchedByAllRanksOrIssuedByAll) {
  capture_all();
  for (int r = 0; r + 1 < kRanks; ++r) EXPECT_EQ(cudaGraphLaunch(graphs_[r], streams_[r]), cudaSuccess);
  EXPECT_EQ(all_reduce(kRanks - 1), ncclSuccess);
  for (int r = 0; r < kRanks; ++r) expect_stuck(streams_[r]);
}

TEST_F(NcclInGraphs, AreOfOneCaptureInAllRanks) {
  capture_all();
  const cudaGraphExec_t second = capture(0);
  EXPECT_EQ(cudaGraphLaunch(second, streams_[0]), cudaSuccess);
  for (int r = 1; r < kRanks; ++r) EXPECT_EQ(cudaGraphLaunch(graphs_[r], streams_[r]), cudaSuccess);
  for (int r = 0; r < kRanks; ++r) expect_stuck(streams_[r]);
  EXPECT_EQ(cudaGraphExecDestroy(second), cudaSuccess);
}

TEST_F(NcclInGraphs, KeepTheirCommunicator) {
  capture_all();
  EXPECT_EQ(communicators_ended_before_graphs(), 0);
  EXPECT_EQ(ncclCommDestroy(comms_[0]), ncclInvalidUsage) << "NCCL would wait for the graph";
  EXPECT_EQ(communicators_ended_before_graphs(), 1);
  EXPECT_EQ(cudaGraphExecDestroy(std::exchange(graphs_[0], nullptr)), cudaSuccess);
  EXPECT_EQ(ncclCommDestroy(std::exchange(comms_[0], nullptr)), ncclSuccess);
}

TEST_F(NcclInGraphs, EndWithAnAbortAndItsCommunicatorEndsWithThem) {
  capture_all();
  EXPECT_EQ(cudaGraphLaunch(graphs_[0], streams_[0]), cudaSuccess);
  expect_stuck(streams_[0]);
  const int64_t before = live_objects();
  EXPECT_EQ(ncclCommAbort(std::exchange(comms_[0], nullptr)), ncclSuccess);
  EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
  EXPECT_EQ(live_objects(), before) << "its graph exists";
  EXPECT_EQ(cudaGraphExecDestroy(std::exchange(graphs_[0], nullptr)), cudaSuccess);
  EXPECT_EQ(live_objects(), before - 2);
}

TEST_F(Nccl, WrongBuffersFailAsOnAGpu) {
  init(true);
  all([&](int r) { return all_reduce(r); });
  float on_host = 0;
  EXPECT_EQ(ncclBroadcast(&on_host, &on_host, 1, ncclFloat32, 0, comms_[0], streams_[0]), ncclSuccess);
  EXPECT_EQ(cudaStreamSynchronize(streams_[0]), cudaErrorIllegalAddress);
  EXPECT_EQ(ncclBroadcast(buffers_[1], buffers_[1], 1, ncclFloat32, 0, comms_[1], streams_[2]), ncclUnhandledCudaError)
      << "another GPU's stream";
}

}  // namespace
}  // namespace vitrine::standins
