// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nn/parallel/reduce/reducer.h"

/// Private to nn/parallel.
namespace vitrine {

/// The gradients as collectives send them: the flat f32 buffer itself or, with Precision::reduce_dtype, a 16-bit copy
/// of it and the tail in f32.
class WireGradients {
 public:
  /// Allocates the 16-bit copy (Category::communication), if there is one. throws OutOfMemory.
  explicit WireGradients(const ReducerContext& replica);

  /// In step 0 the 16-bit copy is reduced beside the f32 gradients, and unpack() measures the difference of the sums.
  void begin_step(int64_t step) { measures_ = packs() && step == 0; }
  /// Queues the rounding of elements [begin, end) on the compute stream. Does nothing in f32.
  void pack(int64_t begin, int64_t end);
  /// Calls sum(view) for each view that has to be summed for elements [begin, end); an end beyond the parameters
  /// includes the tail.
  template <class Sum>
  void for_each_view(int64_t begin, int64_t end, const Sum& sum) const {
    if (!packs()) return sum(replica_.gradients.rows(begin, end));
    const int64_t parameters_end = std::min(end, replica_.layout.parameter_elements());
    sum(packed_.view().rows(begin, parameters_end));
    if (measures_) sum(replica_.gradients.rows(begin, parameters_end));
    // Sixteen bits cannot hold counts of targets.
    if (end > parameters_end) sum(replica_.tail());
  }
  /// Queues on the compute stream: the sums go to the flat gradients. Does nothing in f32.
  void unpack();
  View error() const { return measures_ ? error_.view() : View(); }

 private:
  bool packs() const { return static_cast<bool>(packed_); }
  /// Without the tail.
  View gradients() const { return replica_.gradients.rows(0, replica_.layout.parameter_elements()); }

  const ReducerContext& replica_;
  Tensor packed_;  // of the parameters' elements; empty in f32
  Tensor error_;   // (2) f32
  bool measures_ = false;
};

}  // namespace vitrine
