// SPDX-License-Identifier: Apache-2.0
// How much memory the gaps between blocks take, for each model, scheme and precision, and with micro-batches and
// recomputation: the largest sum of blocks (no placement needs less), the peak of the pool's allocator by itself, the
// peak of the plan, and the time of planning. Of several devices those of the one with the largest peak. Needs no GPU.
//
//   bench_placement [MODEL ...]
//
// Exit status 1 if a peak is more than 1 % above the largest sum.
#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "nn/model.h"
#include "nn/parallel/engine.h"
#include "nn/parallel/plan/memory_plan.h"
#include "nn/segments.h"

namespace {

using namespace vitrine;

constexpr int kDevices = 4;
constexpr double kMostLost = 0.01;

struct Case {
  std::string mode;
  DType dtype;
  int accumulate;
  bool recompute;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string& mode : scheme_names()) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (const int accumulate : {1, 4}) {
        for (const bool recompute : {false, true}) all.push_back({mode, dtype, accumulate, recompute});
      }
    }
  }
  return all;
}

double lost(int64_t peak, int64_t bound) { return static_cast<double>(peak) / static_cast<double>(bound) - 1; }

/// Prints a row; returns whether the peak is low enough.
bool measure(const Model& model, int64_t batch, const Case& c) {
  DeviceGroupOptions options;
  for (int i = 0; i < kDevices; ++i) options.devices.push_back({Backend::meta, i});
  const DeviceGroup group(options);
  EngineConfig config;
  config.scheme = scheme_preset(c.mode);
  if (config.scheme.split.kind == Split::Kind::gpu0) config.scheme.split.gpu0 = batch / (2 * kDevices);
  config.batch_size = batch;
  config.accumulate = c.accumulate;
  if (c.recompute) config.recompute_segments = square_root_segments(*model.net, model.input_shape(1));
  config.precision.compute = c.dtype;
  if (c.dtype == DType::f16) config.precision.loss_scaling.kind = LossScaling::Kind::dynamic;
  config.optimizer = make_optimizer_config("adamw", {}, {}, false, {});
  if (model.targets_per_sample > 1) config.image_dtype = model.sample_dtype();  // sequences, not pictures
  if (model.takes_images()) {
    config.image_height = model.height;
    config.image_width = model.width;
  }
  const auto start = std::chrono::steady_clock::now();
  const std::vector<DevicePlan> plans = plan_memory(model, group, config, {{batch, batch / 2 + 1}, {batch}});
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
  const DevicePlan& plan =
      *std::ranges::max_element(plans, [](const auto& a, const auto& b) { return a.peak_bytes < b.peak_bytes; });
  const int64_t bound = allocated_bytes(plan.peak_by_category);
  const bool low = std::ranges::all_of(
      plans, [](const DevicePlan& p) { return lost(p.peak_bytes, allocated_bytes(p.peak_by_category)) <= kMostLost; });
  fmt::print("{:<15} {:>5} {:<10} {:<5} {:>10} {:>9} {:>14} {:>14} {:>6.1f}% {:>14} {:>7.3f}% {:>8.1f}{}\n", model.name,
             batch, c.mode, dtype_name(c.dtype), c.accumulate, config.recompute_segments, bound,
             plan.unplaced_peak_bytes, 100 * lost(plan.unplaced_peak_bytes, bound), plan.peak_bytes,
             100 * lost(plan.peak_bytes, bound), elapsed.count(), low ? "" : "  <- more than 1 %");
  return low;
}

int run(std::vector<std::string> names) {
  if (names.empty()) names = model_names();
  fmt::print("{:<15} {:>5} {:<10} {:<5} {:>10} {:>9} {:>14} {:>14} {:>7} {:>14} {:>8} {:>8}\n", "model", "batch",
             "mode", "dtype", "accumulate", "segments", "largest sum", "allocator", "above", "plan", "above", "ms");
  int high = 0;
  for (const std::string& name : names) {
    const bool sized = model_image_size(name) > 0 || model_sequence_length(name) > 0;
    const Model model = make_model(name, {.image_size = sized ? 0 : 32});
    for (const int64_t batch : {64, 512}) {
      for (const Case& c : cases()) high += measure(model, batch, c) ? 0 : 1;
    }
  }
  if (high > 0) fmt::print("{} plans are more than 1 % above the largest sum of blocks\n", high);
  return high > 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_placement: {}\n", error.what());
    return 2;
  }
}
