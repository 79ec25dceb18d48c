// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/reduce/reducers.h"

namespace vitrine {

AllReduceReducer::AllReduceReducer(const ReducerContext& replica)
    : replica_(replica),
      wire_(replica),
      squares_(replica),
      overlap_(replica.device),
      buckets_(replica.world_size > 1 || squares_.active()
                   ? make_buckets(replica.layout, replica.config.first_bucket_bytes, replica.config.bucket_bytes)
                   : std::vector<Bucket>{}) {}

void AllReduceReducer::begin_step(int64_t step) {
  next_ = 0;
  wire_.begin_step(step);
  squares_.begin_step();
}

void AllReduceReducer::add(int64_t finished_elements) {
  while (next_ < buckets_.size() && buckets_[next_].parameters_end <= finished_elements) reduce(buckets_[next_++]);
}

void AllReduceReducer::reduce(const Bucket& bucket) {
  if (alone() && !squares_.has_work(bucket.parameters_end)) return;
  wire_.pack(bucket.begin, bucket.parameters_end);
  const Phase phase = alone() ? Phase::decide : Phase::reduce;
  overlap_.start(phase, bucket.name.c_str(), "backward", [&](ExecContext& communication) {
    if (alone()) return squares_.add(bucket.parameters_end);
    if (squares_.all_reduce(bucket)) return;
    wire_.for_each_view(bucket.begin, bucket.end,
                        [&](const View& view) { replica_.communicator->all_reduce(communication, view); });
    squares_.add(bucket.parameters_end);
  });
}

void AllReduceReducer::finish() {
  add(replica_.layout.parameter_elements());
  if (alone() && squared().elements == 0) return;
  overlap_.join("reduce");
  wire_.unpack();
}

}  // namespace vitrine
