// SPDX-License-Identifier: Apache-2.0
// Failures of communicators of GPUs, on the stand-ins; and NCCL communicators passed in by the user.
#include <chrono>

#include <nccl.h>

#include "runtime/comm/capabilities.h"
#include "runtime/error.h"
#include "runtime/gpu_features.h"
#include "runtime/host_buffer.h"
#include "tests/runtime/communicator_group.h"
#include "tests/standins/controls.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tests/support/on_threads.h"

namespace vitrine::test {
namespace {

using Clock = std::chrono::steady_clock;

DeviceGroupOptions quick(int ranks) {
  DeviceGroupOptions options = group_options(ranks, Backend::cuda, TraceLevel::off);
  options.comm_timeout_ms = 300;
  return options;
}

/// Issues on every rank from a separate thread; returns each rank's error, or an empty string.
std::vector<std::string> errors_of(int ranks, const std::function<void(int)>& issue) {
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  on_threads(ranks, [&](int r) { errors[static_cast<size_t>(r)] = error_of<CommError>([&] { issue(r); }); });
  return errors;
}

class CudaCommunicator : public ::testing::Test {
 protected:
  ~CudaCommunicator() override {
    EXPECT_EQ(standins::live_objects(), 0);
    standins::reset();
  }
  static bool uses_nccl() { return test_device_choice() == "cuda"; }
};

/// Blocking communicators, as NCCL makes them by default.
std::vector<void*> communicators_of_the_user(int ranks) {
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<ncclComm_t> made(static_cast<size_t>(ranks));
  EXPECT_EQ(ncclGroupStart(), ncclSuccess);
  for (int r = 0; r < ranks; ++r) {
    EXPECT_EQ(cudaSetDevice(r), cudaSuccess);
    EXPECT_EQ(ncclCommInitRank(&made[static_cast<size_t>(r)], ranks, id, r), ncclSuccess);
  }
  EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
  return {made.begin(), made.end()};
}

TEST_F(CudaCommunicator, DescribesHowItCommunicates) {
  DeviceGroup devices(quick(2));
  const std::string text = make_communicators(devices)[0]->description();
  if (uses_nccl()) {
    EXPECT_EQ(text.rfind("NCCL 2.", 0), 0U) << text;
    expect_contains(text, "2 ranks, algorithm Ring, protocol Simple");
  } else {
    EXPECT_EQ(text, "direct access to peers' memory, 2 ranks (NCCL does not support two ranks on one GPU)");
  }
}

TEST_F(CudaCommunicator, NcclChoosesUnlessTheProgramFixesTheOrderOfSums) {
  if (!uses_nccl()) GTEST_SKIP() << "NCCL only";
  for (const char* name : {"NCCL_ALGO", "NCCL_PROTO", "NCCL_GRAPH_REGISTER"}) unsetenv(name);
  DeviceGroup devices(quick(2));
  expect_contains(make_communicators(devices)[0]->description(),
                  "algorithm its own choice, protocol its own choice (sums may have other last bits in the next run)");
  EXPECT_EQ(std::getenv("NCCL_GRAPH_REGISTER"), nullptr) << "other threads may read the environment";
  fix_order_of_sums();
  const std::string text = make_communicators(devices)[0]->description();
  EXPECT_EQ(text.substr(text.find("algorithm")), "algorithm Ring, protocol Simple");
  EXPECT_STREQ(std::getenv("NCCL_GRAPH_REGISTER"), "0") << "a graph's sums have the bits of issued ones";
}

TEST_F(CudaCommunicator, AMissingRankIsNamedWithinTheDeadline) {
  DeviceGroup devices(quick(3));
  auto communicators = make_communicators(devices);
  const Tensor t = devices[0].compute().allocate({4}, DType::f32, Category::communication, "t");
  const Clock::time_point begin = Clock::now();
  const std::vector<std::string> errors = errors_of(3, [&](int r) {
    if (r == 1) return;
    communicators[static_cast<size_t>(r)]->barrier(devices[r].compute());
    devices[r].compute().stream().synchronize();  // NCCL accepts the call at once
    communicators[static_cast<size_t>(r)]->barrier(devices[r].compute());
  });
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  for (const int r : {0, 2}) {
    expect_contains(errors[static_cast<size_t>(r)], "rank 1 (" + devices[1].name() + ")", "from a separate thread");
  }
  EXPECT_FALSE(communicators[1]->failure().empty());
}

TEST_F(CudaCommunicator, AbortEndsWaitingRanks) {
  DeviceGroupOptions options = quick(2);
  options.comm_timeout_ms = 60000;
  DeviceGroup devices(options);
  auto communicators = make_communicators(devices);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    communicators[1]->abort("planted: enough");
  });
  const std::vector<std::string> errors = errors_of(1, [&](int) {
    communicators[0]->barrier(devices[0].compute());
    devices.synchronize();
    communicators[0]->barrier(devices[0].compute());
  });
  other.join();
  EXPECT_EQ(errors[0], "planted: enough");
  EXPECT_EQ(communicators[0]->failure(), "planted: enough");
  communicators = make_communicators(devices);
  const std::vector<std::string> none =
      errors_of(2, [&](int r) { communicators[static_cast<size_t>(r)]->barrier(devices[r].compute()); });
  EXPECT_EQ(none, std::vector<std::string>(2));
  devices.synchronize();
}

