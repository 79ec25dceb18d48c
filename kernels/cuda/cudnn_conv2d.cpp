// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cudnn_conv2d.h"

#include <functional>
#include <initializer_list>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "kernels/cuda/cast.h"
#include "kernels/cuda/cudnn_conv2d_plan.h"
#include "kernels/cuda/epilogues.h"
#include "kernels/plan_tuner.h"
#include "runtime/cuda/check.h"
#include "runtime/cuda/native.h"
#include "runtime/cuda/outside_memory.h"
#include "runtime/error.h"
#include "runtime/gpu_features.h"

namespace vitrine::cuda {
namespace {

using Ids = CudnnConv2dIds;

// A plan that is tuned serves all tensors with this alignment.
constexpr int64_t kTunedAlignment = 16;
// The most plans that are timed for one convolution.
constexpr int kMostConvPlans = 32;

/// Queues the convolution by a plan.
using RunPlan = std::function<void(CudnnPlan& plan)>;

/// The plan among those that are timed, or that have been.
CudnnChoice choose_tuned(ExecContext& ctx, const CudnnConv2d& convolution, cudnnHandle_t handle, const RunPlan& run) {
  auto& tuner = ctx.plans().get<PlanTuner>();
  const std::string operation = conv2d_signature(convolution);
  const CudnnTarget target{handle, nullptr};
  if (const TunedPlan* const known = tuner.find(operation)) {
    CudnnChoice restored = restore_conv2d_plan(convolution, target, known->plan);
    if (!tuner.searches() && restored.plan == nullptr)
      throw CudaError(fmt::format("{}: cuDNN refuses its stored plan, {}; time the plans again: {}", operation,
                                  known->plan, restored.refusal.str()));
    if (!tuner.searches()) return restored;
    if (restored.plan != nullptr) {
      tuner.result().plans.put(*known);
      ++tuner.result().reused;
      return restored;
    }
    tuner.result().notes.push_back(fmt::format("{}: cuDNN refuses the stored plan, so it was timed again", operation));
  }
  if (!tuner.searches()) {
    CudnnChoice choice = choose_conv2d_plan(convolution, target);
    if (choice.plan != nullptr) tuner.note_missed(operation);
    return choice;
  }
  CudnnChoices choices = find_conv2d_plans(convolution, target, kMostConvPlans);
  if (choices.plans.empty()) return {nullptr, choices.refusal};
  std::vector<TimedCandidate> candidates;
  for (const auto& plan : choices.plans) candidates.push_back({plan->text(), [&run, &plan] { run(*plan); }});
  const int fastest = time_candidates(ctx, operation, candidates);
  if (fastest < 0) return {nullptr, fmt::format("none of the {} plans that cuDNN proposes runs", candidates.size())};
  return {std::move(choices.plans[static_cast<size_t>(fastest)]), ""};
}

/// The handle of a context, and the plans or refusals of its convolutions.
class CudnnLibrary {
 public:
  ~CudnnLibrary() {
    choices_.clear();
    if (handle_ != nullptr) cudnn().Destroy(handle_);
  }
  /// Why cuDNN does not run here, and whether it merges bias and ReLU. The environment is read once for each context.
  const std::string& off() const { return off_; }
  bool merges_epilogues() const { return merges_epilogues_; }
  cudnnHandle_t handle(ExecContext& ctx) {
    if (handle_ == nullptr) {
      const OutsideMeter meter(ctx, "cudnn");
      VITRINE_CUDNN_CHECK(cudnn().Create(&handle_));
      ctx.plans().get<PlanTuner>().on_change([this] { choices_.clear(); });
    }
    const cudaStream_t stream = native_stream(ctx);
    if (!stream_set_ || stream != stream_) VITRINE_CUDNN_CHECK(cudnn().SetStream(handle_, stream));
    stream_ = stream;
    stream_set_ = true;
    return handle_;
  }
  const CudnnChoice& choice(ExecContext& ctx, const CudnnConv2d& convolution, cudnnHandle_t handle,
                            const RunPlan& run) {
    const auto known = choices_.find(convolution);
    if (known != choices_.end()) return known->second;
    const bool tuned = ctx.plans().get<PlanTuner>().active() && convolution.alignment >= kTunedAlignment;
    return choices_
        .emplace(convolution, tuned ? choose_tuned(ctx, convolution, handle, run)
                                    : choose_conv2d_plan(convolution, {handle, nullptr}))
        .first->second;
  }

