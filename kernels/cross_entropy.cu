// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "kernels/cross_entropy.h"
#include "kernels/cuda/index.cuh"
#include "kernels/cuda/step_scalars.cuh"
#include "runtime/cuda/dtype.cuh"
#include "runtime/error.h"

// A warp or a block keeps short rows in registers, so that memory is read once; a block reads longer rows twice. Each
// block adds up its rows in order, and the last block to finish adds up these parts: the order of the sum depends on
// the shape alone.
namespace vitrine {

std::string target_out_of_range(int64_t target, int64_t row, int64_t classes,
                                int64_t ignore_index);  // cross_entropy.cpp

namespace cuda {
namespace {

struct Part {
  double loss;
  int64_t bad_row;  // the first whose target is out of range, or -1
  int32_t valid, correct, top5;
};

constexpr int64_t kMaxParts = 1024;
static_assert(kMaxParts * static_cast<int64_t>(sizeof(Part)) <= kCrossEntropyWorkspaceBytes);
constexpr int kWideThreads = 1024;  // of a block that reads a long row
constexpr int64_t kWarpClasses = 1024;
constexpr int64_t kBlockClasses = 8192;

template <class T>
struct Rows {
  const T* logits;
  const int32_t* targets;
  T* grad;  // or nullptr
  int64_t rows;
  int32_t classes;
  int32_t ignore_index;
  float grad_scale;
  const float* loss_scale;  // or nullptr
  double smoothing;
  float on, uniform;  // the target distribution: `on` at the target plus `uniform` at every class
};

enum class RowKind : uint8_t { counted, ignored, bad };

template <class T>
__device__ inline RowKind kind_of(const Rows<T>& r, int32_t target) {
  if (target == r.ignore_index) return RowKind::ignored;
  return target >= 0 && target < r.classes ? RowKind::counted : RowKind::bad;
}

/// The maximum over the kThreads threads that share a row (a warp or the block), in all of them; NaN is ignored.
template <int kThreads>
__device__ inline float row_max(float value) {
  for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFU, value, offset));
  if constexpr (kThreads > 32) {
    __shared__ float maxima[32];
    __syncthreads();  // the readers of an earlier maximum are done
    if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = value;
    __syncthreads();
    for (unsigned w = 0; w < kThreads / 32; ++w) value = fmaxf(value, maxima[w]);
  }
  return value;
}

template <int kThreads, class T>
__device__ inline T row_sum(T value) {
  if constexpr (kThreads > 32) {
    return block_sum(value);
  } else {
    return warp_sum(value);
  }
}

/// 1 when logit j is predicted rather than the target: it is larger, or equal and before it.
__device__ inline int beats(float x, int32_t j, float target_logit, int32_t target) {
  return static_cast<int>(x > target_logit) | (static_cast<int>(x == target_logit) & static_cast<int>(j < target));
}

/// The result of the threads that share a row.
struct RowResult {
  float maximum;
  double sum;  // of exp(logit - maximum)
  int beaten;  // number of logits that beat the target's
  double all;  // with label smoothing: the sum of logit - maximum
};

/// Adds a row to `part`; every thread of the row does the same.
template <class T>
__device__ inline void add_row(Part& part, const Rows<T>& r, RowKind kind, int64_t row, const RowResult& result,
                               float target_logit) {
  if (kind == RowKind::bad && part.bad_row < 0) part.bad_row = row;
  if (kind != RowKind::counted) return;
  double loss = log(result.sum) - static_cast<double>(target_logit - result.maximum);
  if (r.smoothing > 0.0)
    loss += r.smoothing *
            (static_cast<double>(target_logit - result.maximum) - result.all / static_cast<double>(r.classes));
  part.loss += loss;
  part.valid += 1;
  if (loss != loss) return;
  part.correct += result.beaten == 0 ? 1 : 0;
  part.top5 += result.beaten < LossTotals::kTopClasses ? 1 : 0;
}

/// Where the parts are added up.
struct Sums {
  Part* parts;       // one per block
  int32_t* counter;  // of blocks that have written theirs
  float* totals;
  Fault* fault;
};

/// Adds up the parts of the groups of kThreads threads, in order, and writes the part of the block.
template <int kThreads>
__device__ inline void write_part(const Part& part, Part* parts) {
  constexpr int kGroups = kThreads > 32 ? 1 : kBlockThreads / 32;
  __shared__ Part shared[kGroups];
  if (threadIdx.x % kThreads == 0) shared[threadIdx.x / kThreads] = part;
  __syncthreads();
  if (threadIdx.x != 0) return;
  Part all = shared[0];
  for (int g = 1; g < kGroups; ++g) {
    all.loss += shared[g].loss;
    all.valid += shared[g].valid;
    all.correct += shared[g].correct;
    all.top5 += shared[g].top5;
    if (shared[g].bad_row >= 0 && (all.bad_row < 0 || shared[g].bad_row < all.bad_row)) all.bad_row = shared[g].bad_row;
  }
  parts[blockIdx.x] = all;
}

/// Adds the parts to the totals, by the threads of one block. If a target is out of range, raises the fault instead and
/// sets the count of valid targets to NaN, so that no optimizer steps.
template <class T>
__device__ inline void add_parts(const Rows<T>& r, const Sums& sums) {
  const volatile Part* const parts = sums.parts;
  const auto count = static_cast<int>(gridDim.x);
  double loss = 0.0;
  int valid = 0;
  int correct = 0;
  int top5 = 0;
  int bad = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    loss += parts[i].loss;
    valid += parts[i].valid;
    correct += parts[i].correct;
    top5 += parts[i].top5;
    bad += parts[i].bad_row >= 0 ? 1 : 0;
  }
  loss = block_sum(loss);
  valid = block_sum(valid);
  correct = block_sum(correct);
  top5 = block_sum(top5);
  bad = block_sum(bad);
  if (threadIdx.x != 0) return;
  float* const totals = sums.totals;
  if (bad == 0) {
    totals[LossTotals::kLossSum] = static_cast<float>(static_cast<double>(totals[LossTotals::kLossSum]) + loss);
    add_to_count(totals, LossTotals::kValid, valid);
    add_to_count(totals, LossTotals::kCorrect, correct);
    add_to_count(totals, LossTotals::kTop5, top5);
    return;
  }
  totals[LossTotals::kValid] = NAN;
  int64_t row = INT64_MAX;
  for (int i = 0; i < count; ++i) row = parts[i].bad_row >= 0 && parts[i].bad_row < row ? parts[i].bad_row : row;
  Fault* const fault = sums.fault;
  if (*static_cast<volatile int32_t*>(&fault->raised) != 0) return;
  fault->values[0] = r.targets[row];
  fault->values[1] = row;
  fault->values[2] = r.classes;
  fault->values[3] = r.ignore_index;
  __threadfence_system();
  atomicExch_system(&fault->raised, 1);
}

