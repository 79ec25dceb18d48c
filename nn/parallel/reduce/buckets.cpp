// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/reduce/buckets.h"

namespace vitrine {

int64_t finished_elements(const FlatLayout& layout, int parameter) {
  while (parameter > 0 && !layout.specs()[static_cast<size_t>(parameter) - 1].trained) --parameter;
  return parameter > 0 ? layout.offset(parameter - 1) : layout.trained_elements();
}

std::vector<Bucket> make_buckets(const FlatLayout& layout, int64_t first_bucket_bytes, int64_t bucket_bytes) {
  std::vector<Bucket> buckets(1);
  for (int i = layout.size(); i-- > 0;) {
    const int64_t begin = layout.offset(i), end = finished_elements(layout, i);
    const int64_t limit = (buckets.size() == 1 ? first_bucket_bytes : bucket_bytes) / size_of(DType::f32);
    // A bucket ends before the parameter that would make it too large.
    if (begin > buckets.back().begin && end - buckets.back().begin > limit)
      buckets.push_back({begin, begin, begin, {}});
    buckets.back().end = buckets.back().parameters_end = end;
  }
  buckets.back().end = layout.total_elements();
  for (size_t i = 0; i < buckets.size(); ++i) buckets[i].name = "bucket " + std::to_string(i);
  return buckets;
}

}  // namespace vitrine
