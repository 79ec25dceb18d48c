// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/image_form.cuh"
#include "kernels/image_form.h"
#include "runtime/cuda/dtype.cuh"

namespace vitrine::cuda {
namespace {

/// Each thread writes one element of the packed images: the loads of a warp are runs of block * channels elements.
template <class T, class Index>
__global__ void __launch_bounds__(kBlockThreads)
    pack_kernel(const __grid_constant__ Cells<Index> cells, Index count, const T* images, T* packed) {
  wait_for_earlier_work();
  const auto stride = static_cast<Index>(item_stride());
  for (auto e = static_cast<Index>(first_item()); e < count; e += stride) {
    const Place<Index> at = cells.place(e);
    T value{};
    if (at.inside)
      value =
          images[((at.image * cells.height + at.row) * cells.width + at.column) * cells.channels.value() + at.channel];
    packed[e] = value;
  }
}

/// Each thread writes one element of the images.
template <bool kAdd, class Index>
__global__ void __launch_bounds__(kBlockThreads)
    unpack_kernel(const __grid_constant__ Cells<Index> cells, Divisor<Index> height, Divisor<Index> width, Index count,
                  const float* packed, float* images) {
  wait_for_earlier_work();
  const auto stride = static_cast<Index>(item_stride());
  for (auto e = static_cast<Index>(first_item()); e < count; e += stride) {
    Index image = e;
    const Index channel = cells.channels.split(image);
    Index j = width.split(image) + cells.pad;
    Index i = height.split(image) + cells.pad;
    const Index v = cells.block.split(j), u = cells.block.split(i);
    float value = 0.0F;
    if (i < cells.rows.value() && j < cells.columns.value()) {
      value = packed[((image * cells.rows.value() + i) * cells.columns.value() + j) * cells.depth.value() +
                     (u * cells.block.value() + v) * cells.channels.value() + channel];
    }
    images[e] = kAdd ? images[e] + value : value;
  }
}

/// Calls queue with a zero of the type of indices.
template <class Queue>
void with_index(int64_t largest, const Queue& queue) {
  if (fits_int32(largest)) {
    queue(int32_t{});
  } else {
    queue(int64_t{});
  }
}

}  // namespace

void pack_images(ExecContext& ctx, const ImageForm& form, ConstView images, View packed) {
  const dim3 grid = grid_for(ctx, packed.numel());
  with_storage(packed.dtype, [&]<class T>() {
    with_index(std::max(images.numel(), packed.numel()) + int64_t{grid.x} * kBlockThreads, [&]<class Index>(Index) {
      launch(native_stream(ctx), &pack_kernel<T, Index>, grid, dim3(kBlockThreads), Cells<Index>(form),
             static_cast<Index>(packed.numel()), images.as<T>(), packed.as<T>());
    });
  });
}

void unpack_images(ExecContext& ctx, const ImageForm& form, ConstView packed, View images, GradMode mode) {
  const dim3 grid = grid_for(ctx, images.numel());
  with_index(std::max(images.numel(), packed.numel()) + int64_t{grid.x} * kBlockThreads, [&]<class Index>(Index) {
    auto* kernel = mode == GradMode::accumulate ? &unpack_kernel<true, Index> : &unpack_kernel<false, Index>;
    launch(native_stream(ctx), kernel, grid, dim3(kBlockThreads), Cells<Index>(form), Divisor<Index>(form.height),
           Divisor<Index>(form.width), static_cast<Index>(images.numel()), packed.as<float>(), images.as<float>());
  });
}

}  // namespace vitrine::cuda
