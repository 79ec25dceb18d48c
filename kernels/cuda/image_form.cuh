// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/index.cuh"
#include "kernels/image_form.h"

namespace vitrine::cuda {

/// The pixel at an element of packed images.
template <class Index>
struct Place {
  Index image, row, column, channel;
  bool inside;  // false: the element is 0, and row and column are outside of the image or of the block
};

/// An ImageForm for kernels.
template <class Index>
struct Cells {
  explicit Cells(const ImageForm& form)
      : depth(form.depth),
        columns(form.columns),
        rows(form.rows),
        channels(form.channels),
        block(form.block),
        height(static_cast<Index>(form.height)),
        width(static_cast<Index>(form.width)),
        pad(static_cast<Index>(form.pad)) {}

  __device__ Place<Index> place(Index element) const {
    Index in_cell = depth.split(element);
    const Index j = columns.split(element);
    const Index i = rows.split(element);
    const Index channel = channels.split(in_cell);
    const Index v = block.split(in_cell);
    const Index row = i * block.value() + in_cell - pad;
    const Index column = j * block.value() + v - pad;
    const bool inside = in_cell < block.value() && row >= 0 && row < height && column >= 0 && column < width;
    return {element, row, column, channel, inside};
  }

  Divisor<Index> depth, columns, rows, channels, block;
  Index height, width, pad;
};

}  // namespace vitrine::cuda