 private:
  const std::string off_ = why_no_cudnn();
  const bool merges_epilogues_ = why_off(GpuFeature::fused_epilogues).empty();
  cudnnHandle_t handle_ = nullptr;
  cudaStream_t stream_ = nullptr;
  bool stream_set_ = false;
  std::map<CudnnConv2d, CudnnChoice> choices_;
};

/// The largest power of two, up to 16, that divides all addresses.
int64_t alignment_of(std::initializer_list<const void*> pointers) {
  uintptr_t bits = 16;
  for (const void* p : pointers) bits |= reinterpret_cast<uintptr_t>(p);
  return static_cast<int64_t>(bits & (~bits + 1));
}

/// The arena without a piece at its end, and that piece.
struct SplitArena {
  View workspace;
  uint8_t* end = nullptr;  // null: the arena is too small
};
SplitArena split_arena(ExecContext& ctx, int64_t bytes) {
  const View arena = ctx.workspace();
  const int64_t piece = cudnn_arena_piece(bytes);
  const int64_t left = (arena ? arena.bytes() : 0) / kCudnnArenaAlignment * kCudnnArenaAlignment - piece;
  if (left < 0) return {};
  return {arena.rows(0, left), arena.as<uint8_t>() + left};
}

/// What a forward pass adds to each output; null: nothing.
struct Summand {
  const void* data = nullptr;
  int64_t cleared_bytes = 0;  // that become zeros first
};

/// Runs the convolution, or returns why there is no plan.
CudnnRun run_pass(ExecContext& ctx, CudnnConv2d convolution, View workspace, const void* x, const void* w,
                  const void* y, const Summand& bias = {}) {
  auto& library = ctx.plans().get<CudnnLibrary>();
  if (!library.off().empty()) return {library.off()};
  convolution.tf32 = ctx.tf32();
  convolution.alignment = alignment_of({x, w, y, bias.data});
  convolution.workspace_bytes = workspace ? workspace.bytes() : 0;
  const cudnnHandle_t handle = library.handle(ctx);
  // cuDNN has one pointer type for inputs and outputs.
  const std::array<int64_t, 4> ids{Ids::x, Ids::w, Ids::y, Ids::bias};
  const std::array<void*, 4> pointers{const_cast<void*>(x), const_cast<void*>(w), const_cast<void*>(y),
                                      const_cast<void*>(bias.data)};
  const size_t count = bias.data != nullptr ? 4 : 3;
  const auto run = [&](CudnnPlan& plan) {
    if (bias.cleared_bytes > 0) {
      VITRINE_CUDA_CHECK(cudaMemsetAsync(const_cast<void*>(bias.data), 0, static_cast<size_t>(bias.cleared_bytes),
                                         native_stream(ctx)));
    }
    plan.execute(handle, std::span(ids).first(count), std::span(pointers).first(count), workspace.data);
  };
  const CudnnChoice& choice = library.choice(ctx, convolution, handle, run);
  if (choice.plan == nullptr) return {choice.refusal};
  run(*choice.plan);
  return {"", choice.plan->tensor_cores() || convolution.dtype == DType::f32};
}

CudnnConv2d describe(Conv2dPass pass, const Conv2dConfig& config, DType dtype, const Shape& x, const Shape& w,
                     const Shape& y) {
  CudnnConv2d convolution;
  convolution.pass = pass;
  convolution.dtype = dtype;
  convolution.x = sizes_of(x);
  convolution.w = sizes_of(w);
  convolution.y = sizes_of(y);
  convolution.stride = config.stride;
  convolution.pad = config.pad;
  return convolution;
}

}  // namespace

CudnnRun cudnn_conv2d_forward(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias,
                              View y) {
  if ((bias || config.relu) && !ctx.plans().get<CudnnLibrary>().merges_epilogues()) {
    Conv2dConfig product = config;
    product.relu = false;
    CudnnRun run = cudnn_conv2d_forward(ctx, product, x, w, {}, y);
    if (run.refusal.empty()) add_bias_relu(ctx, bias, config.relu, y.reshape({y.numel() / w.shape[0], w.shape[0]}));
    return run;
  }
  CudnnConv2d convolution = describe(Conv2dPass::forward, config, y.dtype, x.shape, w.shape, y.shape);
  convolution.relu = config.relu;
  convolution.bias = bias || config.relu;
  View workspace = ctx.workspace();
  Summand summand{bias.data};
  if (config.relu && !bias) {
    // cuDNN merges ReLU only after a bias: use zeros at the end of the arena.
    const int64_t zeros = w.shape[0] * size_of(y.dtype);
    const SplitArena arena = split_arena(ctx, zeros);
    if (arena.end == nullptr)
      return {{fmt::format("ReLU without a bias takes {} bytes of workspace; reserve more with ", zeros),
               ctx.workspace_setting()}};
    summand = {arena.end, zeros};
    workspace = arena.workspace;
  }
  return run_pass(ctx, convolution, workspace, x.data, w.data, y.data, summand);
}

CudnnRun cudnn_conv2d_backward_data(ExecContext& ctx, const Conv2dConfig& config, ConstView grad_y, ConstView w,
                                    View grad_x) {
  const CudnnConv2d convolution =
      describe(Conv2dPass::backward_data, config, grad_x.dtype, grad_x.shape, w.shape, grad_y.shape);
  return run_pass(ctx, convolution, ctx.workspace(), grad_x.data, w.data, grad_y.data);
}

CudnnRun cudnn_conv2d_backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y,
                                      View grad_w, GradMode mode) {
  CudnnConv2d convolution = describe(Conv2dPass::backward_weight, config, x.dtype, x.shape, grad_w.shape, grad_y.shape);
  convolution.accumulate = mode == GradMode::accumulate;
  return run_pass(ctx, convolution, ctx.workspace(), x.data, grad_w.data, grad_y.data);
}

