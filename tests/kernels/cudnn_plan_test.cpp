// SPDX-License-Identifier: Apache-2.0
// cuDNN chooses plans from a GPU's description alone: what runs on a real GPU later is checked here without one.
#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>

#include "kernels/conv2d.h"
#include "kernels/conv2d_form.h"
#include "kernels/cuda/cudnn_conv2d_plan.h"
#include "kernels/cuda/cudnn_graph.h"
#include "nn/parallel/plan/memory_plan.h"
#include "runtime/error.h"
#include "tests/kernels/expect_error.h"
#include "tests/support/expect_contains.h"

#if CUDNN_VERSION >= 90800

namespace vitrine::test {
namespace {

using cuda::CudnnChoice;
using cuda::CudnnConv2d;
using cuda::CudnnDescriptor;

/// What distinguishes GPUs in cuDNN's eyes; the numbers are the vendor's.
struct Gpu {
  const char* name;
  int compute_capability, multiprocessors, shared_bytes, blocks, threads, l2_bytes, clock_khz, memory_khz, bus_bits;
  int64_t memory_bytes;
};
constexpr int64_t kGib = int64_t{1} << 30;
constexpr Gpu kGpus[] = {
    {"Tesla T4", 750, 40, 65536, 16, 1024, 4 << 20, 1590000, 5001000, 256, 15 * kGib},
    {"NVIDIA A100-SXM4-80GB", 800, 108, 166912, 32, 2048, 40 << 20, 1410000, 1593000, 5120, 79 * kGib},
    {"NVIDIA H100 80GB HBM3", 900, 132, 232448, 32, 2048, 50 << 20, 1980000, 2619000, 5120, 79 * kGib},
    {"NVIDIA B200", 1000, 148, 232448, 32, 2048, 126 << 20, 1965000, 3996000, 8192, 178 * kGib},
    {"NVIDIA GeForce RTX 5090", 1200, 170, 101376, 24, 1536, 96 << 20, 2407000, 14001000, 512, 31 * kGib},
};

CudnnDescriptor describe(const Gpu& gpu) {
  const std::string json = fmt::format(
      R"({{"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"multiProcessorCount":{},"warpSize":32,)"
      R"("maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":{},"reservedSharedMemoryPerBlock":{},"maxRegistersPerSM":65536,)"
      R"("maxCtasPerSM":{},"maxThreadsPerBlock":1024,"maxThreadsPerSM":{},"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,)"
      R"("totalGlobalMem":{},"smClockRateKHz":{},"memClockRateKHz":{},"memoryBusWidth":{},"l2CacheSize":{},"cudaDeviceId":0,"deviceVer":{},"driverVer":13000,)"
      R"("deviceName":"{}"}})",
      gpu.multiprocessors, gpu.shared_bytes, gpu.compute_capability >= 800 ? 1024 : 0, gpu.blocks, gpu.threads,
      gpu.memory_bytes, gpu.clock_khz, gpu.memory_khz, gpu.bus_bits, gpu.l2_bytes, gpu.compute_capability, gpu.name);
  CudnnDescriptor descriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  descriptor.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, std::span<const char>(json));
  descriptor.finalize();
  return descriptor;
}

CudnnConv2d convolution(const Shape& x, const Shape& w, int64_t stride, int64_t pad) {
  const auto sizes = [](const Shape& s) { return std::array<int64_t, 4>{s[0], s[1], s[2], s[3]}; };
  return {.x = sizes(x),
          .w = sizes(w),
          .y = sizes(conv2d_output_shape({stride, pad, false}, x, w)),
          .stride = stride,
          .pad = pad,
          .workspace_bytes = int64_t{256} << 20};
}

