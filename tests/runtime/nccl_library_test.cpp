// SPDX-License-Identifier: Apache-2.0
// The real NCCL on a machine without a GPU: everything up to the error that creating a communicator ends with.
#include <chrono>
#include <thread>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "runtime/cuda/nccl_group.h"
#include "runtime/error.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

using cuda::GroupCalls;
using cuda::nccl;

class NcclLibrary : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) GTEST_SKIP() << "there is a GPU";
    const std::string none = error_of<CudaError>([] { nccl(); });
    if (!none.empty()) GTEST_SKIP() << none;
  }
};

TEST_F(NcclLibrary, IsUsedUpToTheErrorOfCuda) {
  int version = 0;
  ASSERT_EQ(nccl().GetVersion(&version), ncclSuccess);
  EXPECT_GE(version, 22300) << "ncclCommInitRankScalable";
  ncclUniqueId id{};
  ASSERT_EQ(nccl().GetUniqueId(&id), ncclSuccess);
  ncclComm_t comm = nullptr;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclResult_t state = ncclSuccess;
  {
    GroupCalls calls;
    state = nccl().CommInitRankScalable(&comm, 1, 0, 1, &id, &config);
    if (state == ncclSuccess || state == ncclInProgress) calls.end();
  }
  for (int i = 0; comm != nullptr && (state == ncclSuccess || state == ncclInProgress) && i < 1000; ++i) {
    ASSERT_EQ(nccl().CommGetAsyncError(comm, &state), ncclSuccess);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(state, ncclUnhandledCudaError) << nccl().GetErrorString(state);
  if (comm != nullptr) nccl().CommAbort(comm);
}

}  // namespace
}  // namespace vitrine::test
