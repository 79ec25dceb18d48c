// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <vitrine/nn/recomputation.h>
#include <vitrine/nn/sequential.h>

namespace vitrine {

/// Segments of activation checkpointing (Chen et al. 2016): each keeps only its input, and backward recomputes it. All
/// other parts are kept.

/// round(sqrt(n)) for the n parts that compute in training on an input of this shape; at least 1.
int square_root_segments(const Sequential& net, const Shape& input);

/// The most segments that the model can be cut into: the number of parts that compute in training on an input of this
/// shape.
int most_segments(const Sequential& net, const Shape& input);

/// Cuts the model into `segments` runs of consecutive parts, each with a part that computes, and returns all but the
/// last one: those that are recomputed, for Sequential::forward_from. PyTorch's checkpoint_sequential gives every
/// segment the same number of parts; this function minimizes the peak of kept bytes, which it measures for two samples
/// on a meta device. While backward is in a segment, the kept bytes are the segment's and the inputs of all segments
/// before it.
///   input  shape of the model's input, any number of samples      compute  dtype of activations
/// throws  ConfigError when the model has fewer parts that compute, or segments is below 1
std::vector<PartRange> cut_in_segments(const Sequential& net, const Shape& input, DType compute, int segments);

/// The segments with these names, ascending: "NAME" is a part, "FIRST-LAST" are all parts from one to the other.
/// Segments side by side stay two.
/// throws  ConfigError when there is no such part (it lists those that exist), the first one lies after the last one,
///         or segments overlap
std::vector<PartRange> find_segments(const Sequential& net, const std::vector<std::string>& names);

/// Names for find_segments().
std::vector<std::string> name_segments(const Sequential& net, const std::vector<PartRange>& segments);

/// What each part that computes needs in a training pass over an input of this shape, measured on a meta device; `work`
/// comes from Layer::forward_work().
///   input  shape of the images, also where pass.input_form says how they are arranged
///   compute  dtype of activations      pass  batch_sum: whether the devices share statistics
std::vector<PartCost> measure_parts(const Sequential& net, const Shape& input, DType compute, const Pass& pass);

/// Work in one unit, for a part of this dtype: an operation, or kFlopsPerByte of them for each byte. Estimates the time
/// of a part as arithmetic plus memory traffic, on a machine that does kFlopsPerByte operations while it moves a byte
/// (a processor with two channels of memory, and GPUs without tensor cores, do 5 to 20). Only ratios between parts
/// matter. source  Williams et al. 2009 (roofline)
int64_t units_of(const Work& work, DType dtype);
inline constexpr int64_t kFlopsPerByte = 10;

}  // namespace vitrine