CudnnRun cudnn_conv2d_backward_weight_rounded(ExecContext& ctx, const Conv2dConfig& config, ConstView x,
                                              ConstView grad_y, View grad_w, GradMode mode) {
  CudnnConv2d convolution = describe(Conv2dPass::backward_weight, config, x.dtype, x.shape, grad_w.shape, grad_y.shape);
  convolution.dw_dtype = x.dtype;
  View rounded = grad_w;
  rounded.dtype = x.dtype;
  const SplitArena arena = split_arena(ctx, rounded.bytes());
  if (arena.end == nullptr) {
    return {{fmt::format("a gradient of {} weights in {} takes {} bytes of workspace; reserve more with ",
                         rounded.numel(), dtype_name(x.dtype), rounded.bytes()),
             ctx.workspace_setting()}};
  }
  rounded.data = arena.end;
  CudnnRun run = run_pass(ctx, convolution, arena.workspace, x.data, rounded.data, grad_y.data);
  if (run.refusal.empty()) widen(ctx, rounded, grad_w, mode);
  return run;
}

std::optional<LibraryInfo> cudnn_library() {
  std::string state = why_no_cudnn();
  if (state.empty()) {
    const size_t version = cudnn().GetVersion();
    state = fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  }
  return LibraryInfo{"cuDNN", state, "convolution on GPUs"};
}

}  // namespace vitrine::cuda
