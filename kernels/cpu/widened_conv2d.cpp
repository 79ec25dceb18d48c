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

/// Converts all of `from` to f32 at `to`.
ConstView widen_all(const ConstView& from, float* to) {
  with_storage(from.dtype, [&]<class T>(T) {
    parallel_for(from.numel(), kGrainElements,
                 [&](int64_t begin, int64_t end) { cpu::widen(from.as<T>() + begin, to + begin, end - begin); });
  });
  return {to, from.shape, DType::f32, from.device};
}

void round_all(const ConstView& from, const View& to) {
  with_storage(to.dtype, [&]<class T>(T) {
    parallel_for(to.numel(), kGrainElements, [&](int64_t begin, int64_t end) {
      cpu::narrow(from.as<float>() + begin, to.as<T>() + begin, end - begin);
    });
  });
}

int64_t f32_bytes(int64_t count) { return Arena::aligned(count * size_of(DType::f32)); }

/// One convolution: x and y are widened to f32 for some images at a time, weights and bias once.
struct Convolution {
  Conv2dPass pass;
  Conv2dConfig config;
  Shape x, y, w;
  bool with_bias;

  int64_t images() const { return x[0]; }
  int64_t weight_bytes() const {
    if (pass == Conv2dPass::backward_weight) return 0;  // its gradients are f32 already
    return f32_bytes(w.numel()) + (with_bias ? f32_bytes(w[0]) : 0);
  }
  int64_t image_bytes() const { return f32_bytes(x.numel() / images()) + f32_bytes(y.numel() / images()); }
  const char* name() const {
    if (pass == Conv2dPass::forward) return "conv2d_forward";
    return pass == Conv2dPass::backward_data ? "conv2d_backward_data" : "conv2d_backward_weight";
  }
};

/// Returns the number of images per chunk, at most `most`, that makes chunks about equal.
int64_t even(const Convolution& c, int64_t most) {
  const int64_t chunks = (c.images() + most - 1) / most;
  return (c.images() + chunks - 1) / chunks;
}

/// Returns how many images are worth computing at once: more do not fit into the caches of the cores, fewer per core
/// take longer.
int64_t useful_images(const Convolution& c) {
  constexpr int64_t kCacheOfThread = int64_t{2} << 20, kLeastOfThread = 4;
  return std::min(c.images(), team_size() * std::max(kCacheOfThread / c.image_bytes(), kLeastOfThread));
}

/// Bytes of workspace with which the f32 convolutions of all chunks run at full speed.
int64_t f32_workspace(ExecContext& ctx, const Convolution& c, int64_t at_once) {
  const int64_t rest = c.images() % at_once;
  const auto bytes = [&](int64_t images) {
    return f32::conv2d_bytes(ctx, c.pass, c.config, c.x.with_dim0(images), c.w, c.with_bias);
  };
  return std::max(bytes(at_once), rest > 0 ? bytes(rest) : 0);
}

/// Images per chunk: as many as are useful and leave the f32 convolution the workspace to run at full speed, or at all.
int64_t images_at_once(ExecContext& ctx, const Convolution& c) {
  const int64_t room = Arena(ctx.workspace()).left_bytes() - c.weight_bytes();
  const auto most_beside = [&](int64_t bytes) { return room > bytes ? (room - bytes) / c.image_bytes() : 0; };
  int64_t most = std::min(useful_images(c), most_beside(0));
  while (most > 0) {
    const int64_t images = even(c, most);
    const int64_t bytes = f32_workspace(ctx, c, images);
    if (images <= most_beside(bytes)) return images;
    most = std::min(images - 1, most_beside(bytes));
  }
  const int64_t least = portable::conv2d_bytes(c.config, c.x, c.w).least;
  most = std::min(useful_images(c), most_beside(least));
  if (most > 0) return even(c, most);
  const int64_t needed = c.weight_bytes() + c.image_bytes() + least;
  check::throw_small_workspace(ctx, c.name(), fmt::format("an image of x {} with w {}", c.x.str(), c.w.str()), needed,
                               4 * needed);
}

