// SPDX-License-Identifier: Apache-2.0
#include "kernels/cross_entropy.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/cpu/storage.h"
#include "kernels/run.h"
#include "runtime/cpu/parallel.h"
#include "runtime/error.h"

namespace vitrine {

/// Message of the DataError for a target that is not a class, on every backend.
std::string target_out_of_range(int64_t target, int64_t row, int64_t classes, int64_t ignore_index) {
  return fmt::format(
      "softmax_cross_entropy: target {} in row {} is out of range, expected 0 <= target < {} or ignore_index {}",
      target, row, classes, ignore_index);
}

namespace cpu {
namespace {

struct RowTotals {
  double loss = 0.0;
  int64_t valid = 0;
  int64_t correct = 0;
  int64_t top5 = 0;
  int64_t bad_row = -1;
};

/// How the gradient of a target is scaled, and its distribution: 1 - smoothing at the target plus `uniform` at every
/// class.
struct Target {
  float grad_scale;
  double smoothing;
  float on, uniform;
};

// The number of parts does not depend on the number of threads, so that the order of the sum is fixed.
constexpr int64_t kParts = 64;
constexpr int64_t kGrainElements = 2048;

/// Adds a row to `totals` and writes its gradient unless `grad` is null; grad may be logits.
template <class T>
void row(const T* logits, int64_t classes, int64_t target, const Target& scale, T* grad, RowTotals& totals) {
  constexpr bool kKeeps =
      std::is_same_v<T, float>;  // grad holds the exponentials until the sum is known; in 16 bits they are recomputed
  int64_t largest = 0;
  for (int64_t j = 1; j < classes; ++j) {
    if (to_float(logits[j]) > to_float(logits[largest])) largest = j;
  }
  const float maximum = to_float(logits[largest]);
  const float target_logit = to_float(logits[target]);
  int64_t beaten = 0;  // logits that are predicted rather than the target's
  for (int64_t j = 0; j < classes; ++j) {
    const float x = to_float(logits[j]);
    beaten += static_cast<int64_t>(x > target_logit) |
              (static_cast<int64_t>(x == target_logit) & static_cast<int64_t>(j < target));
  }
  double all = 0.0;  // of the logits relative to the largest, for label smoothing
  if (scale.smoothing > 0.0) {
    for (int64_t j = 0; j < classes; ++j) all += static_cast<double>(to_float(logits[j]) - maximum);
  }
  // From here on the logits are not read, because they may have become the exponentials.
  double sum = 0.0;
  for (int64_t j = 0; j < classes; ++j) {
    const float e = std::exp(to_float(logits[j]) - maximum);
    sum += static_cast<double>(e);
    if constexpr (kKeeps) {
      if (grad != nullptr) grad[j] = e;
    }
  }
  double loss = std::log(sum) - static_cast<double>(target_logit - maximum);
  if (scale.smoothing > 0.0)
    loss += scale.smoothing * (static_cast<double>(target_logit - maximum) - all / static_cast<double>(classes));
  totals.loss += loss;
  totals.valid += 1;
  if (!std::isnan(loss)) {
    totals.correct += largest == target ? 1 : 0;
    totals.top5 += beaten < LossTotals::kTopClasses ? 1 : 0;
  }
  if (grad == nullptr) return;
  const auto inverse = static_cast<float>(1.0 / sum);
  for (int64_t j = 0; j < classes; ++j) {
    const float e = kKeeps ? to_float(grad[j]) : std::exp(to_float(logits[j]) - maximum);
    const float probability = e * inverse;
    const float shifted = probability - scale.uniform;
    grad[j] = from_float<T>(scale.grad_scale * (j == target ? shifted - scale.on : shifted));
  }
}

/// Rows [begin, end). A target out of range is recorded, not thrown.
template <class T>
RowTotals rows_between(int64_t begin, int64_t end, const T* logits, int64_t classes, const int32_t* targets,
                       int32_t ignore_index, const Target& scale, T* grad) {
  RowTotals sums;
  for (int64_t i = begin; i < end; ++i) {
    T* row_grad = grad == nullptr ? nullptr : grad + i * classes;
    if (targets[i] == ignore_index) {
      if (row_grad != nullptr) std::fill_n(row_grad, classes, T{});
    } else if (targets[i] < 0 || targets[i] >= classes) {
      if (sums.bad_row < 0) sums.bad_row = i;
    } else {
      row(logits + i * classes, classes, targets[i], scale, row_grad, sums);
    }
  }
  return sums;
}

void softmax_cross_entropy(ExecContext&, const CrossEntropyConfig& config, ConstView logits, ConstView targets,
                           ConstView loss_scale, View grad_logits, View totals) {
  const int64_t rows = logits.shape[0];
  const int64_t classes = logits.shape[1];
  if (rows == 0) return;
  const int64_t rows_per_part = (rows + kParts - 1) / kParts;
  const int64_t parts = (rows + rows_per_part - 1) / rows_per_part;
  const int32_t* target = targets.as<int32_t>();
  const Target scale{loss_scale ? config.grad_scale * *loss_scale.as<float>() : config.grad_scale,
                     static_cast<double>(config.label_smoothing), 1.0F - config.label_smoothing,
                     config.label_smoothing / static_cast<float>(classes)};
  std::array<RowTotals, kParts> partial;

  const int64_t grain = std::max<int64_t>(1, kGrainElements / (rows_per_part * classes));
  with_storage(logits.dtype, [&]<class T>(T) {
    parallel_for(parts, grain, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        partial[static_cast<size_t>(part)] =
            rows_between(part * rows_per_part, std::min(rows, (part + 1) * rows_per_part), logits.as<T>(), classes,
                         target, config.ignore_index, scale, grad_logits.as<T>());
      }
    });
  });