/// The layers of AlexNet and small-cnn, a pointwise one, and odd sizes.
std::vector<CudnnConv2d> convolutions() {
  return {
      convolution({64, 227, 227, 3}, {64, 11, 11, 3}, 4, 2),  convolution({64, 27, 27, 64}, {192, 5, 5, 64}, 1, 2),
      convolution({64, 13, 13, 192}, {384, 3, 3, 192}, 1, 1), convolution({64, 13, 13, 384}, {256, 3, 3, 384}, 1, 1),
      convolution({64, 13, 13, 256}, {256, 3, 3, 256}, 1, 1), convolution({128, 32, 32, 3}, {32, 3, 3, 3}, 1, 1),
      convolution({128, 16, 16, 32}, {64, 3, 3, 32}, 1, 1),   convolution({8, 14, 14, 256}, {64, 1, 1, 256}, 1, 0),
      convolution({3, 28, 20, 5}, {7, 5, 4, 5}, 2, 1)};
}

/// Without a driver, the toolkit's stub: from 9.20 on, cuDNN's engines need a libcuda.so.1 that they find by this name.
class DriverOrStub final : public ::testing::Environment {
 public:
  void SetUp() override {
    if (dlopen("libcuda.so.1", RTLD_NOW) == nullptr) dlopen(VITRINE_DRIVER_STUB, RTLD_NOW);
  }
};
::testing::Environment* const kDriverOrStub = ::testing::AddGlobalTestEnvironment(new DriverOrStub);

/// Why this machine's cuDNN makes no plans; empty if it does.
std::string why_no_plans() {
  const std::string none = cuda::why_no_cudnn();
  return !none.empty() || cuda::cudnn().GetVersion() >= 90800 ? none : "this cuDNN needs a GPU to make plans";
}

class CudnnPlanTest : public ::testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    if (const std::string none = why_no_plans(); !none.empty()) GTEST_SKIP() << none;
    if (cuda::cudnn().GetVersion() < 90900 && kGpus[GetParam()].compute_capability == 1000)
      GTEST_SKIP() << "cuDNN 9.8 ends the process when it plans for a B200";
    gpu_.emplace(describe(kGpus[GetParam()]));
  }
  CudnnChoice choose(const CudnnConv2d& c) { return cuda::choose_conv2d_plan(c, {nullptr, &*gpu_}); }
  void expect_plan(const CudnnConv2d& c, const char* what) {
    const CudnnChoice choice = choose(c);
    EXPECT_TRUE(choice.plan != nullptr) << what << " of " << dtype_name(c.dtype) << " x " << c.x[0] << " " << c.x[1]
                                        << " " << c.x[2] << " " << c.x[3] << ": " << choice.refusal.str();
    if (choice.plan == nullptr) return;
    EXPECT_LE(choice.plan->workspace_bytes(), c.workspace_bytes) << what;
    const bool tensor_cores = c.tf32 || c.dtype != DType::f32;
    for (const auto note : choice.plan->numerical_notes()) {
      EXPECT_TRUE(note == CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP ||
                  (note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE && tensor_cores))
          << what << ": note " << note;
      tensor_cores_ += note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    }
  }

  int tensor_cores_ = 0;  // plans that use them
  std::optional<CudnnDescriptor> gpu_;
};

TEST_P(CudnnPlanTest, FindsDeterministicF32PlansForModels) {
  for (CudnnConv2d c : convolutions()) {
    expect_plan(c, "forward");
    c.bias = true;
    expect_plan(c, "forward with bias");
    c.relu = true;
    expect_plan(c, "forward with bias and ReLU");
    c.pass = Conv2dPass::backward_data;
    expect_plan(c, "backward_data");
    c.pass = Conv2dPass::backward_weight;
    expect_plan(c, "backward_weight");
    c.accumulate = true;
    expect_plan(c, "backward_weight added to");
  }
}

