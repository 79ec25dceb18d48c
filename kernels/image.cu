// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/image_form.cuh"
#include "kernels/cuda/index.cuh"
#include "kernels/cuda/philox.cuh"
#include "kernels/image.h"
#include "runtime/cuda/dtype.cuh"
#include "runtime/philox.h"

// The same operations as on the CPU, in the same order and never contracted: the bits are equal.
namespace vitrine::cuda {
namespace {

/// Where one output coordinate samples: source[first] * first_weight + source[second] * second_weight.
template <class Index>
struct Sample {
  Index first, second;
  float first_weight, second_weight;
};

template <class Index>
struct Axis {
  Axis(int64_t source, int64_t target)
      : target_size(std::max<int64_t>(1, target)),
        source_size(static_cast<Index>(source)),
        scale(static_cast<float>(source) / static_cast<float>(target)),
        same(source == target) {}

  __device__ Sample<Index> sample(Index target) const {
    if (same) return {target, target, 1.0F, 0.0F};
    const float position = fmaxf(0.0F, __fsub_rn(__fmul_rn(scale, __fadd_rn(static_cast<float>(target), 0.5F)), 0.5F));
    const auto below = static_cast<Index>(position);
    const Index first = below < source_size ? below : source_size - 1;
    const Index second = first + 1 < source_size ? first + 1 : first;
    const float second_weight = fminf(1.0F, fmaxf(0.0F, __fsub_rn(position, static_cast<float>(first))));
    return {first, second, __fsub_rn(1.0F, second_weight), second_weight};
  }

  Divisor<Index> target_size;
  Index source_size;
  float scale;
  bool same;
};

template <class Index>
struct Resize {
  Axis<Index> vertical, horizontal;
  Divisor<Index> channels;
  int64_t source_image;  // elements
  int64_t count;         // elements of y
  float mean[4], deviation[4];
};

/// An element of y, and where its row and column sample.
template <class Index>
class Cursor {
 public:
  __device__ Cursor(const Resize<Index>& resize, Index element) : r_(resize) {
    channel = r_.channels.split(element);
    column_ = r_.horizontal.target_size.split(element);
    row_ = r_.vertical.target_size.split(element);
    image = element;
    down = r_.vertical.sample(row_);
    across = r_.horizontal.sample(column_);
  }
  __device__ void advance() {
    if (++channel < r_.channels.value()) return;
    channel = 0;
    if (++column_ == r_.horizontal.target_size.value()) {
      column_ = 0;
      if (++row_ == r_.vertical.target_size.value()) {
        row_ = 0;
        ++image;
      }
      down = r_.vertical.sample(row_);
    }
    across = r_.horizontal.sample(column_);
  }

  __device__ Index row() const { return row_; }
  __device__ Index column() const { return column_; }
  __device__ bool inside() const { return true; }

  Index image, channel;
  Sample<Index> down, across;

 private:
  const Resize<Index>& r_;
  Index row_, column_;
};

/// The same for an element of an ImageForm. Outside of the image nothing is sampled.
template <class Index>
class CellCursor {
 public:
  __device__ CellCursor(const Resize<Index>& resize, const Cells<Index>& cells, Index element)
      : r_(resize), cells_(cells), element_(element) {
    find();
  }
  __device__ void advance() {
    ++element_;
    // The channels of a pixel lie side by side.
    if (place_.inside && channel + 1 < r_.channels.value()) {
      ++channel;
    } else {
      find();
    }
  }

  __device__ Index row() const { return place_.row; }
  __device__ Index column() const { return place_.column; }
  __device__ bool inside() const { return place_.inside; }

  Index image, channel;
  Sample<Index> down, across;

 private:
  __device__ void find() {
    place_ = cells_.place(element_);
    image = place_.image;
    channel = place_.channel;
    if (!place_.inside) return;
    down = r_.vertical.sample(place_.row);
    across = r_.horizontal.sample(place_.column);
  }

