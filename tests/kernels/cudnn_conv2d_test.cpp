// SPDX-License-Identifier: Apache-2.0
// Convolution by cuDNN, on its stand-in: results, the reasons for which it is not used, and the arena.
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <tuple>

#include "kernels/conv2d.h"
#include "kernels/cuda/cudnn_conv2d_plan.h"
#include "kernels/tuned_plans.h"
#include "runtime/error.h"
#include "runtime/gpu_features.h"
#include "tests/kernels/conv2d_cases.h"
#include "tests/kernels/expect_error.h"
#include "tests/standins/controls.h"

namespace vitrine::test {
namespace {

using standins::ConvolutionEngine;
using Fault = ConvolutionEngine::Fault;

constexpr int64_t kScratch = 4096;
constexpr int64_t kPiece = 256;  // of the arena, for a few channels or weights
/// The first is for tensor cores, which f32 may not use.
const std::vector<ConvolutionEngine> kEngines = {
    {.index = 1, .knobs = {{2, 3}, {18, 1}}, .workspace_bytes = kScratch, .tensor_cores = true},
    {.index = 2, .workspace_bytes = kScratch}};

/// The implementations that ran the operation whose name begins so, and the reasons.
std::set<std::string> implementations(ExecContext& ctx, const std::string& operation) {
  std::set<std::string> names;
  for (const Conv2dChoice& choice : conv2d_choices(ctx)) {
    if (choice.operation.starts_with(operation + " ")) names.insert(choice.implementation);
  }
  return names;
}
std::set<std::string> reasons(ExecContext& ctx, const std::string& operation) {
  std::set<std::string> texts;
  for (const Conv2dChoice& choice : conv2d_choices(ctx)) {
    if (choice.operation.starts_with(operation + " ")) texts.insert(choice.reason.str());
  }
  return texts;
}
using Names = std::set<std::string>;

class CudnnConv2dTest : public DtypeTest {
 protected:
  void SetUp() override {
    if (!on_gpu()) GTEST_SKIP() << "cuDNN is for GPUs";
    standins::set_convolution_engines(kEngines);
  }
  void TearDown() override { standins::set_convolution_engines({}); }

