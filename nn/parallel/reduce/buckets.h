// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "nn/parameter_store.h"

/// Private to nn/parallel.
namespace vitrine {

/// A contiguous range of the flat gradients. Buckets follow each other in the order in which backward finishes them;
/// the last one includes the tail.
struct Bucket {
  int64_t begin = 0, end = 0;  // elements
  int64_t parameters_end = 0;  // the end without the tail: the bucket is final when these elements are
  std::string name;            // "bucket 0", ...: its label in traces
};

/// Elements from the start of the flat gradients that are final once those of `parameter` (an index in `layout`, which
/// may have frozen parameters) and all later ones are: gradients lie in reverse order.
int64_t finished_elements(const FlatLayout& layout, int parameter);

/// Cuts the gradients at parameter boundaries into buckets of at most bucket_bytes (a larger parameter makes a larger
/// bucket), the first of at most first_bucket_bytes: it can start earliest.   source  Li et al., "PyTorch Distributed",
/// VLDB 2020
std::vector<Bucket> make_buckets(const FlatLayout& layout, int64_t first_bucket_bytes, int64_t bucket_bytes);

}  // namespace vitrine
