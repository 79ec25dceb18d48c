// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <vitrine/data/dataset.h>
#include <vitrine/runtime/host_batch.h>
#include <vitrine/runtime/host_buffer.h>
#include <vitrine/runtime/row_range.h>

namespace vitrine {

/// Selects the rows of one process in a global batch of that size: ascending, disjoint, possibly none. Must be pure:
/// one size, one result.
using ShardFunction = std::function<std::vector<RowRange>(int64_t global_rows)>;

/// Sum of the lengths of one process's ranges.
/// throws ConfigError if a range exceeds the batch, ends before it begins, or begins before the previous one ends.
int64_t count_rows(const std::vector<RowRange>& ranges, int64_t global_rows);

class OrderChecker;

/// Converts one u8 image (h, w, C) into `output` (H*W*C floats): preprocessing on the host.
using ImageTransform = std::function<void(std::span<const uint8_t> image, std::span<float> output)>;

struct LoaderConfig {
  int64_t batch_size = 64;  // over all processes
  bool shuffle = true;
  bool drop_last = false;
  uint64_t seed = 0;
  int64_t first_epoch = 0;
  int64_t epochs = 1;       // afterwards next() returns nothing
  int64_t first_batch = 0;  // batches of the first epoch that are left out, for a run that continues within an epoch
  int workers = 1;          // threads that fill batches
  int queue_batches = 3;    // number of buffers: filled ahead or in use
  HostMemory host_memory = HostMemory::pageable;  // pinned for GPUs: see DeviceGroup::host_memory()
  bool sample_indices = false;                    // sets HostBatch::samples, for a data set of less than 2^31 samples
  bool images = true;             // false: HostBatch::images stays empty and no image is read; needs sample_indices
  ShardFunction shard = {};       // selects the delivered rows of each batch; empty: all
  ImageTransform transform = {};  // empty: images stay u8
  Shape transformed_shape = {};   // (H, W, C) with a transform
  /// If set, releasing a batch while a stream may still read it is an OrderError, thrown by the following next(). Must
  /// outlive all batches; see DeviceGroup::checker().
  OrderChecker* checker = nullptr;
};

/// Delivers batches of a data set in order, filled ahead by worker threads in a bounded set of buffers. The order is
/// independent of the number of workers. With `shard`, loaders with the same data set and seed deliver their own rows
/// of the same batches; nothing else depends on the shard. It is called in the constructor, once for each possible
/// batch size.
class Loader {
 public:
  /// requires a data set that outlives the loader. throws ConfigError for invalid sizes and shards.
  Loader(const Dataset& dataset, LoaderConfig config);
  /// Stops the workers.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Returns the next batch, or nothing at the end. Blocks until one is ready. Rethrows a worker's exception.
  /// Cannot deadlock while the caller holds fewer than queue_batches batches (asserted).
  std::optional<HostBatch> next();
  /// What next() will throw for one of the next `count` batches; null if it will not. Blocks until they are filled.
  /// requires that they and those that the caller holds are at most queue_batches (asserted)
  std::exception_ptr error_within(int64_t count);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vitrine