TEST_P(CudnnPlanTest, FindsTensorCorePlansIfTheyAreAllowed) {
  for (CudnnConv2d c : convolutions()) {
    c.tf32 = true;
    c.bias = c.relu = true;
    expect_plan(c, "forward");
    c.pass = Conv2dPass::backward_data;
    expect_plan(c, "backward_data");
    c.pass = Conv2dPass::backward_weight;
    expect_plan(c, "backward_weight");
  }
  // Chips before sm_80 have no TF32.
  EXPECT_EQ(tensor_cores_ > 0, kGpus[GetParam()].compute_capability >= 800);
}

/// What --autotune times: the passes of AlexNet at a batch of 512, of which training does not need the gradient of the
/// images.
class CudnnCandidates : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string none = why_no_plans(); !none.empty()) GTEST_SKIP() << none;
    gpu_.emplace(describe(kGpus[2]));
    h100_.device_properties = &*gpu_;
  }
  static std::vector<CudnnConv2d> passes(DType dtype, bool tf32) {
    std::vector<CudnnConv2d> all;
    for (CudnnConv2d c :
         {convolution({512, 227, 227, 3}, {64, 11, 11, 3}, 4, 2), convolution({512, 27, 27, 64}, {192, 5, 5, 64}, 1, 2),
          convolution({512, 13, 13, 192}, {384, 3, 3, 192}, 1, 1),
          convolution({512, 13, 13, 384}, {256, 3, 3, 384}, 1, 1),
          convolution({512, 13, 13, 256}, {256, 3, 3, 256}, 1, 1)}) {
      c.dtype = dtype;
      c.dw_dtype = dtype;
      c.tf32 = tf32;
      c.bias = c.relu = true;
      all.push_back(c);
      c.bias = c.relu = false;
      c.pass = Conv2dPass::backward_weight;
      all.push_back(c);
      if (c.x[3] == 3) continue;
      c.pass = Conv2dPass::backward_data;
      all.push_back(c);
    }
    return all;
  }

  std::optional<CudnnDescriptor> gpu_;
  cuda::CudnnTarget h100_;
};

TEST_F(CudnnCandidates, ConvolutionsOfAlexNetOnAnH100HaveSeveralAllowedPlans) {
  for (const auto& [dtype, tf32] : {std::pair(DType::bf16, false), {DType::f32, true}}) {
    for (const CudnnConv2d& c : passes(dtype, tf32)) {
      const cuda::CudnnChoices found = cuda::find_conv2d_plans(c, h100_, 32);
      EXPECT_GT(found.plans.size(), 1U) << cuda::conv2d_signature(c) << found.refusal.str();
      if (found.plans.empty()) continue;
      const CudnnChoice first = cuda::choose_conv2d_plan(c, h100_);
      ASSERT_NE(first.plan, nullptr);
      EXPECT_EQ(found.plans.front()->text(), first.plan->text()) << "the first candidate is the library's choice";
      std::set<std::string> texts;
      for (const auto& plan : found.plans) {
        EXPECT_TRUE(texts.insert(plan->text()).second) << "twice: " << plan->text();
        EXPECT_LE(plan->workspace_bytes(), c.workspace_bytes);
        for (const auto note : plan->numerical_notes()) {
          EXPECT_TRUE(note == CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP || note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE)
              << "note " << note;
        }
      }
    }
  }
}

TEST_F(CudnnCandidates, APlanIsMadeAgainFromItsText) {
  for (const CudnnConv2d& c : passes(DType::bf16, false)) {
    for (const auto& plan : cuda::find_conv2d_plans(c, h100_, 32).plans) {
      const CudnnChoice restored = cuda::restore_conv2d_plan(c, h100_, plan->text());
      ASSERT_NE(restored.plan, nullptr) << plan->text() << ": " << restored.refusal.str();
      EXPECT_EQ(restored.plan->text(), plan->text());
      EXPECT_EQ(restored.plan->workspace_bytes(), plan->workspace_bytes());
      EXPECT_EQ(restored.plan->engine(), plan->engine());
    }
  }
}