/// Writes the part of the block; the last block to do so adds up all parts.
template <int kThreads, class T>
__device__ inline void finish(const Part& part, const Rows<T>& r, const Sums& sums) {
  write_part<kThreads>(part, sums.parts);
  if (arrives_last(sums.counter, gridDim.x)) add_parts(r, sums);
}

template <class T>
__device__ inline float scale_of(const Rows<T>& r) {
  return r.loss_scale == nullptr ? r.grad_scale : r.grad_scale * *r.loss_scale;
}

template <class T>
__device__ inline float gradient(const Rows<T>& r, float scale, RowKind kind, float e, float inverse, bool is_target) {
  const float shifted = __fsub_rn(__fmul_rn(e, inverse), r.uniform);
  return kind == RowKind::counted ? scale * (is_target ? shifted - r.on : shifted) : 0.0F;
}

/// Rows of at most kThreads * V * kPacks classes, each kept by kThreads threads (a warp or the block). V: elements per
/// access; if above 1, classes is a multiple of it and all rows are aligned.
template <class T, int kThreads, int V, int kPacks>
__global__ void __launch_bounds__(kBlockThreads) kept_rows(Rows<T> r, Sums sums) {
  wait_for_earlier_work();
  constexpr int kRows = kBlockThreads / kThreads;  // of a block at once
  using P = Pack<T, V>;
  const int lane = static_cast<int>(threadIdx.x) % kThreads;
  const int group = static_cast<int>(threadIdx.x) / kThreads;
  const float scale = scale_of(r);
  Part part{0.0, -1, 0, 0, 0};
  for (int64_t first = int64_t{blockIdx.x} * kRows; first < r.rows; first += int64_t{gridDim.x} * kRows) {
    const int64_t row = first + group;
    const bool active = row < r.rows;  // inactive threads continue: the sums need all threads
    const int32_t target = active ? r.targets[row] : r.ignore_index;
    const RowKind kind = kind_of(r, target);
    const T* logits = r.logits + row * r.classes;
    const float target_logit = kind == RowKind::counted ? to_float(logits[target]) : 0.0F;
    float x[kPacks][V];
    for (int k = 0; k < kPacks; ++k) {
      const int j = (k * kThreads + lane) * V;
      P in;
      if (kind == RowKind::counted && j < r.classes) {
        in = *reinterpret_cast<const P*>(logits + j);
        for (int e = 0; e < V; ++e) x[k][e] = to_float(in.v[e]);
      } else {
        for (int e = 0; e < V; ++e) x[k][e] = -INFINITY;
      }
    }
    RowResult result{-INFINITY, 0.0, 0, 0.0};
    for (int k = 0; k < kPacks; ++k) {
      for (int e = 0; e < V; ++e) {
        const int j = (k * kThreads + lane) * V + e;
        result.maximum = fmaxf(result.maximum, x[k][e]);
        result.beaten += beats(x[k][e], j, target_logit, target);
      }
    }
    result.maximum = row_max<kThreads>(result.maximum);
    if (r.smoothing > 0.0) {
      for (int k = 0; k < kPacks; ++k) {
        const int j = (k * kThreads + lane) * V;
        for (int e = 0; e < V; ++e) result.all += j < r.classes ? static_cast<double>(x[k][e] - result.maximum) : 0.0;
      }
      result.all = row_sum<kThreads>(result.all);
    }
    for (int k = 0; k < kPacks; ++k) {
      for (int e = 0; e < V; ++e) {
        x[k][e] = expf(x[k][e] - result.maximum);  // 0 after the end of the row, unless the row is NaN anyway
        result.sum += static_cast<double>(x[k][e]);
      }
    }
    result.sum = row_sum<kThreads>(result.sum);
    result.beaten = row_sum<kThreads>(result.beaten);
    add_row(part, r, kind, row, result, target_logit);
    __syncwarp();  // grad may be logits: all lanes have read the target's
    if (r.grad == nullptr || !active) continue;
    const auto inverse = static_cast<float>(1.0 / result.sum);
    for (int k = 0; k < kPacks; ++k) {
      const int j = (k * kThreads + lane) * V;
      if (j >= r.classes) break;
      P out;
      for (int e = 0; e < V; ++e) out.v[e] = from_float<T>(gradient(r, scale, kind, x[k][e], inverse, j + e == target));
      *reinterpret_cast<P*>(r.grad + row * r.classes + j) = out;
    }
  }
  finish<kThreads>(part, r, sums);
}