  const Resize<Index>& r_;
  const Cells<Index>& cells_;
  Index element_;
  Place<Index> place_;
};

/// Stands for the Cells of images that are not arranged in a form.
struct NoCells {};

template <class Index>
__device__ inline Cursor<Index> cursor_at(const Resize<Index>& resize, const NoCells&, Index element) {
  return Cursor<Index>(resize, element);
}
template <class Index>
__device__ inline CellCursor<Index> cursor_at(const Resize<Index>& resize, const Cells<Index>& cells, Index element) {
  return CellCursor<Index>(resize, cells, element);
}

/// pixel / 255, rounded like a division: an estimate, its exact remainder, one correction.
__device__ inline float to_unit_range(uint8_t pixel) {
  constexpr float kReciprocal = 1.0F / 255.0F;
  const auto value = static_cast<float>(pixel);
  const float estimate = __fmul_rn(value, kReciprocal);
  return __fmaf_rn(__fmaf_rn(-255.0F, estimate, value), kReciprocal, estimate);
}

template <class Index>
__device__ inline float blend(float a, float b, const Sample<Index>& s) {
  return __fadd_rn(__fmul_rn(a, s.first_weight), __fmul_rn(b, s.second_weight));
}

template <class Index>
__device__ inline float normalize(const Resize<Index>& r, float value, Index channel) {
  float mean = r.mean[0];
  float deviation = r.deviation[0];
  for (int c = 1; c < 4; ++c) {  // selected, not indexed: an index would move the arrays to local memory
    mean = channel == c ? r.mean[c] : mean;
    deviation = channel == c ? r.deviation[c] : deviation;
  }
  return __fdiv_rn(__fsub_rn(value, mean), deviation);
}

/// kSame: the sizes are equal, and each pixel is its own sample.
template <bool kSame, class At, class Index>
__device__ inline float sampled(const Resize<Index>& r, const uint8_t* images, const At& at) {
  const uint8_t* pixels = images + int64_t{at.image} * r.source_image + at.channel;
  const auto tap = [&](Index y, Index x) {
    return to_unit_range(pixels[(y * r.horizontal.source_size + x) * r.channels.value()]);
  };
  if constexpr (kSame) return tap(at.row(), at.column());
  const float left = blend(tap(at.down.first, at.across.first), tap(at.down.second, at.across.first), at.down);
  const float right = blend(tap(at.down.first, at.across.second), tap(at.down.second, at.across.second), at.down);
  return blend(left, right, at.across);
}

/// A thread writes 16 bytes of y.   kSame: the sizes are equal.   kPacked: y, and for equal sizes without cells also
/// images, may be accessed kLanes elements at a time.   Layout: NoCells, or Cells<Index>
template <class T, bool kSame, bool kPacked, class Layout, class Index>
__global__ void __launch_bounds__(kBlockThreads)
    resize_kernel(const __grid_constant__ Resize<Index> r, const __grid_constant__ Layout layout, const uint8_t* images,
                  T* y) {
  wait_for_earlier_work();
  constexpr int kLanes = kPackElements<T>;
  for (int64_t item = first_item(); item * kLanes < r.count; item += item_stride()) {
    const int64_t begin = item * kLanes;
    const bool whole = begin + kLanes <= r.count;
    Pack<T, kLanes> out{};
    if constexpr (kSame && std::is_same_v<Layout, NoCells>) {
      Pack<uint8_t, kLanes> in{};
      if (kPacked && whole) {
        in = *reinterpret_cast<const Pack<uint8_t, kLanes>*>(images + begin);
      } else {
        for (int e = 0; e < kLanes; ++e) {
          if (begin + e < r.count) in.v[e] = images[begin + e];
        }
      }
      auto rest = static_cast<Index>(begin);
      Index channel = r.channels.split(rest);
      for (int e = 0; e < kLanes; ++e) {
        out.v[e] = from_float<T>(normalize(r, to_unit_range(in.v[e]), channel));
        channel = channel + 1 < r.channels.value() ? channel + 1 : 0;
      }
    } else {
      auto at = cursor_at(r, layout, static_cast<Index>(begin));
      for (int e = 0; e < kLanes; ++e) {
        if (begin + e < r.count && at.inside())
          out.v[e] = from_float<T>(normalize(r, sampled<kSame>(r, images, at), at.channel));
        at.advance();
      }
    }
    if (kPacked && whole) {
      *reinterpret_cast<Pack<T, kLanes>*>(y + begin) = out;
    } else {
      for (int e = 0; e < kLanes; ++e) {
        if (begin + e < r.count) y[begin + e] = out.v[e];
      }
    }
  }
}

// Shared memory of a block of resize_rows_kernel.
constexpr int64_t kMostTaps = 4096;

/// Resizes a row of cells (a row of pixels, where images have no form) at a time: first the block blends what the row
/// needs of the image downwards, once for all elements that sample it, then across. The operations on each element are
/// those of resize_kernel.
///   cells  images without a form have blocks of one pixel      rows  of cells of all images      V  elements per
///          access: divides those of a row
template <class T, int V, class Index>
__global__ void __launch_bounds__(kBlockThreads)
    resize_rows_kernel(const __grid_constant__ Resize<Index> r, const __grid_constant__ Cells<Index> cells,
                       int64_t rows, const uint8_t* images, T* y) {
  wait_for_earlier_work();
  __shared__ float taps[kMostTaps];  // (block, source columns, channels)
  const Index channels = r.channels.value(), line = r.horizontal.source_size * channels, block = cells.block.value();
  const Index elements = cells.columns.value() * cells.depth.value();  // of a row of y
  for (int64_t item = blockIdx.x; item < rows; item += gridDim.x) {
    const int64_t n = item / cells.rows.value();
    const Index top = static_cast<Index>(item - n * cells.rows.value()) * block - cells.pad;
    const uint8_t* const image = images + n * r.source_image;
    __syncthreads();  // the readers of the row before are done
    for (Index t = static_cast<Index>(threadIdx.x); t < block * line; t += kBlockThreads) {
      const Index u = t / line;
      if (top + u < 0 || top + u >= cells.height) continue;
      const Sample<Index> down = r.vertical.sample(top + u);
      const uint8_t* const column = image + (t - u * line);
      taps[t] = blend(to_unit_range(column[down.first * line]), to_unit_range(column[down.second * line]), down);
    }
    __syncthreads();
    for (Index begin = static_cast<Index>(threadIdx.x) * V; begin < elements; begin += kBlockThreads * V) {
      Pack<T, V> out{};
      Index u = 0, channel = 0;  // row in the block, and channel, of the element
      bool inside = false;
      Sample<Index> across{};
      for (int e = 0; e < V; ++e) {
        if (e > 0 && inside && channel + 1 < channels) {
          ++channel;
        } else {
          Index j = begin + e;
          u = cells.depth.split(j);
          channel = r.channels.split(u);
          const Index column = j * block + cells.block.split(u) - cells.pad;
          inside = u < block && top + u >= 0 && top + u < cells.height && column >= 0 && column < cells.width;
          if (inside) across = r.horizontal.sample(column);
        }
        if (!inside) continue;
        const float* const tap = taps + u * line + channel;
        out.v[e] = from_float<T>(
            normalize(r, blend(tap[across.first * channels], tap[across.second * channels], across), channel));
      }
      *reinterpret_cast<Pack<T, V>*>(y + item * elements + begin) = out;
    }
  }
}

/// An augmentation and the key of its random numbers.
struct Changes {
  uint32_t key0, key1;
  uint64_t epoch_stream;
  int32_t padding, cutout;
  bool flip;
  const StepValues* values;  // null, or the stream