TEST_F(CudnnCandidates, PlansThatAreNotAllowedAreNotMadeFromTheirText) {
  const CudnnConv2d c = passes(DType::bf16, false).front();
  for (const char* text :
       {"", "engine", "engine x knobs 1=2", "engine 0 knobs 1", "engine 0 knobs 1:2", "algorithm 1"}) {
    EXPECT_EQ(cuda::restore_conv2d_plan(c, h100_, text).plan, nullptr) << text;
  }
  const CudnnChoice unknown = cuda::restore_conv2d_plan(c, h100_, "engine 99999 knobs ");
  EXPECT_EQ(unknown.plan, nullptr);
  expect_contains(unknown.refusal.str(), "engine 99999");
  // A plan that needs a workspace is none without one.
  for (const CudnnConv2d& large : passes(DType::bf16, false)) {
    for (const auto& plan : cuda::find_conv2d_plans(large, h100_, 32).plans) {
      CudnnConv2d small = large;
      small.workspace_bytes = plan->workspace_bytes() - 1;
      if (small.workspace_bytes < 0) continue;
      EXPECT_EQ(cuda::restore_conv2d_plan(small, h100_, plan->text()).plan, nullptr) << plan->text();
    }
  }
  // Without TF32, plans that use it are refused.
  int with_tf32 = 0;
  for (CudnnConv2d c_tf32 : passes(DType::f32, true)) {
    const auto found = cuda::find_conv2d_plans(c_tf32, h100_, 32);
    c_tf32.tf32 = false;
    for (const auto& plan : found.plans) {
      const bool tensor_cores = std::ranges::count(plan->numerical_notes(), CUDNN_NUMERICAL_NOTE_TENSOR_CORE) > 0;
      EXPECT_EQ(cuda::restore_conv2d_plan(c_tf32, h100_, plan->text()).plan == nullptr, tensor_cores) << plan->text();
      with_tf32 += tensor_cores ? 1 : 0;
    }
  }
  EXPECT_GT(with_tf32, 0);
}

/// Images of three channels, without padding.
TEST_P(CudnnPlanTest, FindsF16AndBf16PlansForModels) {
  const bool has_bf16 = kGpus[GetParam()].compute_capability >= 800;
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (CudnnConv2d c : convolutions()) {
      c.dtype = dtype;
      if (dtype == DType::bf16 && !has_bf16) {
        EXPECT_EQ(choose(c).refusal, "cuDNN proposes no engine");
        continue;
      }
      expect_plan(c, "forward");
      c.bias = true;
      expect_plan(c, "forward with bias");
      c.relu = true;
      expect_plan(c, "forward with bias and ReLU");
      c.pass = Conv2dPass::backward_data;
      expect_plan(c, "backward_data");
      c.pass = Conv2dPass::backward_weight;
      c.dw_dtype = dtype;
      expect_plan(c, "backward_weight, rounded");
    }
  }
  EXPECT_GT(tensor_cores_, 0);
}

/// cuDNN 9.19 has no engine that reads f16 or bf16 and writes the gradient of the weights in f32.
TEST_P(CudnnPlanTest, AnF32GradientOf16BitTensorsIsRefusedOrFollowsTheRules) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (CudnnConv2d c : convolutions()) {
      c.dtype = dtype;
      c.pass = Conv2dPass::backward_weight;
      for (const bool accumulate : {false, true}) {
        c.accumulate = accumulate;
        const CudnnChoice choice = choose(c);
        if (choice.plan != nullptr) {
          expect_plan(c, "backward_weight");
        } else {
          expect_contains(choice.refusal.str(), "cuDNN proposes");
        }
      }
    }
  }
}

