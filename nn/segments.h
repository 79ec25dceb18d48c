// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <vitrine/nn/sequential.h>

namespace vitrine {

/// Segments of activation checkpointing (Chen et al. 2016): each segment but the last keeps only its input, and backward recomputes it.

/// round(sqrt(n)) for the n parts that compute in training on an input of this shape; at least 1.
int square_root_segments(const Sequential& net, const Shape& input);

/// The most segments that the model can be cut into: the number of parts that compute in training on an input of this shape.
int most_segments(const Sequential& net, const Shape& input);

/// Cuts the model into `segments` runs of consecutive parts, each with a part that computes, for Sequential::forward_from. PyTorch's
/// checkpoint_sequential gives every segment the same number of parts; this function minimizes the peak of kept bytes, which it measures for two
/// samples on a meta device. While backward is in a segment, the kept bytes are those of the segment and the inputs of all segments before it.
///   input  shape of the model's input, any number of samples      compute  dtype of activations
/// throws  ConfigError when the model has fewer parts that compute, or segments is below 1
std::vector<int> cut_in_segments(const Sequential& net, const Shape& input, DType compute, int segments);

}  // namespace vitrine