/// Running sum of exp(x - maximum) of a thread, relative to its maximum so far.
struct RunningSum {
  float maximum = -INFINITY;
  double sum = 0.0;

  template <int N>
  __device__ void add(const float (&x)[N]) {
    float largest = x[0];
    for (int e = 1; e < N; ++e) largest = fmaxf(largest, x[e]);
    if (largest > maximum) {
      if (maximum > -INFINITY) sum *= exp(static_cast<double>(maximum) - static_cast<double>(largest));
      maximum = largest;
    }
    const float shift = maximum > -INFINITY ? maximum : 0.0F;  // so far only -infinity, which adds 0, or NaN
    // A few in f32, as a tree: their error is that of expf, and conversions to double are slow.
    float few[N];
    for (int e = 0; e < N; ++e) few[e] = expf(x[e] - shift);
    for (int e = N - 1; e > 0; --e) few[(e - 1) / 2] += few[e];
    sum += static_cast<double>(few[0]);
  }
};

/// Elements [0, head), then packs of V, then a tail.
struct RowPieces {
  int32_t head, packs, tail;
};

template <class T, int V>
__device__ inline RowPieces pieces_of(const T* row, int32_t classes) {
  const auto misaligned = static_cast<int32_t>(reinterpret_cast<uintptr_t>(row) % (V * sizeof(T)) / sizeof(T));
  const int32_t head = min(classes, misaligned == 0 ? 0 : V - misaligned);
  const int32_t packs = (classes - head) / V;
  return {head, packs, head + packs * V};
}

