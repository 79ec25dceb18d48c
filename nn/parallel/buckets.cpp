// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/buckets.h"

#include <algorithm>
#include <numeric>

namespace vitrine {

std::vector<Bucket> make_buckets(const FlatLayout& layout, int64_t first_bucket_bytes, int64_t bucket_bytes) {
  std::vector<int64_t> starts(static_cast<size_t>(layout.size()));
  for (int i = 0; i < layout.size(); ++i) starts[static_cast<size_t>(i)] = layout.offset(i);
  std::sort(starts.begin(), starts.end());
  starts.push_back(layout.parameter_elements());
  std::vector<Bucket> buckets;
  int64_t begin = 0;
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    const int64_t limit = (buckets.empty() ? first_bucket_bytes : bucket_bytes) / size_of(DType::f32);
    // Would the next parameter make it too large? Then it ends before it.
    if (i + 2 == starts.size() || starts[i + 2] - begin > limit) {
      buckets.push_back({begin, starts[i + 1], {}});
      begin = starts[i + 1];
    }
  }
  if (buckets.empty()) buckets.push_back({});
  buckets.back().end = layout.total_elements();
  for (size_t i = 0; i < buckets.size(); ++i) buckets[i].name = "bucket " + std::to_string(i);
  return buckets;
}

std::vector<int64_t> finished_elements(const FlatLayout& layout) {
  std::vector<int64_t> starts(static_cast<size_t>(layout.size()));
  for (int i = 0; i < layout.size(); ++i) starts[static_cast<size_t>(i)] = layout.offset(i);
  std::vector<int64_t> sorted = starts;
  std::sort(sorted.begin(), sorted.end());
  sorted.push_back(layout.parameter_elements());
  std::vector<int64_t> finished(starts.size());
  // Parameters i, i + 1, ... lie at the front of the buffer: it is final up to the end of the one that lies last.
  int64_t end = 0;
  for (size_t i = starts.size(); i-- > 0;) {
    end = std::max(end, *std::upper_bound(sorted.begin(), sorted.end(), starts[i]));
    finished[i] = end;
  }
  return finished;
}

}  // namespace vitrine