TEST_P(CudnnPlanTest, StaysWithinTheWorkspace) {
  for (const auto pass : {Conv2dPass::forward, Conv2dPass::backward_data, Conv2dPass::backward_weight}) {
    for (const int64_t bytes : {int64_t{0}, int64_t{1} << 20, int64_t{64} << 20}) {
      for (CudnnConv2d c : convolutions()) {
        c.pass = pass;
        c.workspace_bytes = bytes;
        const CudnnChoice choice = choose(c);
        if (choice.plan != nullptr) {
          EXPECT_LE(choice.plan->workspace_bytes(), bytes);
        } else {
          expect_contains(choice.refusal.str(), fmt::format("of {} reserved", bytes));
        }
      }
    }
  }
}

/// A convolution of a training step: all passes that the layer runs.
struct TrainedLayer {
  Shape x, w;  // x: of one image
  int64_t stride, pad;
  bool first;  // the gradient of its input is not needed
};
constexpr int64_t kBatches[] = {64, 512};
constexpr int64_t kUnlimited = INT64_MAX / 2;

/// AlexNet's, and some of ResNet's.
std::vector<TrainedLayer> trained_layers() {
  return {{{1, 227, 227, 3}, {64, 11, 11, 3}, 4, 2, true},   {{1, 27, 27, 64}, {192, 5, 5, 64}, 1, 2, false},
          {{1, 13, 13, 192}, {384, 3, 3, 192}, 1, 1, false}, {{1, 13, 13, 384}, {256, 3, 3, 384}, 1, 1, false},
          {{1, 13, 13, 256}, {256, 3, 3, 256}, 1, 1, false}, {{1, 56, 56, 64}, {64, 3, 3, 64}, 1, 1, false},
          {{1, 56, 56, 64}, {128, 3, 3, 64}, 2, 1, false},   {{1, 7, 7, 512}, {512, 3, 3, 512}, 1, 1, false},
          {{1, 14, 14, 256}, {1024, 1, 1, 256}, 1, 0, false}};
}

/// The operations of layers in a dtype, as meta devices record them.
std::vector<RecordedConv2d> recorded(const TrainedLayer& layer, int64_t batch, DType dtype) {
  const Shape x = layer.x.with_dim0(batch), y = conv2d_output_shape({layer.stride, layer.pad, false}, x, layer.w);
  std::vector<RecordedConv2d> all;
  for (const auto pass : {Conv2dPass::forward, Conv2dPass::backward_data, Conv2dPass::backward_weight}) {
    if (layer.first && pass == Conv2dPass::backward_data) continue;
    all.push_back({pass,
                   {layer.stride, layer.pad, pass == Conv2dPass::forward},
                   dtype,
                   x,
                   layer.w,
                   y,
                   pass != Conv2dPass::backward_data});
  }
  return all;
}

/// The plan that the convolution runs by in an arena of these bytes.
CudnnChoice chosen_in(const RecordedConv2d& c, bool tf32, int64_t arena_bytes, const cuda::CudnnTarget& target) {
  CudnnConv2d graph = convolution(c.x, c.w, c.config.stride, c.config.pad);
  graph.pass = c.pass;
  graph.dtype = c.dtype;
  graph.tf32 = tf32;
  graph.bias = graph.relu = c.pass == Conv2dPass::forward;
  graph.workspace_bytes = arena_bytes;
  if (c.pass == Conv2dPass::backward_weight && c.dtype != DType::f32) {  // in f32 cuDNN has no plan
    graph.dw_dtype = c.dtype;
    graph.workspace_bytes -= cuda::cudnn_arena_piece(c.w.numel() * size_of(c.dtype));
  }
  return cuda::choose_conv2d_plan(graph, target);
}

bool on_tensor_cores(const CudnnChoice& choice) {
  const std::vector<cudnnBackendNumericalNote_t> notes = choice.plan->numerical_notes();
  return std::ranges::find(notes, CUDNN_NUMERICAL_NOTE_TENSOR_CORE) != notes.end();
}

