// SPDX-License-Identifier: Apache-2.0
// Winograd's convolution by oneDNN, which versions before 3.2 have for processors with AVX-512.
#include <algorithm>

#include <fmt/format.h>

#include "kernels/cpu/onednn.h"
#include "kernels/cpu/onednn_plans.h"
#include "runtime/units.h"

namespace vitrine::cpu::onednn {
namespace {

constexpr int64_t kTile = 4;              // a tile has 4 x 4 outputs, computed from 6 x 6 inputs
constexpr int64_t kChannelMultiple = 16;  // of the layout that oneDNN's implementation takes

// Where Winograd was at least 1.1 times as fast as direct convolution in all passes, images reordered, on one core with
// AVX-512 (bench/results/winograd-2026-11-26.md).
constexpr int64_t kLeastChannels = 32, kLeastTiles = 64, kLeastWork = 8192;  // the last: tiles times channels
constexpr int64_t kLeastPercentUsed = 60;                                    // of the outputs of all tiles

// Images are computed in chunks: more tiles at once are hardly faster, and their transforms take workspace.
constexpr int64_t kMostTiles = 512, kMostTransformBytes = int64_t{40} << 20;

int64_t tiles_of_image(const Shape& y) { return ((y[1] + kTile - 1) / kTile) * ((y[2] + kTile - 1) / kTile); }

/// Why a convolution does not run by Winograd; its shapes alone decide.
Reason shape_refusal(const RecordedConv2d& c, const Shape& y) {
  if (c.dtype != DType::f32) return fmt::format("Winograd is for f32, not {}", dtype_name(c.dtype));
  if (c.w[1] != 3 || c.w[2] != 3 || c.config.stride != 1) return "Winograd is for 3 x 3 windows with stride 1";
  const int64_t channels = std::min(c.w[0], c.w[3]);
  if (c.w[0] % kChannelMultiple != 0 || c.w[3] % kChannelMultiple != 0 || channels < kLeastChannels)
    return fmt::format("Winograd is for multiples of {} channels, at least {}", kChannelMultiple, kLeastChannels);
  const int64_t tiles = y[0] * tiles_of_image(y);
  const int64_t used = 100 * y[1] * y[2] / (tiles_of_image(y) * kTile * kTile);
  if (used < kLeastPercentUsed)
    return fmt::format("Winograd computes tiles of 4 x 4 outputs, of which images of {} x {} use {} %", y[1], y[2],
                       used);
  if (tiles < kLeastTiles || tiles * channels < kLeastWork) return "Winograd is not faster for so few outputs";
  return {};
}

/// Images per chunk: about equal chunks, so that a convolution has at most two sizes of them.
int64_t images_at_once(const RecordedConv2d& c, const Shape& y) {
  const int64_t bytes_of_tile = (kTile + 2) * (kTile + 2) * (c.w[0] + c.w[3]) * size_of(DType::f32);
  const int64_t most_tiles = std::min(kMostTiles, kMostTransformBytes / bytes_of_tile);
  const int64_t most = std::clamp(most_tiles / tiles_of_image(y), int64_t{1}, y[0]);
  const int64_t chunks = (y[0] + most - 1) / most;
  return (y[0] + chunks - 1) / chunks;
}

ConvolutionPlan& chunk_plan(OneDnnPlans& plans, RecordedConv2d c, int64_t images) {
  c.x = c.x.with_dim0(images);
  return convolution_plan(plans, c, dnnl::algorithm::convolution_winograd);
}

Reason no_implementation() {
  return fmt::format(
      "oneDNN {} has no Winograd convolution for this processor (versions before 3.2 have one for AVX-512)",
      library()->version);
}

struct Chunks {
  Reason refusal;
  int64_t images = 0, bytes = 0;
};

/// How a convolution is computed, whatever the workspace.
Chunks chunks_of(OneDnnPlans& plans, const RecordedConv2d& c) {
  const Shape y = conv2d_output_shape(c.config, c.x, c.w);
  Chunks chunks{shape_refusal(c, y)};
  if (!chunks.refusal.empty()) return chunks;
  chunks.images = images_at_once(c, y);
  for (const int64_t images : {chunks.images, y[0] % chunks.images}) {
    if (images == 0) continue;
    const ConvolutionPlan& plan = chunk_plan(plans, c, images);
    if (!plan.pass) chunks.refusal = no_implementation();
    chunks.bytes = std::max(chunks.bytes, plan.bytes);
  }
  return chunks;
}

}  // namespace

Reason winograd_refusal() {
  OneDnnPlans plans;
  const RecordedConv2d usual{.config = {1, 1, false}, .x = {1, 16, 16, 64}, .w = {64, 3, 3, 64}, .y = {}};
  return chunk_plan(plans, usual, 1).pass ? Reason() : no_implementation();
}

Reason winograd_conv2d(ExecContext& ctx, const Conv2dCall& call) {
  auto& plans = ctx.plans().get<OneDnnPlans>();
  const RecordedConv2d recorded = call.recorded();
  const Chunks chunks = chunks_of(plans, recorded);
  if (!chunks.refusal.empty()) return chunks.refusal;
  const View workspace = ctx.workspace();
  const int64_t reserved = workspace ? workspace.bytes() : 0;
  if (chunks.bytes > reserved)
    return {fmt::format("Winograd needs a workspace of {} bytes, but {} bytes are reserved; reserve more with ",
                        chunks.bytes, reserved),
            propose(ctx.workspace_setting(), size_argument(chunks.bytes))};
  const int64_t images = call.x.shape[0];
  for (int64_t first = 0; first < images; first += chunks.images) {
    const int64_t end = std::min(images, first + chunks.images);
    Conv2dCall chunk = call;
    chunk.x = call.x.rows(first, end);
    chunk.y = call.y.rows(first, end);
    if (first > 0 && call.pass == Conv2dPass::backward_weight) chunk.mode = GradMode::accumulate;
    const bool weights_packed = first > 0 && end - first == chunks.images;
    run(plans, chunk_plan(plans, recorded, end - first), workspace, chunk, weights_packed);
  }
  return {};
}

int64_t winograd_bytes(ExecContext& ctx, const RecordedConv2d& c) {
  const Chunks chunks = chunks_of(ctx.plans().get<OneDnnPlans>(), c);
  return chunks.refusal.empty() ? chunks.bytes : -1;
}

}  // namespace vitrine::cpu::onednn
