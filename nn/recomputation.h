// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <vitrine/nn/sequential.h>

namespace vitrine {

/// Memory and work of a part that computes, in bytes of whole blocks.
struct PartCost {
  int part = 0;        // its index in the model
  int64_t input = 0;   // the block of its input, which is the output of the part before it
  int64_t output = 0;  // 0: memory that is held anyway
  int64_t own = 0;     // what it keeps beside its input and output
  bool keeps_input = false, keeps_output = false;
  bool in_place = false;      // writes over its input, unless a run of parts begins with it
  int64_t forward = 0;        // what a forward pass allocates at most, beside the output
  int64_t recompute = 0;      // the same when it is computed again
  int64_t backward = 0;       // what a backward pass allocates at most, beside the gradient of the input
  int64_t grad_output = 0;    // the block of the gradient of its output
  int64_t grad_input = 0;     // 0: none is computed, or it overwrites grad_output
  bool runs_backward = true;  // false: no part before or at this one has parameters
  int64_t work = 0;           // of a forward pass, in any unit
};

/// The memory of one device over a step as a sum of blocks: of a step recorded without recomputation, with other
/// activations.
struct RecomputationModel {
  std::vector<PartCost> parts;  // those that compute, in their order
  int64_t base = 0;             // held during forward and backward, beside activations and gradients of activations
  int64_t gathered = 0;         // held during forward in addition
  int64_t loss = 0;             // held at most between them, beside what the parts keep and the output
  int64_t other = 0;            // held at most outside of them
  bool input_is_held = false;   // the model's input lies in memory of the base
};

/// A choice of what is recomputed: segments that begin and end at parts that compute.
struct RecomputationChoice {
  std::vector<PartRange> recomputed;
  int64_t peak_bytes = 0;  // in the model
  int64_t work = 0;        // of recomputation
};

/// Sets PartCost::grad_output of all parts, starting with `last` for the last one. A layer that overwrites the gradient
/// of its output leaves the block as it is.
void set_gradients(std::vector<PartCost>& parts, int64_t last);

/// What is kept at the end of the forward pass, without and with the output of the model.
struct KeptBytes {
  int64_t parts = 0, with_output = 0;
};
KeptBytes kept_after_forward(const RecomputationModel& model, const std::vector<PartRange>& recomputed);

/// The largest sum of bytes in use at once under a choice. requires segments with parts that compute, without the last
/// of these
int64_t peak_of(const RecomputationModel& model, const std::vector<PartRange>& recomputed);

/// The choice with the least work among all whose peak is at most `most_bytes`; nothing if there is none. Choices are
/// all sets of disjoint segments of consecutive parts. The last part that computes is never recomputed: backward begins
/// there. Exact for this model, in which every block has a known size and no gaps lie between blocks: dynamic
/// programming from the first part to the last. What later parts add to the peak depends on earlier ones only by the
/// sum of bytes that they keep, so for each part it keeps only the pairs of kept bytes and work that no other pair
/// improves on in both.
///   source  Chen et al. 2016 (segments); Beaumont et al. 2019 (Rotor: dynamic programming over chains of different
///           layers); Jain et al. 2020 (Checkmate: the same question for any graph, as an integer program)
std::optional<RecomputationChoice> cheapest_recomputation(const RecomputationModel& model, int64_t most_bytes);

/// Choices from nothing recomputed to the lowest peak, each the cheapest_recomputation() for its own peak: each has a
/// lower peak and more work than the one before it. `step_bytes` is the least by which peaks differ, except for the
/// last one; 1 gives all.
std::vector<RecomputationChoice> recomputation_frontier(const RecomputationModel& model, int64_t step_bytes);

}  // namespace vitrine