/// The arena is sized by what cuDNN asks for all layers, as plan_memory() does. In f32 without TF32 most of cuDNN's
/// own proposals are not allowed, so that some layers have only fallback engines in any arena.
TEST_P(CudnnPlanTest, ThePlannedWorkspaceGivesEveryLayerTheBestPlanAndTensorCores) {
  const cuda::CudnnTarget target{nullptr, &*gpu_};
  const bool ampere = kGpus[GetParam()].compute_capability >= 800;
  for (const auto& [dtype, tf32, supported] :
       {std::tuple{DType::f32, false, true}, std::tuple{DType::f32, true, ampere}, std::tuple{DType::f16, false, true},
        std::tuple{DType::bf16, false, ampere}}) {
    if (!supported) continue;
    for (const int64_t batch : kBatches) {
      std::vector<RecordedConv2d> all;
      for (const TrainedLayer& layer : trained_layers()) {
        for (const RecordedConv2d& c : recorded(layer, batch, dtype)) all.push_back(c);
      }
      int64_t arena = 0;
      for (const RecordedConv2d& c : all)
        arena = std::max(arena, cuda::cudnn_conv2d_need(c, tf32, target, kUnlimited).best_bytes);
      for (const RecordedConv2d& c : all) {
        const std::string what = fmt::format("{}{} in {} bytes", c.str(), tf32 ? ", TF32" : "", arena);
        const CudnnChoice choice = chosen_in(c, tf32, arena, target),
                          unlimited = chosen_in(c, tf32, kUnlimited, target);
        ASSERT_TRUE(choice.plan != nullptr) << what << ": " << choice.refusal.str();
        EXPECT_EQ(choice.plan->engine(), unlimited.plan->engine()) << what;
        EXPECT_EQ(choice.plan->workspace_bytes(), unlimited.plan->workspace_bytes()) << what;
        if (dtype == DType::f32 && !tf32) continue;
        EXPECT_FALSE(choice.plan->fallback()) << what;
        // For an RTX 5090 cuDNN has no such plan of AlexNet's first layer; conv2d_choices() says so.
        const bool none = kGpus[GetParam()].compute_capability >= 1200 && c.pass == Conv2dPass::forward &&
                          c.w == trained_layers().front().w;
        EXPECT_TRUE(none || on_tensor_cores(choice)) << what;
      }
    }
  }
}

/// AlexNet's first convolution at batch 512: with 256 MiB it would not run on tensor cores in bf16.
TEST_P(CudnnPlanTest, ASmallerWorkspaceThanPlannedCostsTensorCores) {
  if (kGpus[GetParam()].compute_capability < 800) GTEST_SKIP() << "no bf16";
  const cuda::CudnnTarget target{nullptr, &*gpu_};
  const RecordedConv2d weights = recorded(trained_layers().front(), 512, DType::bf16).back();
  constexpr int64_t kBefore = int64_t{256} << 20;
  const cuda::CudnnConv2dNeed need = cuda::cudnn_conv2d_need(weights, false, target, kBefore);
  EXPECT_GT(need.best_bytes, kBefore);
  EXPECT_LE(need.bytes, kBefore);
  EXPECT_GE(need.bytes, 0);
  EXPECT_FALSE(on_tensor_cores(chosen_in(weights, false, kBefore, target)));
  EXPECT_TRUE(on_tensor_cores(chosen_in(weights, false, need.best_bytes, target)));
}

/// What the engine runs for a layer whose images have the form that the rule chooses on GPUs.
TrainedLayer formed(const TrainedLayer& layer, DType dtype, bool tf32) {
  const Conv2dConfig config{layer.stride, layer.pad, false};
  const ImageForm form =
      conv2d_input_form(config, layer.x, layer.w, {Backend::cuda, dtype, InputPacking::automatic, tf32});
  EXPECT_TRUE(form) << layer.x.str();
  const FormedConv2d f = formed_conv2d(config, form, layer.w);
  return {form.packed_shape(1), f.weight.packed_shape(layer.w[0]), f.config.stride, f.config.pad, true};
}

