// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <vitrine/data/dataset.h>
#include <vitrine/data/shard.h>
#include <vitrine/runtime/host_batch.h>
#include <vitrine/runtime/host_buffer.h>

namespace vitrine {

class OrderChecker;

/// Turns one u8 image (h, w, C) into `output` (H*W*C floats); see data preprocessing on the host.
using ImageTransform = std::function<void(std::span<const uint8_t> image, std::span<float> output)>;

struct LoaderConfig {
  int64_t batch_size = 64;  // over all processes
  bool shuffle = true;
  bool drop_last = false;
  uint64_t seed = 0;
  int64_t first_epoch = 0;
  int64_t epochs = 1;                             // then next() returns nothing
  int workers = 1;                                // threads that fill batches
  int queue_batches = 3;                          // buffers: filled ahead or in use
  HostMemory host_memory = HostMemory::pageable;  // pinned for GPUs: see DeviceGroup::host_memory()
  ShardFunction shard = {};                       // the rows of each batch that are delivered; empty: all
  ImageTransform transform = {};                  // empty: images stay u8
  Shape transformed_shape = {};                   // (H, W, C) when there is a transform
  /// Where given, a batch that is let go of while a stream may still read it is an OrderError, thrown by the next next(). Outlives all batches; see
  /// DeviceGroup::checker().
  OrderChecker* checker = nullptr;
};

/// Batches of a data set in order, filled ahead by worker threads into a bounded set of buffers. The order does not depend on the number of workers.
/// With `shard`, loaders of one data set and seed deliver the same batches, each its own rows of them: nothing else depends on the shard. It is asked
/// when the loader is made, once for each size that a batch can have.
class Loader {
 public:
  /// The data set must outlive the loader. throws ConfigError on sizes and shards that cannot be.
  Loader(const Dataset& dataset, LoaderConfig config);
  /// Stops the workers, whatever they do.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next batch, or nothing at the end. Blocks while none is ready. Rethrows a worker's exception.
  /// A deadlock is impossible as long as the caller holds fewer than queue_batches batches (asserted).
  std::optional<HostBatch> next();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vitrine