/// Two ranks, of which the second launches a kernel for the first time while the first one's collective waits for it,
/// and after the first one has begun to launch one too.
std::vector<std::string> errors_of_first_launches(DeviceGroup& devices,
                                                  std::vector<std::unique_ptr<Communicator>>& communicators) {
  const HostBuffer words(2 * size_of(DType::i32), devices.host_memory());
  std::vector<Tensor> numbers;
  for (int r = 0; r < 2; ++r)
    numbers.push_back(devices[r].compute().allocate({1}, DType::i32, Category::activations, "a number"));
  const auto launch = [&](int r) {
    copy_blocks(devices[r].compute(),
                {{CopiedBlock{words.view({2}, DType::i32).rows(r, r + 1), numbers[static_cast<size_t>(r)]}}});
  };
  const std::vector<std::string> errors = errors_of(2, [&](int r) {
    if (r == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      launch(r);
    }
    communicators[static_cast<size_t>(r)]->barrier(devices[r].communication());
    if (r == 0) launch(r);
    communicators[static_cast<size_t>(r)]->barrier(devices[r].communication());
  });
  devices.synchronize();
  return errors;
}

TEST_F(CudaCommunicator, ARankThatWaitsInsideCudaIsNamedWithinTheDeadline) {
  if (!uses_nccl()) GTEST_SKIP() << "other ranks' kernels do not wait";
  DeviceGroup devices(quick(2));
  auto communicators = make_communicators(devices);
  const Clock::time_point begin = Clock::now();
  for (const std::string& error : errors_of_first_launches(devices, communicators))
    expect_contains(error, "rank 1 (" + devices[1].name() + ") have not issued it");
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
}

TEST_F(CudaCommunicator, RanksInStepMayLaunchNewKernels) {
  if (!uses_nccl()) GTEST_SKIP() << "NCCL only";
  DeviceGroupOptions options = quick(2);
  options.comm_timeout_ms = 20000;
  DeviceGroup devices(options);
  auto communicators = make_communicators(devices);
  dynamic_cast<RanksInStep&>(*communicators[0]).set_in_step(true);
  EXPECT_EQ(errors_of_first_launches(devices, communicators), std::vector<std::string>(2));
}

TEST_F(CudaCommunicator, AnErrorInAGroupOfCallsClosesIt) {
  if (!uses_nccl()) GTEST_SKIP() << "NCCL only";
  for (int64_t n = 1;; ++n) {
    ASSERT_LT(n, 1000) << "ncclSend never failed";
    DeviceGroup devices(quick(2));
    auto communicators = make_communicators(devices);
    std::vector<Tensor> in, out;
    for (int r = 0; r < 2; ++r) {
      in.push_back(devices[r].compute().allocate({2}, DType::f32, Category::communication, "in"));
      out.push_back(devices[r].compute().allocate({2}, DType::f32, Category::communication, "out"));
    }
    std::string failed;
    on_threads(2, [&](int r) {
      const auto i = static_cast<size_t>(r);
      if (r == 0) standins::fail_call(n);
      try {
        communicators[i]->all_to_all(devices[r].compute(), in[i], out[i]);
      } catch (const Error& error) {
        communicators[i]->abort(error.reason());
      }
      if (r != 0) return;
      failed = standins::failed_call();
      standins::fail_call(0);
      EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage) << "a group is open after " << failed;
    });
    communicators[0]->abort("the test ends");
    devices.synchronize();
    if (failed == "ncclSend") return;
  }
}

