// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <vitrine/nn/sequential.h>

namespace vitrine {

/// Segments of activation checkpointing (Chen et al. 2016): of each but the last only the input is kept for backward, which computes it again.

/// round(sqrt(n)) of the n parts that compute in training on such an input; at least 1.
int square_root_segments(const Sequential& net, const Shape& input);

/// The most segments that the model can be cut in: the number of its parts that compute in training on such an input.
int most_segments(const Sequential& net, const Shape& input);

/// Cuts the model in `segments` runs of consecutive parts, each with a part that computes, for Sequential::forward_from. Unlike PyTorch's
/// checkpoint_sequential, which gives every segment as many parts, it counts the bytes that parts keep of one sample (a forward pass on a meta
/// device), and takes a cut under which the most that is kept at once is least: while backward is in a segment, what that keeps and the inputs of
/// all segments before it.
///   input  of the model, any number of samples      compute  dtype of activations
/// throws ConfigError when there are fewer parts that compute, or segments is below 1
std::vector<int> cut_in_segments(const Sequential& net, const Shape& input, DType compute, int segments);

}  // namespace vitrine