  __device__ uint64_t stream() const { return values != nullptr ? values->epoch_stream : epoch_stream; }
};

/// The draws of one image, as of draw_augmentation().
template <class Index>
struct Drawn {
  Index top, left, cut_top, cut_left;
  bool flip;
};

template <class Index>
__device__ inline Index below(uint32_t word, Index bound) {
  return static_cast<Index>(uint64_t{word} * static_cast<uint64_t>(bound) >> 32);
}

template <class Index>
__device__ inline Drawn<Index> draw(const Changes& changes, int32_t sample, Index height, Index width) {
  const uint64_t block = 2 * static_cast<uint64_t>(sample), stream = changes.stream();
  const auto stream0 = static_cast<uint32_t>(stream), stream1 = static_cast<uint32_t>(stream >> 32);
  uint32_t first[4] = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), stream0, stream1};
  uint32_t second[4] = {static_cast<uint32_t>(block + 1), static_cast<uint32_t>((block + 1) >> 32), stream0, stream1};
  philox4x32(changes.key0, changes.key1, first);
  philox4x32(changes.key0, changes.key1, second);
  const Index padding = changes.padding;
  const Index half = changes.cutout / 2;
  return {below<Index>(first[1], 2 * padding + 1) - padding, below<Index>(first[2], 2 * padding + 1) - padding,
          below<Index>(second[0], height) - half, below<Index>(second[1], width) - half,
          changes.flip && below<Index>(first[0], 2) == 1};
}

