// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/reduce/all_reduce_reducer.h"

namespace vitrine {

AllReduceReducer::AllReduceReducer(const ReducerContext& replica)
    : replica_(replica),
      wire_(replica),
      overlap_(replica.device),
      buckets_(replica.world_size > 1
                   ? make_buckets(replica.layout, replica.config.first_bucket_bytes, replica.config.bucket_bytes)
                   : std::vector<Bucket>{}) {}

void AllReduceReducer::begin_step(int64_t step) {
  next_ = 0;
  wire_.begin_step(step);
}

void AllReduceReducer::add(int64_t finished_elements) {
  while (next_ < buckets_.size() && buckets_[next_].parameters_end <= finished_elements) reduce(buckets_[next_++]);
}

void AllReduceReducer::reduce(const Bucket& bucket) {
  wire_.pack(bucket.begin, bucket.parameters_end);
  overlap_.start(Phase::reduce, bucket.name.c_str(), "backward", [&](ExecContext& communication) {
    wire_.for_each_view(bucket.begin, bucket.end,
                        [&](const View& view) { replica_.communicator->all_reduce(communication, view); });
  });
}

void AllReduceReducer::finish() {
  add(replica_.layout.parameter_elements());
  if (replica_.world_size == 1) return;
  overlap_.join("reduce");
  wire_.unpack();
}

}  // namespace vitrine