  Conv2dCase small_case(bool relu = true) {
    return make_case(device, dtype(), {3, 11, 9, 13}, {17, 3, 3, 13}, {1, 1, relu}, 1);
  }
  /// Each pass, with and without a bias.
  void check_all(const Conv2dCase& c) {
    for (const bool with_bias : {true, false}) check_forward(device, c, kDispatched, with_bias);
    for (const GradMode mode : {GradMode::overwrite, GradMode::accumulate})
      check_backward(device, c, kDispatched, mode, true);
  }
  void reserve(int64_t bytes) {
    ctx().release_workspace();
    ctx().reserve_workspace(bytes);
  }
  void check_off(GpuFeature feature, int convolutions, int launches) {
    reserve(kWorkspace);
    const Conv2dCase c = small_case();
    setenv(variable_of(feature), "off: the driver is too old", 1);
    for (const char* when : {"at first", "later"}) {
      device.synchronize();
      standins::take_call_counts();
      check_forward(device, c, kDispatched, is_half() ? false : true);
      const standins::CallCounts counts = standins::take_call_counts();
      EXPECT_EQ(counts.convolutions, convolutions) << when;
      EXPECT_EQ(counts.launches, launches) << when << ": bias and ReLU; columns, then ReLU";
      unsetenv(variable_of(feature));
    }
  }
  Names implementations_of(const char* operation) { return implementations(ctx(), operation); }
  Names reasons_of(const char* operation) { return reasons(ctx(), operation); }
  std::string rounded_name() const { return std::string("cuDNN, gradient rounded to ") + dtype_name(dtype()); }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, CudnnConv2dTest, ::testing::ValuesIn(kStorageTypes), dtype_test_name);

TEST_P(CudnnConv2dTest, EveryPassEqualsTheReference) {
  reserve(kWorkspace);
  for (uint64_t seed = 0; seed < 12; ++seed) {
    check_all(random_case(device, dtype(), seed));
    if (HasFailure()) return;
  }
  EXPECT_EQ(implementations_of("conv2d_forward"), Names{"cuDNN"});
  EXPECT_EQ(implementations_of("conv2d_backward_data"), Names{"cuDNN"});
  EXPECT_EQ(reasons_of("conv2d_forward"), Names{""});
  EXPECT_EQ(implementations_of("conv2d_backward_weight"), Names{is_half() ? rounded_name() : "cuDNN"});
  EXPECT_EQ(reasons_of("conv2d_backward_weight"),
            Names{is_half() ? "for a gradient in f32 cuDNN proposes no engine" : ""});
}

TEST_P(CudnnConv2dTest, ReluKeepsNaN) {
  reserve(kWorkspace);
  const Conv2dCase c = small_case();
  const std::vector<float> nans(static_cast<size_t>(c.g.x.numel()), std::numeric_limits<float>::quiet_NaN());
  const GuardedTensor y = guarded(c.g.y);
  conv2d_forward(ctx(), c.config, tensor(c.g.x, nans), c.w_device, c.bias_device, y);
  for (const float value : unchecked_values(y)) EXPECT_TRUE(std::isnan(value));
  EXPECT_EQ(implementations_of("conv2d_forward"), Names{"cuDNN"});
}

/// By the environment, which a context reads once: without bias and ReLU in its graphs, and not at all.
TEST_P(CudnnConv2dTest, BiasAndReluCanBeTurnedOff) { check_off(GpuFeature::fused_epilogues, 1, 1); }
TEST_P(CudnnConv2dTest, CanBeTurnedOff) { check_off(GpuFeature::cudnn, 0, 2); }

TEST_P(CudnnConv2dTest, APlanWithoutTensorCoresIsNamed) {
  standins::set_convolution_engines({{.index = 2}});
  reserve(kWorkspace);
  check_all(small_case());
  const std::string name = is_half() ? "cuDNN without tensor cores" : "cuDNN";
  EXPECT_EQ(implementations_of("conv2d_forward"), Names{name});
  EXPECT_EQ(implementations_of("conv2d_backward_data"), Names{name});
  EXPECT_EQ(implementations_of("conv2d_backward_weight"),
            Names{is_half() ? name + ", gradient rounded to " + dtype_name(dtype()) : name});
}

TEST_P(CudnnConv2dTest, RunsAsOneCallAndGivesTheSameBitsEveryTime) {
  reserve(kWorkspace);
  const Conv2dCase c = small_case();
  std::vector<uint32_t> first[3];
  for (int repeat = 0; repeat < 3; ++repeat) {
    const GuardedTensor y = guarded(c.g.y), grad_x = guarded(c.g.x), grad_w = device.guarded(c.g.w);
    device.synchronize();
    standins::take_call_counts();
    conv2d_forward(ctx(), c.config, c.x_device, c.w_device, c.bias_device, y);
    conv2d_backward_data(ctx(), c.config, c.grad_y_device, c.w_device, grad_x);
    conv2d_backward_weight(ctx(), c.config, c.x_device, c.grad_y_device, grad_w, {}, GradMode::overwrite);
    const standins::CallCounts counts = standins::take_call_counts();
    EXPECT_EQ(counts.convolutions, 3);
    EXPECT_EQ(counts.products, 0);
    EXPECT_EQ(counts.launches, is_half() ? 1 : 0) << "a rounded gradient is widened";
    EXPECT_EQ(counts.fills, 0);
    const std::vector<uint32_t> results[3] = {bits(y), bits(grad_x), stored_bits(device, grad_w)};
    for (int i = 0; i < 3; ++i) {
      if (repeat == 0) first[i] = results[i];
      expect_same_bits(results[i], first[i]);
    }
  }
}

/// What lies in the arena beside the workspace of the plan: zeros for a bias, and rounded gradients. The plan fills its
/// workspace with garbage.
TEST_P(CudnnConv2dTest, PiecesOfTheArenaDoNotOverlap) {
  standins::set_convolution_engines({{.index = 1, .workspace_bytes = kScratch + kPiece, .tensor_cores = is_half()},
                                     {.index = 2, .workspace_bytes = kScratch, .tensor_cores = is_half()}});
  const Conv2dCase c = make_case(device, dtype(), {3, 11, 9, 3}, {8, 2, 2, 3}, {1, 1, true}, 1);
  reserve(kScratch + kPiece);
  check_all(c);
  EXPECT_EQ(implementations_of("conv2d_forward"), Names{"cuDNN"});
  EXPECT_EQ(implementations_of("conv2d_backward_weight"), Names{is_half() ? rounded_name() : "cuDNN"});
}

TEST_P(CudnnConv2dTest, AnArenaThatIsTooSmallForAPieceIsNamed) {
  const Conv2dCase c = make_case(device, dtype(), {3, 11, 9, 3}, {8, 2, 2, 3}, {1, 1, true}, 1);
  reserve(kScratch + kPiece - 1);
  check_forward(device, c, kDispatched, false);
  EXPECT_EQ(implementations_of("conv2d_forward"), Names{"im2col + cuBLASLt"});
  const std::string why = " with a workspace of 4096 bytes or more, of 3840 reserved";
  EXPECT_EQ(reasons_of("conv2d_forward"),
            Names{is_half() ? "none of the 2 engines that cuDNN proposes serves: 2" + why
                            : "none of the 2 engines that cuDNN proposes serves: 1 on tensor cores only "
                              "(DeviceGroupOptions::tf32 allows them), 1" +
                                  why});
}

TEST_P(CudnnConv2dTest, WithoutAnArenaReluWithoutABiasIsOurs) {
  standins::set_convolution_engines({{.index = 2, .tensor_cores = is_half()}});
  // A window of one pixel is a product, which needs no arena.
  const Conv2dCase c = make_case(device, dtype(), {3, 4, 5, 8}, {16, 1, 1, 8}, {1, 0, true}, 1);
  check_forward(device, c, kDispatched, false);
  EXPECT_EQ(implementations_of("conv2d_forward"), Names{"im2col + cuBLASLt"});
  EXPECT_EQ(reasons_of("conv2d_forward"),
            Names{"ReLU without a bias takes " + std::to_string(16 * size_of(dtype())) +
                  " bytes of workspace; reserve more with ExecContext::reserve_workspace"});
  check_backward(device, c, kDispatched, GradMode::accumulate, false);
  EXPECT_EQ(implementations_of("conv2d_backward_data"), Names{"cuDNN"});
  EXPECT_EQ(implementations_of("conv2d_backward_weight"), Names{is_half() ? "im2col + cuBLASLt" : "cuDNN"})
      << "a rounded gradient has no place";
}

TEST_P(CudnnConv2dTest, TheNeedIsExact) {
  const Conv2dCase c = make_case(device, dtype(), {3, 11, 9, 3}, {8, 2, 2, 3}, {1, 1, true}, 1);
  cuda::CudnnDescriptor gpu(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  gpu.set(CUDNN_ATTR_DEVICEPROP_DEVICE_ID, int32_t{0});
  gpu.finalize();
  for (const Conv2dPass pass : {Conv2dPass::forward, Conv2dPass::backward_weight}) {
    const RecordedConv2d recorded{
        .pass = pass, .config = c.config, .dtype = dtype(), .x = c.g.x, .w = c.g.w, .y = c.g.y};
    const auto need_within = [&](int64_t bytes) {
      return cuda::cudnn_conv2d_need(recorded, false, {nullptr, &gpu}, bytes).bytes;
    };
    const int64_t need = need_within(kWorkspace);
    const bool has_piece = pass == Conv2dPass::forward || is_half();
    EXPECT_EQ(need, kScratch + (has_piece ? kPiece : 0));
    EXPECT_EQ(need_within(need - 1), -1);
  }
}

TEST_P(CudnnConv2dTest, MisalignedTensorsTakeAnotherEngine) {
  standins::set_convolution_engines(
      {{.index = 1, .least_alignment = 16, .tensor_cores = is_half()}, {.index = 2, .tensor_cores = is_half()}});
  reserve(kWorkspace);
  const Conv2dCase c = small_case();
  Reference expected = reference_conv2d_forward(c.g, c.x, c.w);
  add_bias(expected, c.bias);
  apply_relu(expected);
  std::vector<std::vector<uint32_t>> results;
  for (const int64_t offset : {0, 1, 3, 4}) {
    const ShiftedStored y = shifted(c.g.y, offset);
    conv2d_forward(ctx(), c.config, shifted(c.g.x, offset, c.x), shifted(c.g.w, offset, c.w),
                   shifted({17}, offset, c.bias), y);
    expect_stored(y.values(), expected, "shifted by " + std::to_string(offset));
    results.push_back(y.bits());
  }
  EXPECT_EQ(results[2], results[1]);
  if (!is_half()) {
    EXPECT_NE(results[1], results[0]) << "the engines of the stand-in must differ in their bits";
    EXPECT_EQ(results[3], results[0]) << "four f32 are 16 bytes";
  }
  EXPECT_EQ(implementations_of("conv2d_forward"), Names{"cuDNN"});
}

TEST_P(CudnnConv2dTest, EnginesOfTheFallbackHeuristicServeIfNoOtherDoes) {
  using Proposed = ConvolutionEngine::Proposed;
  standins::set_convolution_engines({{.index = 1, .deterministic = false, .proposed = Proposed::both},
                                     {.index = 2, .tensor_cores = is_half(), .proposed = Proposed::fallback}});
  reserve(kWorkspace);
  check_all(small_case());
  EXPECT_EQ(implementations_of("conv2d_forward"), Names{"cuDNN"});
  EXPECT_EQ(implementations_of("conv2d_backward_data"), Names{"cuDNN"});
}

TEST_P(CudnnConv2dTest, AnEngineThatFailsWhenItRunsIsAnError) {
  standins::set_convolution_engines({{.index = 4, .fault = Fault::at_execution}});
  reserve(kWorkspace);
  const Conv2dCase c = small_case();
  const GuardedTensor y = guarded(c.g.y);
  expect_error<CudaError>("CUDNN_STATUS_EXECUTION_FAILED: engine 4 fails",
                          [&] { conv2d_forward(ctx(), c.config, c.x_device, c.w_device, c.bias_device, y); });
}

TEST_P(CudnnConv2dTest, ATunedPlanThatCudnnRefusesIsAnError) {
  reserve(kWorkspace);
  const Conv2dCase c = small_case();
  cuda::CudnnConv2d convolution{
      .dtype = dtype(), .x = {3, 11, 9, 13}, .w = {17, 3, 3, 13}, .y = {3, 11, 9, 17}, .pad = 1};
  convolution.workspace_bytes = kWorkspace;
  convolution.bias = convolution.relu = true;
  const GuardedTensor y = guarded(c.g.y);
  const auto run_by = [&](const std::string& plan) {
    auto plans = std::make_shared<TunedPlans>();
    plans->put({.operation = cuda::conv2d_signature(convolution), .plan = plan});
    use_tuned_plans(ctx(), plans);
    conv2d_forward(ctx(), c.config, c.x_device, c.w_device, c.bias_device, y);
  };
  for (const char* plan : {"engine 99 knobs ", "engine 1 knobs 2=3", "algorithm 1"}) {
    expect_error<CudaError>(std::string("cuDNN refuses its stored plan, ") + plan + "; time the plans again",
                            [&] { run_by(plan); });
  }
  run_by("engine 2 knobs ");
  EXPECT_EQ(untuned_operations(ctx()), std::vector<std::string>());
  conv2d_forward(ctx(), c.config, c.x_device, c.w_device, {}, y);  // another operation
  EXPECT_EQ(untuned_operations(ctx()).size(), 1U);
  device.synchronize();
}

/// Each address of a tensor takes a descriptor, of which a bounded number is kept.
TEST_P(CudnnConv2dTest, ChangingAddressesMakeABoundedNumberOfObjects) {
  reserve(kWorkspace);
  const Conv2dCase c = make_case(device, dtype(), {1, 4, 4, 8}, {8, 3, 3, 8}, {1, 1, false}, 1);
  const Tensor all = empty({200, 4, 4, 8});
  const auto run = [&](int64_t i) {
    conv2d_forward(ctx(), c.config, c.x_device, c.w_device, c.bias_device, all.rows(i, i + 1));
  };
  run(0);
  const int64_t before = standins::live_objects();
  run(0);
  EXPECT_EQ(standins::live_objects(), before) << "the same addresses again";
  for (int64_t i = 1; i < 200; ++i) {
    run(i);
    ASSERT_LE(standins::live_objects(), before + 64) << i;
  }
  device.synchronize();
}

/// Engines, of which none is allowed, and why.
struct Refusal {
  const char* name;
  std::vector<ConvolutionEngine> engines;
  std::string reason;
};
void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }
const std::string kNone = "none of the 1 engines that cuDNN proposes serves: 1 ";

class CudnnRefusal : public ::testing::TestWithParam<Refusal> {
 protected:
  ~CudnnRefusal() override {
    if (on_gpu()) standins::set_convolution_engines({});
  }
};

TEST_P(CudnnRefusal, IsReportedAndOurOwnConvolutionServes) {
  if (!on_gpu()) GTEST_SKIP() << "cuDNN is for GPUs";
  standins::set_convolution_engines(GetParam().engines);
  TestDevice device;
  device.ctx().reserve_workspace(kWorkspace);
  const Conv2dCase c = make_case(device, DType::f32, {3, 11, 9, 13}, {17, 3, 3, 13}, {1, 1, true}, 1);
  for (int repeat = 0; repeat < 2; ++repeat) {
    standins::take_call_counts();
    check_forward(device, c, kDispatched, false);
    check_backward(device, c, kDispatched, GradMode::accumulate, false);
    EXPECT_EQ(standins::take_call_counts().convolutions, 0);
  }
  for (const char* operation : {"conv2d_forward", "conv2d_backward_data", "conv2d_backward_weight"}) {
    EXPECT_EQ(implementations(device.ctx(), operation), Names{"im2col + cuBLASLt"});
    // The workspace beside the zeros for a bias is smaller.
    const std::string reason = *reasons(device.ctx(), operation).begin();
    EXPECT_TRUE(reason.starts_with(GetParam().reason)) << reason;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Engines, CudnnRefusal,
    ::testing::Values(
        Refusal{"NoEngines",
                {},
                "cuDNN refuses the graph: CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH: the stand-in has no engines"},
        Refusal{"NotDeterministic", {{.index = 1, .deterministic = false}}, kNone + "not deterministic"},
        Refusal{"TensorCores",
                {{.index = 1, .tensor_cores = true}},
                kNone + "on tensor cores only (DeviceGroupOptions::tf32 allows them)"},
        Refusal{"Winograd", {{.index = 1, .winograd = true}}, kNone + "of lower accuracy"},
        Refusal{"Compiled", {{.index = 1, .compiled = true}}, kNone + "compiled at run time"},
        Refusal{"TooLarge",
                {{.index = 1, .workspace_bytes = 1 << 30}},
                kNone + "with a workspace of 1073741824 bytes or more, of 1677"},
        Refusal{"NoPlan",
                {{.index = 5, .fault = Fault::at_finalization}},
                kNone + "not supported (CUDNN_STATUS_NOT_SUPPORTED: engine 5 makes no plan)"}),
    [](const auto& refusal) { return refusal.param.name; });

TEST(CudnnMemory, AHandleThatHasNoRoomNamesTheRemedy) {
  if (!on_gpu()) GTEST_SKIP() << "cuDNN is for GPUs";
  constexpr int64_t kPool = int64_t{16} << 20;
  standins::configure({.capacity_bytes = standins::kContextBytes + kPool + standins::kHandleBytes - 1});
  {
    TestDevice device(1, kPool);
    const Conv2dCase c = make_case(device, DType::f32, {1, 4, 4, 8}, {8, 3, 3, 8}, {1, 1, false}, 1);
    const Tensor y = device.empty(c.g.y);
    expect_error<CudaError>(
        "the GPU's memory may be full: leave some outside the pools (DeviceGroupOptions::memory_bytes)",
        [&] { conv2d_forward(device.ctx(), c.config, c.x_device, c.w_device, {}, y); });
  }
  standins::reset();
}

/// Zeros for a bias are written only where cuDNN adds them.
TEST_F(DeviceTest, ARefusedReluWithoutABiasFillsNothing) {
  if (!on_gpu()) GTEST_SKIP() << "cuDNN is for GPUs";
  ctx().reserve_workspace(kWorkspace);
  const Conv2dCase c = make_case(device, DType::f32, {3, 11, 9, 13}, {17, 3, 3, 13}, {1, 1, true}, 1);
  const GuardedTensor y = device.guarded(c.g.y);
  standins::take_call_counts();
  conv2d_forward(ctx(), c.config, c.x_device, c.w_device, {}, y);
  EXPECT_EQ(standins::take_call_counts().fills, 0);
}

}  // namespace
}  // namespace vitrine::test
