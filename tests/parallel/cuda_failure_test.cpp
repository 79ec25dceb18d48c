// SPDX-License-Identifier: Apache-2.0
// What only the stand-ins show of an engine on GPUs. Injected failures end the step on all devices, are reported with
// device and cause, and leak nothing; GPUs of older generations refuse what they do not support; no GPU gives memory or
// objects that it should not.
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "runtime/error.h"
#include "tests/parallel/random_model.h"
#include "tests/standins/controls.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tests/support/leaves_nothing_behind.h"

namespace vitrine::test {
namespace {

/// Checks at its end that no CUDA object and no thread was leaked.
class CudaTest : public ::testing::Test {
 protected:
  CudaTest() {
    { const DeviceGroup warm_up(test_group(1)); }  // sanitizers start a thread of their own with the first one
    standins::reset();
    check_.emplace();
  }
  ~CudaTest() override {
    check_.reset();
    EXPECT_EQ(standins::live_objects(), 0);
    standins::reset();
  }

 private:
  std::optional<LeavesNothingBehind> check_;
};
class CudaFailure : public CudaTest, public ::testing::WithParamInterface<const char*> {};
using CudaPrecision = CudaTest;
using CudaUse = CudaTest;

EngineConfig config_of(const Model& model, const char* mode) {
  EngineConfig config = small_config(model, 9);
  config.scheme = scheme_preset(mode);
  return config;
}

template <class Work>
std::string kind_and_error_of(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    return std::string(error_kind_name(error.kind())) + ": " + error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST_P(CudaFailure, OutOfMemoryOnDeviceTwo) {
  const Model model = random_model(1);
  DeviceGroup group(test_group(3));
  if (group[2].id().index != 2) GTEST_SKIP() << "one GPU";
  standins::fail_next_malloc(2);
  const std::string text = kind_and_error_of([&] {
    const Engine engine(model, group, config_of(model, GetParam()), {{9}, {}});
  });
  EXPECT_EQ(text.rfind("OutOfMemory", 0), 0U) << text;
  expect_contains(text, "cuda:2");
  Engine engine(model, group, config_of(model, GetParam()), {{9}, {}});
  engine.train_step(random_batch(model, 9, 1, 0).view());
  engine.finish();
}

TEST_P(CudaFailure, AKernelFaultEndsTheStepAndReportsThatTheProcessCannotContinue) {
  const Model model = random_model(1);
  DeviceGroup group(test_group(3));
  const int culprit = group[2].id().index;
  Engine engine(model, group, config_of(model, GetParam()), {{9}, {}});
  const OwnedBatch batch = random_batch(model, 9, 1, 0);
  engine.train_step(batch.view());
  engine.take_step_results(true);
  standins::fail_launch(culprit, 3);
  const std::string text = kind_and_error_of([&] {
    engine.train_step(batch.view());
    engine.take_step_results(true);
  });
  EXPECT_EQ(text.rfind("CudaError", 0), 0U) << text;
  expect_contains(text, "cuda:" + std::to_string(culprit), "cudaErrorIllegalAddress", "restart it");
}

INSTANTIATE_TEST_SUITE_P(Modes, CudaFailure, ::testing::Values("dp", "criterion", "ddp"),
                         [](const auto& param) { return std::string(param.param); });

TEST_F(CudaPrecision, Bf16IsRefusedBelowComputeCapability8) {
  const Model model = random_model(1);
  const auto refusal = [&](int compute_major, int compute_minor, DType compute, DType reduce) -> std::string {
    standins::configure({.compute_major = compute_major, .compute_minor = compute_minor});
    DeviceGroup group(test_group(2));
    EngineConfig config = config_of(model, "ddp");
    config.precision.compute = compute;
    config.precision.reduce_dtype = reduce;
    return error_of<UnsupportedError>([&] { const Engine engine(model, group, config, {{9}, {}}); });
  };
  for (const auto& [compute, reduce] :
       {std::make_pair(DType::bf16, DType::f32), std::make_pair(DType::f32, DType::bf16)}) {
    const std::string text = refusal(7, 5, compute, reduce);
    for (const char* part : {"bf16: cuda:0", "Imitated GPU", "compute capability 7.5", "needs 8.0", "Use fp16"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
    }
    EXPECT_EQ(refusal(8, 0, compute, reduce), "");
  }
  EXPECT_EQ(refusal(7, 5, DType::f16, DType::f16), "");
}

/// GPU 0 is current on a new thread.
void on_a_new_thread(const std::function<void()>& work) { std::thread(work).join(); }

TEST_F(CudaUse, OnlyTheGroupsGpusGiveMemoryOnWhateverThread) {
  const Model model = random_model(1);
  const OwnedBatch batch = random_batch(model, 9, 1, 0);
  std::optional<DeviceGroup> group;
  std::optional<Engine> engine;
  std::optional<HostBuffer> buffer;
  std::unique_ptr<Event> event;
  const std::function<void()> uses[] = {
      [&] {
        DeviceGroupOptions options = test_group(2);
        options.devices = {{Backend::cuda, 3}, {Backend::cuda, 5}};
        group.emplace(options);
      },
      [&] {
        engine.emplace(model, *group, config_of(model, "ddp"), Workload{{9}, {}});
      },
      [&] { engine->train_step(batch.view()); },
      [&] { engine->take_step_results(true); },
      [&] { event = (*group)[1].copy().stream().make_event(EventTiming::on); },
      [&] { (*group)[1].copy().record(*event); },
      [&] { (*group)[0].copy().wait(*event, "the event"); },
      [&] { event->synchronize(); },
      [&] { EXPECT_TRUE(event->reached()); },
      [&] { EXPECT_EQ(event->elapsed_seconds(*event), 0); },
      [&] { event.reset(); },
      [&] { EXPECT_FALSE((*group)[1].compute().stream().poll_spans().empty()); },
      [&] { EXPECT_FALSE((*group)[1].compute().stream().failed()); },
      [&] { group->synchronize(); },
      [&] { buffer.emplace(100, HostMemory::pinned); },
      [&] { buffer.reset(); },
      [&] { engine.reset(); },
      [&] { group.reset(); },
  };
  for (size_t i = 0; i < std::size(uses); ++i) {
    on_a_new_thread(uses[i]);
    for (int gpu = 0; gpu < 8; ++gpu)
      ASSERT_EQ(standins::has_context(gpu), gpu == 3 || gpu == 5) << "cuda:" << gpu << " after use " << i;
  }
}

TEST_F(CudaUse, MemoryOutsideThePoolsHasOwners) {
  const Model model = random_model(1);
  DeviceGroup group(test_group(2));
  if (group[0].id() == group[1].id()) GTEST_SKIP() << "devices that share a GPU take memory at the same time";
  Engine engine(model, group, config_of(model, "ddp"), {{9}, {}});
  engine.train_step(random_batch(model, 9, 1, 0).view());
  engine.take_step_results(true);
  for (int d = 0; d < 2; ++d) {
    std::map<std::string, int64_t> owners;
    for (const OutsideBytes& owner : group[d].outside_bytes()) owners[owner.owner] = owner.bytes;
    std::map<std::string, int64_t> expected = {{"context", standins::kContextBytes},
                                               {"cublaslt", standins::kHandleBytes},
                                               {"nccl", standins::kCommunicatorBytes + standins::kConnectionBytes}};
    if (standins::has_cudnn()) expected["cudnn"] = standins::kHandleBytes;
    EXPECT_EQ(owners, expected) << group[d].name();
    int64_t outside_bytes = 0;
    for (const auto& [owner, bytes] : expected) outside_bytes += bytes;
    EXPECT_EQ(group[d].gpu_used_bytes(), standins::allocated_bytes(d) + outside_bytes);
  }
}

TEST_F(CudaUse, MemoryThatOthersHoldIsNamed) {
  const Model model = random_model(1);
  void* held = nullptr;
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&held, size_t{3} << 30), cudaSuccess);
  {
    DeviceGroup group({.devices = {{Backend::cuda, 0}}});
    const std::string text = error_of<OutOfMemory>([&] {
      const Engine engine(model, group, small_config(model, 1 << 20), {{1 << 20}, {}});
    });
    expect_contains(text, " of the GPU were in use before, by other processes or devices");
  }
  EXPECT_EQ(cudaFree(held), cudaSuccess);
}

/// By whether steps are replayed as CUDA graphs.
class CudaSteps : public CudaTest, public ::testing::WithParamInterface<bool> {};

TEST_P(CudaSteps, AThousandMakeNoObjects) {
  const Model model = random_model(2);  // without convolutions, which take most of the time
  DeviceGroupOptions options = GetParam() ? test_group(1, false) : test_group(2);
  options.trace =
      TraceLevel::off;  // how many events spans share depends on the time; see SpansAreBoundedAndTheirEventsReused
  DeviceGroup group(options);
  Engine engine(model, group, small_config(model, 2), {{2}, {}});
  const OwnedBatch batch = random_batch(model, 2, 1, 0);
  int64_t objects = 0;
  for (int step = 1; step <= 1000; ++step) {
    engine.train_step(batch.view());
    if (step % 10 != 0) continue;
    engine.take_step_results(true);
    if (step == 20) objects = standins::live_objects();
    if (step > 20) {
      ASSERT_EQ(standins::live_objects(), objects)
          << "streams, events, graphs, memory, handles, descriptors after step " << step;
    }
  }
  EXPECT_EQ(engine.graph_counts().launched, GetParam() ? 998 : 0);
  engine.finish();
}

INSTANTIATE_TEST_SUITE_P(Steps, CudaSteps, ::testing::Bool(),
                         [](const auto& param) { return std::string(param.param ? "replayed" : "issued"); });

}  // namespace
}  // namespace vitrine::test
