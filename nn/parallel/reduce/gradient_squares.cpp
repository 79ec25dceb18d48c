// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/reduce/gradient_squares.h"

#include "runtime/comm/capabilities.h"
#include "runtime/square_sums.h"

namespace vitrine {

GradientSquares::GradientSquares(const ReducerContext& replica) : replica_(replica) {
  const EngineConfig& config = replica.config;
  const int64_t elements = replica.layout.parameter_elements();
  const bool checks = config.non_finite() != NonFinite::accept || config.precision.loss_scaling.active();
  const bool rounds = config.precision.reduce_dtype != DType::f32;  // the sums are rounded when all are there
  const bool decide_step_squares = replica.world_size == 1 && replica.device.target().backend != Backend::cuda;
  if (!checks || rounds || decide_step_squares || elements < kLeastElements) return;
  // Each range that is squared may end with a tile that is not full, and holds a parameter or more.
  const Category category = replica.world_size > 1 ? Category::communication : Category::gradients;
  sums_ = replica.device.compute().allocate({elements / kSquareTile + replica.layout.size(), 2}, DType::i32, category,
                                            "sums of squares");
}

View GradientSquares::take(int64_t end) {
  const int64_t first = tiles_;
  tiles_ += square_tiles(end - elements_);
  elements_ = end;
  return sums_.view().rows(first, tiles_);
}

bool GradientSquares::all_reduce(const Bucket& bucket) {
  auto* const squaring = dynamic_cast<SquaringCommunicator*>(replica_.communicator);
  if (!active() || squaring == nullptr) return false;
  squaring->all_reduce_and_square(replica_.device.communication(), replica_.gradients.rows(bucket.begin, bucket.end),
                                  bucket.parameters_end - bucket.begin, take(bucket.parameters_end));
  return true;
}

bool GradientSquares::has_work(int64_t finished_elements) const {
  const bool at_the_end = finished_elements == replica_.layout.parameter_elements();
  return active() && !at_the_end && finished_elements - elements_ >= kLeastElements;
}

void GradientSquares::add(int64_t finished_elements) {
  if (!has_work(finished_elements)) return;
  const View gradients = replica_.gradients.rows(elements_, finished_elements);
  sum_squares(replica_.device.communication(), gradients, take(finished_elements));
}

}  // namespace vitrine