/// Rows of any length, one block of kWideThreads per row. A row is read twice, the second time from its end, which is
/// still in the cache. With V > 1 the gradient has the alignment of the logits.
template <class T, int V>
__global__ void __launch_bounds__(kWideThreads, 1) long_rows(Rows<T> r, Sums sums) {
  wait_for_earlier_work();
  constexpr int kFlight = V > 4 ? 2 : 4;  // with 1024 threads, each has 64 registers
  using P = Pack<T, V>;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const float scale = scale_of(r);
  Part part{0.0, -1, 0, 0, 0};
  for (int64_t row = blockIdx.x; row < r.rows; row += gridDim.x) {
    const int32_t target = r.targets[row];
    const RowKind kind = kind_of(r, target);
    const T* logits = r.logits + row * r.classes;
    const RowPieces pieces = pieces_of<T, V>(logits, r.classes);
    const P* packs = reinterpret_cast<const P*>(logits + pieces.head);
    const float target_logit = kind == RowKind::counted ? to_float(logits[target]) : 0.0F;
    RunningSum running;
    RowResult result{};
    double all = 0.0;
    if (kind == RowKind::counted) {  // the same in the whole block
      const auto single = [&](int32_t j) {
        const float x[1] = {to_float(logits[j])};
        running.add(x);
        all += static_cast<double>(x[0]);
        result.beaten += beats(x[0], j, target_logit, target);
      };
      if (thread < pieces.head) single(thread);
      if (pieces.tail + thread < r.classes) single(pieces.tail + thread);
      for (int32_t i = thread; i < pieces.packs; i += kFlight * kWideThreads) {
        float x[kFlight * V];
        for (int k = 0; k < kFlight; ++k) {
          const int32_t at = i + k * kWideThreads;
          P in;
          if (at < pieces.packs) {
            in = packs[at];
            for (int e = 0; e < V; ++e) x[k * V + e] = to_float(in.v[e]);
          } else {
            for (int e = 0; e < V; ++e) x[k * V + e] = -INFINITY;
          }
        }
        running.add(x);
        for (int k = 0; k < kFlight; ++k) {
          const bool inside = i + k * kWideThreads < pieces.packs;
          for (int e = 0; e < V; ++e) {
            if (r.smoothing > 0.0) all += inside ? static_cast<double>(x[k * V + e]) : 0.0;
            result.beaten += beats(x[k * V + e], pieces.head + (i + k * kWideThreads) * V + e, target_logit, target);
          }
        }
      }
    }
    result.maximum = row_max<kWideThreads>(running.maximum);
    result.sum =
        block_sum(running.sum * exp(static_cast<double>(running.maximum) - static_cast<double>(result.maximum)));
    result.beaten = block_sum(result.beaten);
    if (r.smoothing > 0.0)
      result.all = block_sum(all) - static_cast<double>(r.classes) * static_cast<double>(result.maximum);
    add_row(part, r, kind, row, result, target_logit);
    if (r.grad == nullptr) continue;
    T* grad = r.grad + row * r.classes;
    const auto inverse = static_cast<float>(1.0 / result.sum);
    const auto of = [&](T x, int32_t j) {
      return from_float<T>(gradient(r, scale, kind, expf(to_float(x) - result.maximum), inverse, j == target));
    };
    const int32_t rounds = (pieces.packs + kWideThreads - 1) / kWideThreads;
    for (int32_t round = rounds - 1; round >= 0; --round) {
      const int32_t at = round * kWideThreads + thread;
      if (at >= pieces.packs) continue;
      const P in = packs[at];
      P out;
      for (int e = 0; e < V; ++e) out.v[e] = of(in.v[e], pieces.head + at * V + e);
      reinterpret_cast<P*>(grad + pieces.head)[at] = out;
    }
    if (thread < pieces.head) grad[thread] = of(logits[thread], thread);
    if (pieces.tail + thread < r.classes)
      grad[pieces.tail + thread] = of(logits[pieces.tail + thread], pieces.tail + thread);
  }
  finish<kWideThreads>(part, r, sums);
}

