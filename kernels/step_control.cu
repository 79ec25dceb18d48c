// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/step_scalars.cuh"
#include "kernels/step_control.h"

namespace vitrine::cuda {
namespace {

// A gradient is cut into parts of whole tiles, one per block; the last may be shorter. Which thread adds what, and in
// which order, depends only on the length of the gradient, not on its address.
constexpr int kPack = kPackElements<float>;
constexpr int64_t kTileElements = int64_t{kBlockThreads} * kPack;
constexpr int64_t kMostParts = 2048;
static_assert(kMostParts * static_cast<int64_t>(sizeof(double)) <= kCheckGradientsWorkspaceBytes);

__device__ inline double squared(float value) { return static_cast<double>(value) * static_cast<double>(value); }

/// The sum of the squares of the block's part of `count` elements, in every thread.   kPacked: grad may be accessed in
/// packs.
template <bool kPacked>
__device__ inline double sum_squares(const float* grad, int64_t count, int64_t part_elements) {
  using P = Pack<float, kPack>;
  const int64_t begin = int64_t{blockIdx.x} * part_elements;
  const int64_t end = begin + part_elements < count ? begin + part_elements : count;
  const float* const from = grad + begin;
  const int64_t packs = (end - begin) / kPack;
  double sum = 0.0;
#pragma unroll 4
  for (int64_t p = threadIdx.x; p < packs; p += kBlockThreads) {
    P values;
    if constexpr (kPacked) {
      values = reinterpret_cast<const P*>(from)[p];
    } else {
      for (int e = 0; e < kPack; ++e) values.v[e] = from[p * kPack + e];
    }
    for (int e = 0; e < kPack; ++e) sum += squared(values.v[e]);
  }
  const int64_t tail = packs * kPack + threadIdx.x;
  if (tail < end - begin) sum += squared(from[tail]);
  return block_sum(sum);
}

/// The minimum over a block of kBlockThreads threads, in every thread. Contains barriers.
__device__ inline int32_t block_min(int32_t value) {
  __shared__ int32_t least[kBlockThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) value = min(value, __shfl_xor_sync(0xFFFFFFFFU, value, offset));
  __syncthreads();  // the readers of an earlier minimum are done
  if (threadIdx.x % 32 == 0) least[threadIdx.x / 32] = value;
  __syncthreads();
  for (int w = 0; w < kBlockThreads / 32; ++w) value = min(value, least[w]);
  return value;
}

/// The first of `count` values that is not finite, in every thread of the block; INT32_MAX when all are.
template <class T>
__device__ inline int32_t first_not_finite(const T* values, int32_t count) {
  int32_t first = INT32_MAX;
  for (int64_t i = threadIdx.x; i < count && first == INT32_MAX; i += kBlockThreads) {
    if (!isfinite(values[i])) first = static_cast<int32_t>(i);
  }
  return block_min(first);
}

/// A gradient whose first `squared` elements were squared before, in `tiles` tiles.
struct Gradient {
  const float* values;
  int64_t count;
  int64_t squared;
  const double* squares;
  int64_t tiles;
};

constexpr int64_t kScanElements = int64_t{1} << 20;

/// The first element of [0, end) that is not finite, in every thread of the block; the last one if all are.
__device__ inline int64_t scan(const float* values, int64_t end) {
  for (int64_t begin = 0; begin < end; begin += kScanElements) {
    const auto count = static_cast<int32_t>(end - begin < kScanElements ? end - begin : kScanElements);
    const int32_t found = first_not_finite(values + begin, count);
    if (found < count) return begin + found;
  }
  return end - 1;
}

/// Adds the sums of all tiles and parts and writes the norm. Squares of finite floats do not overflow a double: if the
/// sum of a part is not finite, neither is one of its elements.
__device__ inline void add_parts(const volatile double* sums, int32_t parts, const Gradient& grad,
                                 int64_t part_elements, float* control) {
  double total = 0.0;
  for (int64_t i = threadIdx.x; i < grad.tiles; i += kBlockThreads) total += grad.squares[i];
  int64_t first = -1;
  if (grad.tiles > 0 && !isfinite(block_sum(total))) first = scan(grad.values, grad.squared);
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < parts; i += kBlockThreads) total += sums[i];
  total = block_sum(total);
  const int32_t part = first_not_finite(sums, parts);
  if (first < 0 && part < parts) {
    const int64_t begin = grad.squared + part * part_elements;
    const int64_t rest = grad.count - begin;
    first = begin +
            first_not_finite(grad.values + begin, static_cast<int32_t>(part_elements < rest ? part_elements : rest));
  }
  if (threadIdx.x != 0) return;
  control[StepControl::kNorm] = static_cast<float>(sqrt(total));
  control[StepControl::kFirstNonFinite] =
      __int_as_float(first < 0 ? -1 : static_cast<int32_t>(first % (int64_t{1} << 30)));
  control[StepControl::kFirstNonFiniteHigh] = __int_as_float(first < 0 ? 0 : static_cast<int32_t>(first >> 30));
}

/// A block sums a tile.
template <bool kPacked>
__global__ void __launch_bounds__(kBlockThreads) square(const float* grad, int64_t count, double* squares) {
  wait_for_earlier_work();
  const double sum = sum_squares<kPacked>(grad, count, kSquareTile);
  if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

struct Decision {
  double nominal;
  NonFinite non_finite;
  const float* totals;  // null: the step is not decided here
  float* state;         // null: the loss scale is 1
  bool adapts;          // the loss scale
  float growth_factor, backoff_factor, growth_interval;
};
Decision decision_of(double nominal, NonFinite non_finite, const ConstView& totals, const LossScale& scale) {
  const LossScaleConfig config = scale.dynamic.value_or(LossScaleConfig{});
  return {nominal,
          non_finite,
          totals.as<float>(),
          scale.state.as<float>(),
          scale.dynamic.has_value(),
          static_cast<float>(config.growth_factor),
          static_cast<float>(config.backoff_factor),
          static_cast<float>(config.growth_interval)};
}

__device__ inline void adapt(const Decision& decision, bool taken, bool skipped) {
  float& scale = decision.state[LossScaleState::kScale];
  float& tracker = decision.state[LossScaleState::kGrowthTracker];
  if (skipped) {
    scale *= decision.backoff_factor;
    tracker = 0.0F;
  }
  if (!taken || ++tracker < decision.growth_interval) return;
  const float grown = scale * decision.growth_factor;
  if (isfinite(grown)) scale = grown;
  tracker = 0.0F;
}

__device__ inline void decide(const Decision& decision, float* control) {
  const NonFinite non_finite = decision.non_finite;
  const float *const totals = decision.totals, *const state = decision.state;
  const double valid = count_at(totals, LossTotals::kValid);
  const float scale = state == nullptr ? 1.0F : state[LossScaleState::kScale];
  const bool any_target = valid > 0.0;
  const float factor = any_target ? static_cast<float>(decision.nominal / valid) / scale : 0.0F;
  const bool checked = non_finite != NonFinite::accept;
  const bool stops = non_finite == NonFinite::stop;
  const bool finite_loss = !stops || isfinite(totals[LossTotals::kLossSum]);
  const bool finite_gradient = !checked || __float_as_int(control[StepControl::kFirstNonFinite]) < 0;
  const bool counts = any_target && control[StepControl::kStopped] == 0.0F;
  const bool finite = finite_loss && finite_gradient;
  control[StepControl::kFactor] = factor;
  control[StepControl::kActive] = counts && finite ? 1.0F : 0.0F;
  control[StepControl::kSkipped] = counts && !finite ? 1.0F : 0.0F;
  control[StepControl::kNorm] = checked ? control[StepControl::kNorm] * factor : NAN;
  control[StepControl::kLossScale] = scale;
  if (!checked) control[StepControl::kFirstNonFinite] = __int_as_float(-1);
  control[StepControl::kKeepsFinite] = stops ? 1.0F : 0.0F;
  if (decision.adapts) adapt(decision, counts && finite, counts && !finite);
  if (!stops || !counts) return;
  if (!finite_loss) {
    control[StepControl::kStopped] = StepControl::kByLoss;
  } else if (!finite_gradient && state == nullptr) {
    control[StepControl::kStopped] = StepControl::kByGradient;
  }
}

__global__ void decide_alone(Decision decision, CountedUpdate count, float* control) {
  wait_for_earlier_work();
  decide(decision, control);
  count.begin(control);
}

/// A block sums its part of the elements that were not squared before. The last block to finish adds all parts, in
/// their order, decides the step and begins the update.
template <bool kPacked>
__global__ void __launch_bounds__(kBlockThreads)
    check(Gradient grad, int64_t part_elements, double* sums, Decision decision, CountedUpdate update, float* control) {
  wait_for_earlier_work();
  __shared__ bool is_last[1];
  const double sum = sum_squares<kPacked>(grad.values + grad.squared, grad.count - grad.squared, part_elements);
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = sum;
    __threadfence();
    is_last[0] = atomicAdd(control + StepControl::kArrived, 1.0F) == static_cast<float>(gridDim.x - 1);
    __threadfence();
  }
  __syncthreads();
  if (!is_last[0]) return;
  add_parts(sums, static_cast<int32_t>(gridDim.x), grad, part_elements, control);
  if (threadIdx.x != 0) return;
  control[StepControl::kArrived] = 0.0F;
  if (decision.totals == nullptr) return;
  decide(decision, control);
  update.begin(control);
}

void queue_check(ExecContext& ctx, const char* operation, const ConstView& grad, const Decision& decision,
                 const UpdateCount& update, const View& control, const SquaredElements& squared) {
  auto* const sums = scratch<double>(ctx, operation, kMostParts);
  const int64_t count = grad.numel() - squared.elements;
  const int64_t tiles = std::max<int64_t>(1, ceil_div(count, kTileElements));
  const int64_t part_elements = ceil_div(tiles, kMostParts) * kTileElements;
  const int64_t parts = std::max<int64_t>(1, ceil_div(count, part_elements));
  const Gradient gradient{grad.as<float>(), grad.numel(), squared.elements,
                          static_cast<const double*>(squared.squares.data),
                          squared.elements > 0 ? squared.squares.shape[0] : 0};
  launch_cooperating(native_stream(ctx),
                     is_pack_aligned(gradient.values + gradient.squared) ? &check<true> : &check<false>,
                     dim3(static_cast<unsigned>(parts)), dim3(kBlockThreads), gradient, part_elements, sums, decision,
                     CountedUpdate(update), control.as<float>());
}

__global__ void clip(double max_norm, float* control) {
  wait_for_earlier_work();
  const double ratio = max_norm / (static_cast<double>(control[StepControl::kNorm]) + 1e-6);
  if (ratio < 1.0) control[StepControl::kFactor] *= static_cast<float>(ratio);
}

}  // namespace