/// An element of the changed image, before the cutout.
template <bool kSame, class At, class Index>
__device__ inline float changed(const Resize<Index>& r, const Drawn<Index>& drawn, const uint8_t* image, const At& at) {
  const Index width = r.horizontal.source_size;
  const auto tap = [&](Index row, Index column) {
    const Index y = row + drawn.top;
    const Index x = (drawn.flip ? width - 1 - column : column) + drawn.left;
    const bool inside = y >= 0 && y < r.vertical.source_size && x >= 0 && x < width;
    return inside ? to_unit_range(image[(y * width + x) * r.channels.value() + at.channel]) : 0.0F;
  };
  if constexpr (kSame) {
    return tap(at.row(), at.column());
  } else {
    const float left = blend(tap(at.down.first, at.across.first), tap(at.down.second, at.across.first), at.down);
    const float right = blend(tap(at.down.first, at.across.second), tap(at.down.second, at.across.second), at.down);
    return blend(left, right, at.across);
  }
}

/// Each image has `blocks` blocks, whose threads draw once and write V elements at a time. V: elements per access; if
/// above 1, an image of y has a multiple of it and y is aligned.
template <class T, int V, bool kSame, class Layout, class Index>
__global__ void __launch_bounds__(kBlockThreads)
    augment_kernel(const __grid_constant__ Resize<Index> r, const __grid_constant__ Layout layout,
                   const __grid_constant__ Changes changes, int64_t images, Index elements, Index blocks,
                   const uint8_t* pixels, const int32_t* samples, T* y) {
  wait_for_earlier_work();
  for (int64_t block = blockIdx.x; block < images * blocks; block += gridDim.x) {
    const int64_t n = block / blocks;
    const auto part = static_cast<Index>(block - n * blocks);
    const uint8_t* image = pixels + n * r.source_image;
    const Drawn<Index> drawn =
        draw<Index>(changes, samples[n], r.vertical.target_size.value(), r.horizontal.target_size.value());
    for (Index begin = (part * kBlockThreads + static_cast<Index>(threadIdx.x)) * V; begin < elements;
         begin += blocks * kBlockThreads * V) {
      auto at = cursor_at(r, layout, begin);
      Pack<T, V> out;
      for (int e = 0; e < V; ++e) {
        const Index down = at.row() - drawn.cut_top;
        const Index across = at.column() - drawn.cut_left;
        const bool cut = down >= 0 && down < changes.cutout && across >= 0 && across < changes.cutout;
        out.v[e] =
            from_float<T>(cut || !at.inside() ? 0.0F : normalize(r, changed<kSame>(r, drawn, image, at), at.channel));
        at.advance();
      }
      *reinterpret_cast<Pack<T, V>*>(y + n * elements + begin) = out;
    }
  }
}

template <class Index>
Resize<Index> resize_of(const Normalization& normalization, const ConstView& images, const View& y,
                        const ImageForm& form) {
  const Shape& in = images.shape;
  const Shape out = form ? form.image_shape(in[0]) : y.shape;
  Resize<Index> r{{in[1], out[1]}, {in[2], out[2]}, Divisor<Index>(in[3]), in[1] * in[2] * in[3], y.numel(), {}, {}};
  std::copy(normalization.mean.begin(), normalization.mean.end(), r.mean);
  std::copy(normalization.std.begin(), normalization.std.end(), r.deviation);
  return r;
}

/// Images of y (N, H, W, C) as a form that changes nothing.
ImageForm unformed(const Shape& y) {
  return {.height = y[1],
          .width = y[2],
          .channels = y[3],
          .block = 1,
          .pad = 0,
          .rows = y[1],
          .columns = y[2],
          .depth = y[3]};
}

template <class T, class Layout, class Index>
void queue_augment(ExecContext& ctx, const Changes& changes, const Resize<Index>& r, const Layout& layout,
                   const ConstView& images, const ConstView& samples, const View& y) {
  constexpr int kLanes = kPackElements<T>;
  constexpr int64_t kItems = 4;  // that a thread writes per draw
  const int64_t count = y.shape[0];
  const int64_t elements = y.numel() / count;
  const bool same = r.vertical.same && r.horizontal.same;
  const bool packed = is_pack_aligned(y.data) && elements % kLanes == 0;
  auto* kernel =
      packed ? &augment_kernel<T, kLanes, false, Layout, Index> : &augment_kernel<T, 1, false, Layout, Index>;
  if (same)
    kernel = packed ? &augment_kernel<T, kLanes, true, Layout, Index> : &augment_kernel<T, 1, true, Layout, Index>;
  const int64_t blocks = ceil_div(elements, kItems * kBlockThreads * (packed ? kLanes : 1));
  launch(native_stream(ctx), kernel, grid_of(count * blocks), dim3(kBlockThreads), r, layout, changes, count,
         static_cast<Index>(elements), static_cast<Index>(blocks), images.as<uint8_t>(), samples.as<int32_t>(),
         y.as<T>());
}