std::string fault_message(const int64_t* values) {
  return target_out_of_range(values[0], values[1], values[2], values[3]);
}

template <class T>
void queue_rows(ExecContext& ctx, const Rows<T>& r, const Sums& sums) {
  constexpr int kElements = kPackElements<T>;
  const auto alignment = [](const T* p) { return reinterpret_cast<uintptr_t>(p) % 16; };
  const bool equal = r.grad == nullptr || alignment(r.logits) == alignment(r.grad);
  const bool packed = equal && alignment(r.logits) == 0 && r.classes % kElements == 0;
  const auto parts_for = [&](int64_t rows_at_once) {
    return static_cast<unsigned>(std::min(kMaxParts, ceil_div(r.rows, rows_at_once)));
  };
  const auto queue = [&](auto* kernel, int64_t rows_at_once, int threads) {
    launch_cooperating(native_stream(ctx), kernel, dim3(parts_for(rows_at_once)), dim3(static_cast<unsigned>(threads)),
                       r, sums);
  };
  constexpr int64_t kWarps = kBlockThreads / 32;
  if (r.classes <= kWarpClasses) {
    if (packed && r.classes <= 32 * kElements) return queue(&kept_rows<T, 32, kElements, 1>, kWarps, kBlockThreads);
    if (packed) return queue(&kept_rows<T, 32, kElements, 32 / kElements>, kWarps, kBlockThreads);
    if (r.classes <= 32) return queue(&kept_rows<T, 32, 1, 1>, kWarps, kBlockThreads);
    if (r.classes <= 128) return queue(&kept_rows<T, 32, 1, 4>, kWarps, kBlockThreads);
    return queue(&kept_rows<T, 32, 1, 32>, kWarps, kBlockThreads);
  }
  if (r.classes <= kBlockClasses) {
    if (packed) return queue(&kept_rows<T, kBlockThreads, kElements, 32 / kElements>, 1, kBlockThreads);
    return queue(&kept_rows<T, kBlockThreads, 1, 32>, 1, kBlockThreads);
  }
  return equal ? queue(&long_rows<T, kElements>, 1, kWideThreads) : queue(&long_rows<T, 1>, 1, kWideThreads);
}

}  // namespace

void softmax_cross_entropy(ExecContext& ctx, const CrossEntropyConfig& config, ConstView logits, ConstView targets,
                           ConstView loss_scale, View grad_logits, View totals) {
  constexpr const char* kName = "softmax_cross_entropy";
  const int64_t rows = logits.shape[0];
  const int64_t classes = logits.shape[1];
  if (rows == 0) return;
  if (classes + 2 * kWideThreads * 16 > INT32_MAX || rows > INT32_MAX) {
    throw UnsupportedError(std::string(kName) + ": logits has shape " + logits.shape.str() +
                           ", expected fewer than 2^31 rows and classes on " + ctx.device().str());
  }
  const Sums sums{scratch<Part>(ctx, kName, kMaxParts), ctx.counters().as<int32_t>(), totals.as<float>(),
                  fault_slot(ctx, fault_message)};
  with_storage(logits.dtype, [&]<class T>() {
    const Rows<T> r{logits.as<T>(),
                    targets.as<int32_t>(),
                    grad_logits.as<T>(),
                    rows,
                    static_cast<int32_t>(classes),
                    config.ignore_index,
                    config.grad_scale,
                    loss_scale.as<float>(),
                    static_cast<double>(config.label_smoothing),
                    1.0F - config.label_smoothing,
                    config.label_smoothing / static_cast<float>(classes)};
    queue_rows(ctx, r, sums);
  });
}

}  // namespace cuda
}  // namespace vitrine
