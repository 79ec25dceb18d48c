// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/im2col_conv2d.h"
#include "runtime/cuda/dtype.cuh"
#include "runtime/error.h"

namespace vitrine::cuda {
namespace {

constexpr unsigned kLanes = 32;
constexpr int64_t kMostBlocks = 65535;

/// In the kernels here, a warp handles an item: one row r of the window of one output pixel. Its S * C elements are
/// contiguous in x and in the columns. V elements are moved at once; V divides C, so that a pack is entirely inside or
/// outside the image.
template <class T, int V>
__global__ void im2col_kernel(ConvSizes z, const T* x, int64_t first_line, int64_t items, T* columns) {
  wait_for_earlier_work();
  const int row_length = z.S * z.C;
  const int lane = static_cast<int>(threadIdx.x % kLanes) * V;
  const int64_t stride = item_stride() / kLanes;
  for (int64_t item = first_item() / kLanes; item < items; item += stride) {
    const int64_t pixel = item / z.R;
    const int r = static_cast<int>(item - pixel * z.R);
    const int64_t line = pixel / z.Q;
    const int q = static_cast<int>(pixel - line * z.Q);
    const int64_t n = (first_line + line) / z.P;
    const int p = static_cast<int>(first_line + line - n * z.P);
    const int h = p * z.stride - z.pad + r;
    const int w = q * z.stride - z.pad;
    const bool row_inside = h >= 0 && h < z.H;
    // Elements [low, high) of the window's row are inside the image.
    const int low = w < 0 ? -w * z.C : 0;
    const int high = (w + z.S > z.W ? z.W - w : z.S) * z.C;
    const T* const from = x + ((n * z.H + h) * z.W + w) * z.C;
    T* const to = columns + item * row_length;
    for (int j = lane; j < row_length; j += static_cast<int>(kLanes) * V) {
      Pack<T, V> values{};
      if (row_inside && j >= low && j < high) values = *reinterpret_cast<const Pack<T, V>*>(from + j);
      *reinterpret_cast<Pack<T, V>*>(to + j) = values;
    }
  }
}

/// Item i: V channels of one input pixel of image lines [first_row, ...), counted over all images.   kAdd: adds to the
/// content.
template <class T, int V, bool kAdd>
__global__ void col2im_kernel(ConvSizes z, const float* columns, int64_t begin, int64_t end, int64_t first_row,
                              int64_t items, T* grad_x) {
  wait_for_earlier_work();
  const int packs = z.C / V;
  for (int64_t item = first_item(); item < items; item += item_stride()) {
    const int64_t pixel = item / packs;
    const int c = static_cast<int>(item - pixel * packs) * V;
    const int64_t row = first_row + pixel / z.W;
    const int w = static_cast<int>(pixel % z.W);
    const int64_t n = row / z.H;
    const int h = static_cast<int>(row - n * z.H);
    Pack<T, V>* const target = reinterpret_cast<Pack<T, V>*>(grad_x + (row * z.W + w) * z.C + c);
    float sum[V] = {};
    if constexpr (kAdd) {
      const Pack<T, V> old = *target;
      for (int v = 0; v < V; ++v) sum[v] = to_float(old.v[v]);
    }
    for (int r = 0; r < z.R; ++r) {
      const int down = h + z.pad - r;
      if (down < 0 || down % z.stride != 0 || down / z.stride >= z.P) continue;
      const int64_t line = n * z.P + down / z.stride;
      if (line < begin || line >= end) continue;
      for (int s = 0; s < z.S; ++s) {
        const int across = w + z.pad - s;
        if (across < 0 || across % z.stride != 0 || across / z.stride >= z.Q) continue;
        const int64_t column = (line - begin) * z.Q + across / z.stride;
        const auto part = *reinterpret_cast<const Pack<float, V>*>(columns + ((column * z.R + r) * z.S + s) * z.C + c);
        for (int v = 0; v < V; ++v) sum[v] += part.v[v];
      }
    }
    Pack<T, V> out;
    for (int v = 0; v < V; ++v) out.v[v] = from_float<T>(sum[v]);
    *target = out;
  }
}

dim3 blocks_for(int64_t threads) {
  return dim3(static_cast<unsigned>(std::clamp<int64_t>(ceil_div(threads, kBlockThreads), 1, kMostBlocks)));
}

/// Columns are moved in packs of 16 bytes.
template <class T, bool kAdd>
void queue_col2im(cudaStream_t stream, const ConvSizes& sizes, const float* columns, int64_t begin, int64_t end,
                  int64_t first_row, int64_t end_row, const View& grad_x) {
  constexpr int kElements = kPackElements<float>;
  const bool packs = sizes.C % kElements == 0 && is_pack_aligned(columns) &&
                     reinterpret_cast<uintptr_t>(grad_x.data) % sizeof(Pack<T, kElements>) == 0;
  const int64_t items = (end_row - first_row) * sizes.W * sizes.C / (packs ? kElements : 1);
  launch(stream, packs ? col2im_kernel<T, kElements, kAdd> : col2im_kernel<T, 1, kAdd>, blocks_for(items),
         dim3(kBlockThreads), sizes, columns, begin, end, first_row, items, grad_x.as<T>());
}

int to_int(int64_t value, const char* what) {
  if (value > INT32_MAX)
    throw ShapeError(std::string("conv2d: ") + what + " is " + std::to_string(value) + ", expected below 2^31");
  return static_cast<int>(value);
}

}  // namespace

ConvSizes::ConvSizes(const Conv2dConfig& config, const Shape& x, const Shape& w, const Shape& y)
    : N(to_int(x[0], "N")),
      H(to_int(x[1], "H")),
      W(to_int(x[2], "W")),
      C(to_int(x[3], "C")),
      K(to_int(w[0], "K")),
      R(to_int(w[1], "R")),
      S(to_int(w[2], "S")),
      P(to_int(y[1], "P")),
      Q(to_int(y[2], "Q")),
      stride(to_int(config.stride, "stride")),
      pad(to_int(config.pad, "pad")) {
  to_int(w[2] * x[3] + 256, "S * C");
}

void im2col(cudaStream_t stream, const ConvSizes& sizes, ConstView x, int64_t begin, int64_t end, void* columns) {
  const int64_t items = (end - begin) * sizes.Q * sizes.R;
  with_storage(x.dtype, [&]<class T>() {
    constexpr int kElements = kPackElements<T>;
    const bool packs = sizes.C % kElements == 0 && is_pack_aligned(x.data) && is_pack_aligned(columns);
    launch(stream, packs ? im2col_kernel<T, kElements> : im2col_kernel<T, 1>, blocks_for(items * kLanes),
           dim3(kBlockThreads), sizes, x.as<T>(), begin, items, static_cast<T*>(columns));
  });
}

void add_col2im(cudaStream_t stream, const ConvSizes& sizes, const float* columns, int64_t begin, int64_t end,
                View grad_x) {
  // Whole images, or the rows of one image that the lines reach.
  const int64_t first_image = begin / sizes.P, last_image = (end - 1) / sizes.P;
  int64_t first_row = first_image * sizes.H, end_row = (last_image + 1) * sizes.H;
  if (first_image == last_image) {
    const int64_t top = (begin - first_image * sizes.P) * sizes.stride - sizes.pad;
    const int64_t bottom = (end - 1 - first_image * sizes.P) * sizes.stride - sizes.pad + sizes.R;
    end_row = first_row + std::clamp<int64_t>(bottom, 0, sizes.H);
    first_row += std::clamp<int64_t>(top, 0, sizes.H);
  }
  if (end_row > first_row) queue_col2im<float, true>(stream, sizes, columns, begin, end, first_row, end_row, grad_x);
}

void col2im(cudaStream_t stream, const ConvSizes& sizes, const float* columns, int64_t begin, int64_t end,
            int64_t first_row, int64_t end_row, View grad_x) {
  if (grad_x.dtype == DType::f16)
    return queue_col2im<__half, false>(stream, sizes, columns, begin, end, first_row, end_row, grad_x);
  queue_col2im<__nv_bfloat16, false>(stream, sizes, columns, begin, end, first_row, end_row, grad_x);
}

}  // namespace vitrine::cuda