template <class T, class Index>
void queue_resize(ExecContext& ctx, const Resize<Index>& r, const ConstView& images, const View& y,
                  const ImageForm& form) {
  constexpr int kLanes = kPackElements<T>;
  const dim3 grid = grid_of(ceil_div(y.numel(), int64_t{kLanes} * kBlockThreads));
  const auto queue = [&](auto* kernel, const auto& layout) {
    launch(native_stream(ctx), kernel, grid, dim3(kBlockThreads), r, layout, images.as<uint8_t>(), y.as<T>());
  };
  const bool same = r.vertical.same && r.horizontal.same;
  if (const ImageForm rows = form ? form : unformed(y.shape);
      !same && rows.block * images.shape[2] * images.shape[3] <= kMostTaps) {
    auto* kernel = is_pack_aligned(y.data) && rows.columns * rows.depth % kLanes == 0
                       ? &resize_rows_kernel<T, kLanes, Index>
                       : &resize_rows_kernel<T, 1, Index>;
    return launch_cooperating(native_stream(ctx), kernel, grid_of(images.shape[0] * rows.rows), dim3(kBlockThreads), r,
                              Cells<Index>(rows), images.shape[0] * rows.rows, images.as<uint8_t>(), y.as<T>());
  }
  if (form) {
    using Layout = Cells<Index>;
    const bool packed = is_pack_aligned(y.data);
    auto* kernel =
        packed ? &resize_kernel<T, false, true, Layout, Index> : &resize_kernel<T, false, false, Layout, Index>;
    if (same)
      kernel = packed ? &resize_kernel<T, true, true, Layout, Index> : &resize_kernel<T, true, false, Layout, Index>;
    return queue(kernel, Layout(form));
  }
  const bool packed = is_pack_aligned(y.data) && (!same || reinterpret_cast<uintptr_t>(images.data) % kLanes == 0);
  auto* kernel =
      packed ? &resize_kernel<T, false, true, NoCells, Index> : &resize_kernel<T, false, false, NoCells, Index>;
  if (same)
    kernel = packed ? &resize_kernel<T, true, true, NoCells, Index> : &resize_kernel<T, true, false, NoCells, Index>;
  queue(kernel, NoCells{});
}

}  // namespace

void resize_normalize(ExecContext& ctx, const Normalization& normalization, ConstView images, View y,
                      const ImageForm& form) {
  if (y.numel() == 0) return;
  with_storage(y.dtype, [&]<class T>() {
    if (fits_int32(std::max(y.numel(), images.numel()) + kPackElements<T>)) {
      queue_resize<T>(ctx, resize_of<int32_t>(normalization, images, y, form), images, y, form);
    } else {
      queue_resize<T>(ctx, resize_of<int64_t>(normalization, images, y, form), images, y, form);
    }
  });
}

void augment_normalize(ExecContext& ctx, const Augmentation& augmentation, const AugmentationKey& key,
                       const Normalization& normalization, ConstView images, ConstView samples, View y,
                       const ImageForm& form, ConstView values) {
  if (y.numel() == 0) return;
  const Changes changes{static_cast<uint32_t>(key.seed),
                        static_cast<uint32_t>(key.seed >> 32),
                        random_stream(RandomPurpose::augmentation, static_cast<uint64_t>(key.epoch)),
                        static_cast<int32_t>(augmentation.crop_padding),
                        static_cast<int32_t>(augmentation.cutout),
                        augmentation.flip,
                        values ? reinterpret_cast<const StepValues*>(values.as<int32_t>()) : nullptr};
  const int64_t largest = std::max(y.numel(), images.numel()) / y.shape[0];
  with_storage(y.dtype, [&]<class T>() {
    const auto queue = [&]<class Index>(Index) {
      const Resize<Index> r = resize_of<Index>(normalization, images, y, form);
      if (form) {
        queue_augment<T>(ctx, changes, r, Cells<Index>(form), images, samples, y);
      } else {
        queue_augment<T>(ctx, changes, r, NoCells{}, images, samples, y);
      }
    };
    if (fits_int32(2 * largest + 8 * kBlockThreads * kPackElements<T>)) {
      queue(int32_t{});
    } else {
      queue(int64_t{});
    }
  });
}

}  // namespace vitrine::cuda