void check_gradients(ExecContext& ctx, ConstView grad, View control) {
  queue_check(ctx, "check_gradients", grad, {}, {}, control, {});
}

void sum_squares(ExecContext& ctx, ConstView grad, View squares) {
  launch_cooperating(native_stream(ctx), is_pack_aligned(grad.data) ? &square<true> : &square<false>,
                     dim3(static_cast<unsigned>(squares.shape[0])), dim3(kBlockThreads), grad.as<float>(), grad.numel(),
                     static_cast<double*>(squares.data));
}

void decide_step(ExecContext& ctx, double nominal, NonFinite non_finite, ConstView totals, const LossScale& scale,
                 View control, const UpdateCount& count) {
  launch(native_stream(ctx), decide_alone, dim3(1), dim3(1), decision_of(nominal, non_finite, totals, scale),
         CountedUpdate(count), control.as<float>());
}

void check_and_decide_step(ExecContext& ctx, double nominal, NonFinite non_finite, ConstView grad, ConstView totals,
                           const LossScale& scale, View control, const UpdateCount& count,
                           const SquaredElements& squared) {
  queue_check(ctx, "check_and_decide_step", grad, decision_of(nominal, non_finite, totals, scale), count, control,
              squared);
}

void clip_gradients(ExecContext& ctx, double max_norm, View control) {
  launch(native_stream(ctx), clip, dim3(1), dim3(1), max_norm, control.as<float>());
}

}  // namespace vitrine::cuda