/// Calls body(first, end) for each chunk of images [first, end).
template <class Body>
void for_each_chunk(int64_t images, int64_t at_once, const Body& body) {
  for (int64_t first = 0; first < images; first += at_once) body(first, std::min(images, first + at_once));
}

View of_images(const Shape& all, int64_t first, int64_t end, float* floats, DeviceId device) {
  return {floats, all.with_dim0(end - first), DType::f32, device};
}

}  // namespace

void conv2d_forward(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView w, ConstView bias, View y) {
  const Convolution c{Conv2dPass::forward, config, x.shape, y.shape, w.shape, static_cast<bool>(bias)};
  const int64_t at_once = images_at_once(ctx, c);
  Arena arena(ctx.workspace());
  const ConstView wide_w = widen_all(w, arena.take_floats(w.numel()));
  const ConstView wide_bias = bias ? widen_all(bias, arena.take_floats(bias.numel())) : ConstView{};
  float* x_floats = arena.take_floats(x.shape.with_dim0(at_once).numel());
  float* y_floats = arena.take_floats(y.shape.with_dim0(at_once).numel());
  for_each_chunk(c.images(), at_once, [&](int64_t first, int64_t end) {
    const View wide_y = of_images(y.shape, first, end, y_floats, y.device);
    f32::conv2d_forward(ctx, arena.rest(), config, widen_all(x.rows(first, end), x_floats), wide_w, wide_bias, wide_y);
    round_all(wide_y, y.rows(first, end));
  });
}

void conv2d_backward_data(ExecContext& ctx, const Conv2dConfig& config, ConstView grad_y, ConstView w, View grad_x) {
  const Convolution c{Conv2dPass::backward_data, config, grad_x.shape, grad_y.shape, w.shape, false};
  const int64_t at_once = images_at_once(ctx, c);
  Arena arena(ctx.workspace());
  const ConstView wide_w = widen_all(w, arena.take_floats(w.numel()));
  float* x_floats = arena.take_floats(grad_x.shape.with_dim0(at_once).numel());
  float* y_floats = arena.take_floats(grad_y.shape.with_dim0(at_once).numel());
  for_each_chunk(c.images(), at_once, [&](int64_t first, int64_t end) {
    const View wide_x = of_images(grad_x.shape, first, end, x_floats, grad_x.device);
    f32::conv2d_backward_data(ctx, arena.rest(), config, widen_all(grad_y.rows(first, end), y_floats), wide_w, wide_x);
    round_all(wide_x, grad_x.rows(first, end));
  });
}

void conv2d_backward_weight(ExecContext& ctx, const Conv2dConfig& config, ConstView x, ConstView grad_y, View grad_w,
                            View grad_bias, GradMode mode) {
  const Convolution c{Conv2dPass::backward_weight, config, x.shape, grad_y.shape, grad_w.shape,
                      static_cast<bool>(grad_bias)};
  const int64_t at_once = images_at_once(ctx, c);
  Arena arena(ctx.workspace());
  float* x_floats = arena.take_floats(x.shape.with_dim0(at_once).numel());
  float* y_floats = arena.take_floats(grad_y.shape.with_dim0(at_once).numel());
  for_each_chunk(c.images(), at_once, [&](int64_t first, int64_t end) {
    const ConstView wide_x = widen_all(x.rows(first, end), x_floats);
    const ConstView wide_y = widen_all(grad_y.rows(first, end), y_floats);
    f32::conv2d_backward_weight(ctx, arena.rest(), config, wide_x, wide_y, grad_w, grad_bias,
                                first > 0 ? GradMode::accumulate : mode);
  });
}

portable::Conv2dBytes conv2d_bytes(ExecContext& ctx, const RecordedConv2d& r) {
  const Convolution c{r.pass, r.config, r.x, r.y, r.w, r.bias};
  const int64_t fixed = Arena::kAlignment + c.weight_bytes(), at_once = even(c, useful_images(c));
  return {fixed + c.image_bytes() + portable::conv2d_bytes(r.config, r.x, r.w).least,
          fixed + at_once * c.image_bytes() + f32_workspace(ctx, c, at_once)};
}

}  // namespace vitrine::cpu::widened