int64_t arena_of(const std::vector<TrainedLayer>& layers, int64_t batch, DType dtype, bool tf32,
                 const cuda::CudnnTarget& target) {
  int64_t bytes = 0;
  for (const TrainedLayer& layer : layers) {
    for (const RecordedConv2d& c : recorded(layer, batch, dtype)) {
      bytes = std::max(bytes, cuda::cudnn_conv2d_need(c, tf32, target, kUnlimited).best_bytes);
    }
  }
  return bytes;
}

/// Images of three channels make cuDNN copy them to padded tensors in the workspace; in the form they need no copy.
TEST_P(CudnnPlanTest, TheFormOfTheInputGivesTensorCoresInASmallWorkspace) {
  constexpr int64_t kBatch = 512, kSmall = int64_t{8} << 20, kLarge = int64_t{384} << 20;
  const cuda::CudnnTarget target{nullptr, &*gpu_};
  const TrainedLayer firsts[] = {{{1, 227, 227, 3}, {64, 11, 11, 3}, 4, 2, true},  // AlexNet
                                 {{1, 224, 224, 3}, {64, 7, 7, 3}, 2, 3, true},    // ResNet
                                 {{1, 224, 224, 3}, {64, 3, 3, 3}, 1, 1, true}};   // VGG
  for (const DType dtype : {DType::f16, DType::bf16}) {
    if (dtype == DType::bf16 && kGpus[GetParam()].compute_capability < 800) continue;
    for (const TrainedLayer& layer : firsts) {
      const TrainedLayer form = formed(layer, dtype, false);
      for (const RecordedConv2d& c : recorded(form, kBatch, dtype)) {
        const CudnnChoice choice = chosen_in(c, false, kSmall, target),
                          unlimited = chosen_in(c, false, kUnlimited, target);
        ASSERT_TRUE(choice.plan != nullptr) << c.str() << ": " << choice.refusal.str();
        EXPECT_EQ(choice.plan->engine(), unlimited.plan->engine()) << c.str();
        EXPECT_FALSE(choice.plan->fallback()) << c.str();
        EXPECT_TRUE(on_tensor_cores(choice)) << c.str();
      }
      EXPECT_LE(arena_of({form}, kBatch, dtype, false, target), kSmall) << form.x.str();
      EXPECT_GT(arena_of({layer}, kBatch, dtype, false, target), kLarge) << layer.x.str();
    }
  }
}

/// In TF32 cuDNN copies plain images, outputs and gradients to another layout.
TEST_P(CudnnPlanTest, TheFormOfTheInputShrinksTheWorkspaceInTf32) {
  if (kGpus[GetParam()].compute_capability < 800) GTEST_SKIP() << "no TF32";
  constexpr int64_t kBatch = 512;
  const cuda::CudnnTarget target{nullptr, &*gpu_};
  const TrainedLayer alexnet{{1, 227, 227, 3}, {64, 11, 11, 3}, 4, 2, true},
      resnet{{1, 224, 224, 3}, {64, 7, 7, 3}, 2, 3, true};
  for (const TrainedLayer& layer : {alexnet, resnet}) {
    const int64_t plain = arena_of({layer}, kBatch, DType::f32, true, target);
    const int64_t bytes = arena_of({formed(layer, DType::f32, true)}, kBatch, DType::f32, true, target);
    RecordProperty(fmt::format("first_of_{}", layer.w[1]),
                   fmt::format("{} bytes, {} with images as they are", bytes, plain));
    EXPECT_LT(bytes, plain) << layer.x.str();
  }
  const int capability = kGpus[GetParam()].compute_capability;
  if (capability < 900 || capability >= 1200) return;  // the best engines of A100 and RTX 5090 copy in either case
  EXPECT_LT(arena_of({formed(alexnet, DType::f32, true)}, kBatch, DType::f32, true, target), int64_t{8} << 20);
}

