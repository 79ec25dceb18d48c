// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace vitrine {

/// A collective as one device began it: the values that must be equal on all devices, and the description for messages.
struct CollectiveRecord {
  uint64_t sequence = 0;   // within its group of communicators, from 0
  uint64_t signature = 0;  // of operation, dtype, counts, root, label and step
  std::string operation;   // "all_reduce"
  std::string label;       // "bucket 3", or empty
  std::string phase;       // "reduce"
  int64_t step = 0;
  int64_t bytes = 0;            // size of a rank's buffer
  int group = 0;                // group of communicators, in order of creation
  bool end_is_reported = true;  // the process group is notified when it is finished
  bool in_graph = false;        // launched in a CUDA graph

  /// "collective 17 (all_reduce of bucket 3, 1048576 bytes, phase reduce, step 5)"; groups other than the first:
  /// "collective 17 of group 1 (...)"; in a CUDA graph: "(..., step 5, in a CUDA graph)".
  std::string str() const;
};

}  // namespace vitrine
