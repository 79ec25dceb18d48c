// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

#include "kernels/cpu/kernels.h"
#include "runtime/cpu/parallel.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

/// Where one output coordinate samples: source[first] * first_weight + source[second] * second_weight.
struct Sample {
  int64_t first, second;
  float first_weight, second_weight;
};

/// PyTorch's align_corners=False sampling, in its order of f32 operations.
Sample sample_at(int64_t target, int64_t source_size, int64_t target_size) {
  if (source_size == target_size) return {target, target, 1.0F, 0.0F};
  const float scale = static_cast<float>(source_size) / static_cast<float>(target_size);
  const float position = std::max(0.0F, scale * (static_cast<float>(target) + 0.5F) - 0.5F);
  const int64_t first = std::min(static_cast<int64_t>(position), source_size - 1);
  const int64_t second = std::min(first + 1, source_size - 1);
  const float second_weight = std::min(1.0F, std::max(0.0F, position - static_cast<float>(first)));
  return {first, second, 1.0F - second_weight, second_weight};
}

/// Tables for one pair of sizes, and scratch rows for each part of the work; kept from call to call.
struct ResizePlan {
  int64_t source_height = 0, source_width = 0, height = 0, width = 0, channels = 0;
  std::vector<Sample> rows;
  // One entry for each element of an output row, channels interleaved.
  std::vector<int32_t> first, second;
  std::vector<float> first_weight, second_weight, mean, deviation;
  std::vector<float> scratch;

  int64_t source_row() const { return source_width * channels; }
  int64_t target_row() const { return width * channels; }

  void prepare(const Normalization& normalization, const Shape& source, const Shape& target, int64_t parts) {
    const bool same = source_height == source[0] && source_width == source[1] && height == target[0] && width == target[1] && channels == target[2];
    if (!same) build_tables(source, target);
    for (int64_t i = 0; i < target_row(); ++i) {
      mean[static_cast<size_t>(i)] = normalization.mean[static_cast<size_t>(i % channels)];
      deviation[static_cast<size_t>(i)] = normalization.std[static_cast<size_t>(i % channels)];
    }
    scratch.resize(static_cast<size_t>(parts * 3 * source_row()));
  }

 private:
  void build_tables(const Shape& source, const Shape& target) {
    source_height = source[0];
    source_width = source[1];
    height = target[0];
    width = target[1];
    channels = target[2];
    rows.clear();
    for (int64_t y = 0; y < height; ++y) rows.push_back(sample_at(y, source_height, height));
    const auto length = static_cast<size_t>(target_row());
    for (std::vector<int32_t>* table : {&first, &second}) table->resize(length);
    for (std::vector<float>* table : {&first_weight, &second_weight, &mean, &deviation}) table->resize(length);
    for (int64_t i = 0; i < target_row(); ++i) {
      const Sample s = sample_at(i / channels, source_width, width);
      const auto at = static_cast<size_t>(i);
      first[at] = static_cast<int32_t>(s.first * channels + i % channels);
      second[at] = static_cast<int32_t>(s.second * channels + i % channels);
      first_weight[at] = s.first_weight;
      second_weight[at] = s.second_weight;
    }
  }
};

void to_unit_range(const uint8_t* pixels, int64_t count, float* out) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(pixels[i]) / 255.0F;
}

/// One output row from the blended source row.
void finish_row(const ResizePlan& plan, const float* row, float* out) {
  const int64_t count = plan.target_row();
  const float* mean = plan.mean.data();
  const float* deviation = plan.deviation.data();
  if (plan.source_width == plan.width) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) out[i] = (row[i] - mean[i]) / deviation[i];
    return;
  }
  const int32_t* first = plan.first.data();
  const int32_t* second = plan.second.data();
  const float* first_weight = plan.first_weight.data();
  const float* second_weight = plan.second_weight.data();
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float value = row[first[i]] * first_weight[i] + row[second[i]] * second_weight[i];
    out[i] = (value - mean[i]) / deviation[i];
  }
}

/// Output rows [begin, end) of a batch, counted over all images. `scratch` holds three source rows.
void resize_rows(const ResizePlan& plan, const uint8_t* images, int64_t begin, int64_t end, float* scratch, float* y) {
  const int64_t row_length = plan.source_row();
  float* blended = scratch + 2 * row_length;
  std::array<int64_t, 2> held{-1, -1};  // which source row, counted over all images, lies in each half of scratch
  const auto source_row = [&](int64_t row) {
    const int64_t slot = row % 2;
    float* floats = scratch + slot * row_length;
    int64_t& tag = held[static_cast<size_t>(slot)];
    if (tag != row) to_unit_range(images + row * row_length, row_length, floats);
    tag = row;
    return floats;
  };
  for (int64_t i = begin; i < end; ++i) {
    const Sample& s = plan.rows[static_cast<size_t>(i % plan.height)];
    const int64_t image = i / plan.height * plan.source_height;
    const float* a = source_row(image + s.first);
    if (s.second_weight != 0.0F) {
      const float* b = source_row(image + s.second);
#pragma omp simd
      for (int64_t j = 0; j < row_length; ++j) blended[j] = a[j] * s.first_weight + b[j] * s.second_weight;
      a = blended;
    }
    finish_row(plan, a, y + i * plan.target_row());
  }
}

}  // namespace

void resize_normalize_on_host(const Normalization& normalization, const Shape& source, std::span<const uint8_t> pixels, const Shape& target,
                              std::span<float> y) {
  constexpr const char* kName = "resize_normalize_on_host";
  if (source.rank() != 3 || source[0] < 1 || source[1] < 1 || source[2] < 1 || source[2] > 4) {
    throw ShapeError(fmt::format("{}: source is {}, expected (h, w, C) with h, w >= 1 and 1 <= C <= 4", kName, source.str()));
  }
  if (target.rank() != 3 || target[2] != source[2]) {
    throw ShapeError(fmt::format("{}: target is {} but source {} needs (H, W, {})", kName, target.str(), source.str(), source[2]));
  }
  if (static_cast<int64_t>(pixels.size()) != source.numel() || static_cast<int64_t>(y.size()) != target.numel()) {
    throw ShapeError(fmt::format("{}: {} pixels and {} outputs, expected {} for {} and {} for {}", kName, pixels.size(), y.size(), source.numel(),
                                 source.str(), target.numel(), target.str()));
  }
  ResizePlan plan;
  plan.prepare(normalization, source, target, 1);
  resize_rows(plan, pixels.data(), 0, target[0], plan.scratch.data(), y.data());
}

namespace cpu {

void resize_normalize(ExecContext& ctx, const Normalization& normalization, ConstView images, View y) {
  const Shape source{images.shape[1], images.shape[2], images.shape[3]};
  const Shape target{y.shape[1], y.shape[2], y.shape[3]};
  if (y.numel() == 0) return;
  constexpr int64_t kGrainElements = 8192;
  const int64_t rows = y.shape[0] * target[0];
  const int64_t grain = std::max<int64_t>(1, kGrainElements / (target[1] * target[2]));
  const int64_t parts = std::min<int64_t>(team_size(), (rows + grain - 1) / grain);
  auto& plan = ctx.plans().get<ResizePlan>();
  plan.prepare(normalization, source, target, parts);
  parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      float* scratch = plan.scratch.data() + part * 3 * plan.source_row();
      resize_rows(plan, images.as<uint8_t>(), rows * part / parts, rows * (part + 1) / parts, scratch, y.as<float>());
    }
  });
}

}  // namespace cpu
}  // namespace vitrine