TEST_F(CudaCommunicator, DisagreementOfPeersNamesTheFields) {
  if (uses_nccl()) GTEST_SKIP() << "NCCL does not compare calls";
  DeviceGroup devices(quick(2));
  auto communicators = make_communicators(devices);
  std::vector<Tensor> t;
  for (int r = 0; r < 2; ++r) t.push_back(devices[r].compute().allocate({8}, DType::f32, Category::communication, "t"));
  const std::vector<std::string> errors = errors_of(2, [&](int r) {
    const auto i = static_cast<size_t>(r);
    communicators[i]->all_reduce(devices[r].compute(), t[i].rows(0, 8 - r));
  });
  for (const std::string& error : errors) expect_contains(error, "elements 8 on rank 0; 7 on rank 1");
  devices.synchronize();
}

TEST_F(CudaCommunicator, AnIncompleteNcclGroupIsAbandoned) {
  if (!uses_nccl()) GTEST_SKIP() << "NCCL only";
  DeviceGroup devices(quick(3));
  standins::hang_nccl_init(2);
  const Clock::time_point begin = Clock::now();
  const std::vector<std::string> errors = errors_of(1, [&](int) { make_communicators(devices); });
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
  expect_contains(errors[0], "did not join the group within 300 ms");
  EXPECT_NO_THROW(make_communicators(devices));
}

TEST_F(CudaCommunicator, AnAsynchronousNcclErrorIsReportedWithItsRank) {
  if (!uses_nccl()) GTEST_SKIP() << "NCCL only";
  DeviceGroup devices(quick(3));
  auto communicators = make_communicators(devices);
  EXPECT_EQ(communicators[0]->failure(), "");
  standins::break_nccl(1);
  expect_contains(communicators[0]->failure().str(), "rank 1 (cuda:1)");
  const std::vector<std::string> errors =
      errors_of(3, [&](int r) { communicators[static_cast<size_t>(r)]->barrier(devices[r].compute()); });
  expect_contains(errors[1], "rank 1 (cuda:1)");
  communicators[0]->abort("given up");
  devices.synchronize();
}

TEST_F(CudaCommunicator, CommunicatorsOfTheUserAreUsedAndNotDestroyed) {
  if (!uses_nccl()) GTEST_SKIP() << "NCCL only";
  DeviceGroupOptions options = quick(2);
  const std::vector<void*> mine = communicators_of_the_user(2);
  options.nccl_communicators = mine;
  {
    DeviceGroup devices(options);
    auto communicators = make_communicators(devices);
    std::vector<Tensor> t;
    for (int r = 0; r < 2; ++r) {
      t.push_back(devices[r].compute().allocate({8}, DType::f32, Category::communication, "t"));
      zero(devices[r].compute(), t.back());
    }
    const auto errors = errors_of(2, [&](int r) {
      communicators[static_cast<size_t>(r)]->all_reduce(devices[r].compute(), t[static_cast<size_t>(r)]);
    });
    EXPECT_EQ(errors, std::vector<std::string>(2));
    devices.synchronize();
  }
  int count = 0;
  EXPECT_EQ(ncclCommCount(static_cast<ncclComm_t>(mine[0]), &count), ncclSuccess) << "they outlive the devices";
  std::swap(options.nccl_communicators[0], options.nccl_communicators[1]);
  {
    DeviceGroup devices(options);
    expect_contains(error_of<ConfigError>([&] { make_communicators(devices); }),
                    "rank 1 of 2 on cuda:1, expected rank 0 of 2 on cuda:0");
  }
  for (void* comm : mine) EXPECT_EQ(ncclCommDestroy(static_cast<ncclComm_t>(comm)), ncclSuccess);
}

TEST_F(CudaCommunicator, AbortEndsACallThatBlocksOnACommunicatorOfTheUser) {
  if (!uses_nccl()) GTEST_SKIP() << "NCCL only";
  DeviceGroupOptions options = quick(2);
  options.nccl_communicators = communicators_of_the_user(2);
  DeviceGroup devices(options);
  auto communicators = make_communicators(devices);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(communicators[1]->failure(), "") << "and the question does not wait for the call";
    communicators[1]->abort("planted: enough");
  });
  const std::vector<std::string> errors = errors_of(1, [&](int) { communicators[0]->barrier(devices[0].compute()); });
  other.join();
  EXPECT_EQ(errors[0],
            "planted: enough; the caller's NCCL communicators are aborted: open the devices again with new ones");
  devices.synchronize();
}

}  // namespace
}  // namespace vitrine::test