  RowTotals all;
  for (int64_t part = 0; part < parts; ++part) {
    const RowTotals& sums = partial[static_cast<size_t>(part)];
    if (sums.bad_row >= 0) {
      totals.as<float>()[LossTotals::kValid] = std::numeric_limits<float>::quiet_NaN();
      throw DataError(target_out_of_range(target[sums.bad_row], sums.bad_row, classes, config.ignore_index));
    }
    all.loss += sums.loss;
    all.valid += sums.valid;
    all.correct += sums.correct;
    all.top5 += sums.top5;
  }
  float* t = totals.as<float>();
  t[LossTotals::kLossSum] = static_cast<float>(static_cast<double>(t[LossTotals::kLossSum]) + all.loss);
  LossTotals::add_to_count(t, LossTotals::kValid, all.valid);
  LossTotals::add_to_count(t, LossTotals::kCorrect, all.correct);
  LossTotals::add_to_count(t, LossTotals::kTop5, all.top5);
}

}  // namespace
}  // namespace cpu

namespace cuda {  // cross_entropy.cu
void softmax_cross_entropy(ExecContext& ctx, const CrossEntropyConfig& config, ConstView logits, ConstView targets,
                           ConstView loss_scale, View grad_logits, View totals);
}  // namespace cuda

void softmax_cross_entropy(ExecContext& ctx, const CrossEntropyConfig& config, ConstView logits, ConstView targets,
                           ConstView loss_scale, View grad_logits, View totals) {
  constexpr const char* kName = "softmax_cross_entropy";
  check::rank(kName, "logits", logits, 2, "(N, C)");
  if (logits.shape[1] < 1)
    throw ShapeError(fmt::format("{}: logits has shape {}, expected (N, C) with C >= 1", kName, logits.shape.str()));
  if (!(config.label_smoothing >= 0.0F && config.label_smoothing <= 1.0F)) {
    throw ConfigError(
        fmt::format("{}: label_smoothing is {}, expected a number from 0 to 1", kName, config.label_smoothing));
  }
  check::tensor(kName, "logits", logits, ctx);
  check::tensor(kName, "targets", targets, {logits.shape[0]}, DType::i32, ctx);
  check::tensor(kName, "totals", totals, {LossTotals::kCount}, DType::f32, ctx);
  if (loss_scale) check::tensor(kName, "loss_scale", loss_scale, {1}, DType::f32, ctx);
  check::no_overlap(kName, {"totals", totals}, {{"logits", logits}, {"targets", targets}, {"loss_scale", loss_scale}});
  if (grad_logits) {
    check::tensor(kName, "grad_logits", grad_logits, logits.shape, logits.dtype, ctx);
    check::same_or_apart(kName, {"grad_logits", grad_logits}, {{"logits", logits}});
    check::no_overlap(kName, {"grad_logits", grad_logits},
                      {{"loss_scale", loss_scale}, {"targets", targets}, {"totals", totals}});
  }
  run(ctx, {kName, {logits, targets, loss_scale, totals}, {grad_logits, totals}}, cpu::softmax_cross_entropy,
      VITRINE_IF_CUDA(cuda::softmax_cross_entropy), config, logits, targets, loss_scale, grad_logits, totals);
}

}  // namespace vitrine
