// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include <vitrine/runtime/view.h>

namespace vitrine {

/// A batch in host memory, or the part of it that one process has: what a loader returns and the engine takes.
///
/// The engine reads the memory until it has returned the step's results or thrown an error: when training diverges, it
/// runs the batch again to find the first layer that is not finite. It keeps a copy of `hold` until then.
struct HostBatch {
  /// (B, h, w, C) u8 or (B, H, W, C) f32; or other inputs (B, ...) f32. Empty: `samples` names images that the devices
  /// hold.
  ConstView images;
  ConstView labels;            // i32, of Model::label_shape(B)
  std::shared_ptr<void> hold;  // keeps the memory alive; a loader reuses its buffers once the last copy is gone
  /// Samples of the global batch, over all processes: each process has the rows that part_of_process() names, one range
  /// after the other, and B may be 0. 0: this batch is all of it.
  int64_t global_samples = 0;

  // Its place in the data set, from a loader:
  int64_t epoch = 0;
  int64_t index = 0;  // within the epoch
  bool last_of_epoch = false;
  /// (B) i32: index of each sample in the data set; the engine needs it to augment images, and for images that the
  /// devices hold, else it may be empty.
  ConstView samples = {};
};

}  // namespace vitrine