TEST_P(CudnnPlanTest, TheFormOfTheInputShrinksTheArenaOfAlexNet) {
  const cuda::CudnnTarget target{nullptr, &*gpu_};
  for (const int64_t batch : kBatches) {
    std::vector<TrainedLayer> layers = trained_layers();
    layers.resize(5);  // AlexNet's
    const int64_t plain = arena_of(layers, batch, DType::f16, false, target);
    layers[0] = formed(layers[0], DType::f16, false);
    const int64_t bytes = arena_of(layers, batch, DType::f16, false, target);
    RecordProperty(fmt::format("arena_of_batch_{}", batch),
                   fmt::format("{} bytes, {} with images as they are", bytes, plain));
    EXPECT_LT(batch == 512 ? 4 * bytes : bytes, plain) << batch;
  }
}

/// In exactly the bytes that a convolution is said to need it gets the plan that it was asked for; with one less it
/// does not.
TEST_P(CudnnPlanTest, TheNeedIsExact) {
  const cuda::CudnnTarget target{nullptr, &*gpu_};
  int larger = 0;
  for (const DType dtype : {DType::f32, DType::f16}) {
    for (const TrainedLayer& layer : trained_layers()) {
      for (const RecordedConv2d& c : recorded(layer, 64, dtype)) {
        const int64_t best = cuda::cudnn_conv2d_need(c, false, target, kUnlimited).best_bytes;
        EXPECT_EQ(cuda::cudnn_conv2d_need(c, false, target, best).bytes, best) << c.str();
        if (best == 0) continue;
        const int64_t less = cuda::cudnn_conv2d_need(c, false, target, best - 1).bytes;
        EXPECT_LT(less, best) << c.str();
        ++larger;
      }
    }
  }
  EXPECT_GT(larger, 0) << "no convolution needs a workspace";
}

TEST_P(CudnnPlanTest, ExecutesWithTheTensorsOfAPlan) {
  CudnnConv2d c = convolutions().front();
  c.bias = c.relu = true;
  const CudnnChoice choice = choose(c);
  ASSERT_TRUE(choice.plan != nullptr) << choice.refusal.str();
  // Without a handle execution fails, but only once the tensors are accepted.
  using Ids = cuda::CudnnConv2dIds;
  const std::array<int64_t, 4> ids{Ids::x, Ids::w, Ids::y, Ids::bias};
  alignas(16) std::array<char, 64> memory{};
  const std::array<void*, 4> pointers{memory.data(), memory.data() + 16, memory.data() + 32, memory.data() + 48};
  expect_error<CudaError>("cudnn().BackendExecute",
                          [&] { choice.plan->execute(nullptr, ids, pointers, memory.data()); });
}

TEST_P(CudnnPlanTest, RefusesEmptyTensors) {
  CudnnConv2d c = convolutions().front();
  c.x[0] = c.y[0] = 0;
  const CudnnChoice choice = choose(c);
  EXPECT_TRUE(choice.plan == nullptr);
  EXPECT_EQ(choice.refusal, "cuDNN takes no empty tensors");
}

TEST_P(CudnnPlanTest, ErrorsNameTheCall) {
  CudnnDescriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  expect_error<CudaError>("cudnn().BackendFinalize(descriptor_): CUDNN_STATUS_BAD_PARAM", [&] { tensor.finalize(); });
  expect_error<CudaError>("cudnnBackendSetAttribute(100, type 1, 1 values)",
                          [&] { tensor.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT); });
}

INSTANTIATE_TEST_SUITE_P(Gpus, CudnnPlanTest, ::testing::Range(size_t{0}, std::size(kGpus)), [](const auto& gpu) {
  return fmt::format("sm_{}", kGpus[gpu.param].compute_capability / 10);
});

}  // namespace
}  // namespace vitrine::test

#endif
