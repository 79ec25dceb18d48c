// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "nn/parameter_store.h"

namespace vitrine {

/// Contiguous ranges of the flat gradients, in the order in which backward finishes them. The last one takes the tail along.
struct Bucket {
  int64_t begin = 0, end = 0;  // elements
  std::string name;            // "bucket 0", ...: its label in traces
};

/// Cuts the gradients at parameter boundaries into buckets of at most bucket_bytes (a larger parameter makes a larger bucket), the first of at most
/// first_bucket_bytes: it can start earliest.   source  Li et al., "PyTorch Distributed", VLDB 2020
std::vector<Bucket> make_buckets(const FlatLayout& layout, int64_t first_bucket_bytes, int64_t bucket_bytes);

/// finished[i]: elements from the start of the flat buffer that are final once the gradients of parameters i and later are.
std::vector<int64_t> finished_elements(const FlatLayout& layout);

}  // namespace vitrine
