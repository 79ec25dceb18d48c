// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/cpu/arena.h"
#include "kernels/cpu/f32.h"
#include "kernels/cpu/portable.h"
#include "kernels/cpu/storage.h"
#include "kernels/cpu/widened.h"
#include "runtime/cpu/parallel.h"

namespace vitrine::cpu::widened {
namespace {

constexpr int64_t kGrainElements = 8192;

void widen_all(const ConstView& from, const View& to) {
  with_storage(from.dtype, [&]<class T>(T) {
    parallel_for(from.numel(), kGrainElements, [&](int64_t begin, int64_t end) {
      cpu::widen(from.as<T>() + begin, to.as<float>() + begin, end - begin);
    });
  });
}

void round_all(const ConstView& from, const View& to) {
  with_storage(to.dtype, [&]<class T>(T) {
    parallel_for(to.numel(), kGrainElements, [&](int64_t begin, int64_t end) {
      cpu::narrow(from.as<float>() + begin, to.as<T>() + begin, end - begin);
    });
  });
}

int64_t f32_bytes(int64_t count) { return Arena::aligned(count * size_of(DType::f32)); }

/// Widened weights and bias; the gradients of both are f32 already.
int64_t weight_bytes(const RecordedConv2d& c) {
  if (c.pass == Conv2dPass::backward_weight) return 0;
  return f32_bytes(c.w.numel()) + (c.bias ? f32_bytes(c.w[0]) : 0);
}
/// An image of x and y.
int64_t image_bytes(const RecordedConv2d& c) {
  return f32_bytes(c.x.numel() / c.x[0]) + f32_bytes(c.y.numel() / c.x[0]);
}

/// Returns the number of images per chunk, at most `most`, that makes chunks about equal.
int64_t even(const RecordedConv2d& c, int64_t most) {
  const int64_t chunks = (c.x[0] + most - 1) / most;
  return (c.x[0] + chunks - 1) / chunks;
}

/// Returns how many images are worth computing at once: more do not fit into the caches of the cores, fewer per core
/// take longer.
int64_t useful_images(const RecordedConv2d& c) {
  constexpr int64_t kCacheOfThread = int64_t{2} << 20, kLeastOfThread = 4;
  return std::min(c.x[0], team_size() * std::max(kCacheOfThread / image_bytes(c), kLeastOfThread));
}

/// Bytes of workspace with which the f32 convolutions of all chunks run at full speed.
int64_t f32_workspace(ExecContext& ctx, const RecordedConv2d& c, int64_t at_once) {
  const int64_t rest = c.x[0] % at_once;
  const auto bytes = [&](int64_t images) {
    RecordedConv2d chunk = c;
    chunk.dtype = DType::f32;
    chunk.x = c.x.with_dim0(images);
    return f32::conv2d_bytes(ctx, chunk);
  };
  return std::max(bytes(at_once), rest > 0 ? bytes(rest) : 0);
}

/// Images per chunk: as many as are useful and leave the f32 convolution the workspace to run at full speed, or at all.
int64_t images_at_once(ExecContext& ctx, const RecordedConv2d& c) {
  const int64_t room = Arena(ctx.workspace()).left_bytes() - weight_bytes(c);
  const auto most_beside = [&](int64_t bytes) { return room > bytes ? (room - bytes) / image_bytes(c) : 0; };
  int64_t most = std::min(useful_images(c), most_beside(0));
  while (most > 0) {
    const int64_t images = even(c, most);
    const int64_t bytes = f32_workspace(ctx, c, images);
    if (images <= most_beside(bytes)) return images;
    most = std::min(images - 1, most_beside(bytes));
  }
  return even(c, std::min(useful_images(c), most_beside(portable::conv2d_bytes(c).least)));
}

/// Bytes with which one image can be computed.
int64_t least_bytes(const RecordedConv2d& c) {
  return weight_bytes(c) + image_bytes(c) + portable::conv2d_bytes(c).least;
}

}  // namespace

void conv2d(ExecContext& ctx, const Conv2dCall& call) {
  require_workspace(ctx, call.recorded());
  const bool of_weights = call.pass == Conv2dPass::backward_weight;
  const int64_t images = call.x.shape[0], at_once = images_at_once(ctx, call.recorded());
  Arena arena(ctx.workspace());
  const auto take = [&](const View& like) {
    return View{arena.take_floats(like.numel()), like.shape, DType::f32, like.device};
  };
  Conv2dCall chunk = call;  // weights and bias are widened once
  if (!of_weights) widen_all(call.w, chunk.w = take(call.w));
  if (!of_weights && call.bias) widen_all(call.bias, chunk.bias = take(call.bias));
  const View wide_x = take(call.x.rows(0, at_once)), wide_y = take(call.y.rows(0, at_once));
  for (int64_t first = 0; first < images; first += at_once) {
    const int64_t end = std::min(images, first + at_once);
    const View x = call.x.rows(first, end), y = call.y.rows(first, end);
    chunk.x = wide_x.rows(0, end - first);
    chunk.y = wide_y.rows(0, end - first);
    if (call.pass != Conv2dPass::backward_data) widen_all(x, chunk.x);
    if (call.pass != Conv2dPass::forward) widen_all(y, chunk.y);
    f32::conv2d(ctx, arena.remaining(), chunk);
    if (call.pass == Conv2dPass::forward) round_all(chunk.y, y);
    if (call.pass == Conv2dPass::backward_data) round_all(chunk.x, x);
    if (of_weights) chunk.mode = GradMode::accumulate;  // beyond the first chunk
  }
}

portable::Conv2dBytes conv2d_bytes(ExecContext& ctx, const RecordedConv2d& c) {
  const int64_t at_once = even(c, useful_images(c));
  return {least_bytes(c),
          Arena::kAlignment + weight_bytes(c) + at_once * image_bytes(c) + f32_workspace(ctx, c, at_once)};
}

void require_workspace(const ExecContext& ctx, const RecordedConv2d& c) {
  const int64_t needed = least_bytes(c);
  if (ctx.workspace() && ctx.workspace().bytes() >= needed) return;
  check::throw_small_workspace(ctx, pass_name(c.pass), fmt::format("an image of x {} with w {}", c.x.str(), c.w.str()),
                               needed, 4 * needed);
}

}  // namespace vitrine::cpu::widened
