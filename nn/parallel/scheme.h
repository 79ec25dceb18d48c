// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <vitrine/runtime/row_range.h>

namespace vitrine {

/// How the samples of a micro-batch are divided among the devices.
struct Split {
  enum class Kind { equal, weights, gpu0 } kind = Kind::equal;
  std::vector<double> weights;  // Kind::weights: one for each device, >= 0
  int64_t gpu0 = 0;  // Kind::gpu0: samples of device 0 per optimizer step; the rest is split equally over the others
  /// Exact mode: the batch is cut into this many leaves (leaf_begin()), and devices and micro-batches get whole ones;
  /// device 0's share of Kind::gpu0 is rounded down to leaves. 0: samples are split.
  int leaves = 0;
  std::string str() const;  // "equal", "2,3,3", "gpu0=4"
};

enum class Staging { device0, host };
enum class LossAt { gathered, parallel };
/// Which Reducer sums the gradients: on device 0, or all-reduced (make_reducer()).
enum class ReducerKind { gpu0, allreduce };
/// What each replica holds a part of, instead of all: nothing; the optimizer's states and averages; these and the
/// gradients; or these and the parameters. Each includes those before it.
enum class Sharding { none, optimizer, gradients, parameters };
/// "none", "optimizer", "gradients", "parameters".
const std::vector<std::string>& sharding_names();
inline const char* sharding_name(Sharding shard) { return sharding_names()[static_cast<size_t>(shard)].c_str(); }

/// A point on the axes along which data-parallel schemes differ.
struct Scheme {
  Split split;
  Staging staging = Staging::host;
  LossAt loss_at = LossAt::parallel;
  ReducerKind reduce = ReducerKind::allreduce;
  Sharding shard = Sharding::none;  // needs ReducerKind::allreduce
  int output_device = 0;            // ordinal: where outputs are gathered (LossAt::gathered)

  bool shards(Sharding what) const { return shard >= what; }
};
/// Whether they differ in nothing but their split and output device.
inline bool same_axes(const Scheme& a, const Scheme& b) {
  return a.staging == b.staging && a.loss_at == b.loss_at && a.reduce == b.reduce && a.shard == b.shard;
}

/// "dp", "balanced", "criterion", "ddp", "zero1", "zero2", "zero3", in the order of messages and help texts.
const std::vector<std::string>& scheme_names();
/// dp         equal, device0, gathered, gpu0: torch.nn.DataParallel
/// balanced   dp with a smaller share for device 0: transformer-XL's BalancedDataParallel; its split must be given
///            (`gpu0=N`)
/// criterion  equal, device0, parallel, gpu0: PyTorch-Encoding's DataParallelModel and DataParallelCriterion
/// ddp        equal, host, parallel, allreduce: DistributedDataParallel
/// zero1      ddp with sharded optimizer states: ZeRO stage 1, ZeroRedundancyOptimizer
/// zero2      zero1 with sharded gradients: ZeRO stage 2
/// zero3      zero2 with sharded parameters: ZeRO stage 3, FullyShardedDataParallel; also by the name "fsdp"
/// throws ConfigError with the names of all schemes.
Scheme scheme_preset(std::string_view name);

/// "equal", "2,3,3", "gpu0=N". throws ConfigError.
Split parse_split(std::string_view text);
/// throws ConfigError on weights for another number of devices or all zero, gpu0 larger than the batch, gpu0 below the
/// batch with a single device.
void validate_split(const Split& split, int64_t batch_size, int device_count);

/// Where each sample of one optimizer step goes.
struct BatchPlan {
  int64_t batch_size = 0;
  /// sizes[k][d]: samples of device d in micro-batch k; first[k][d]: position of its first one in the global batch.
  /// Slices are contiguous, in device order within a micro-batch, micro-batches one after the other.
  std::vector<std::vector<int64_t>> sizes, first;
  /// leaves[k][d]: numbers of the leaves of device d in micro-batch k; empty without Split::leaves.
  std::vector<std::vector<RowRange>> leaves;

  int micro_batches() const { return static_cast<int>(sizes.size()); }
  int64_t micro_batch_size(int k) const;
  /// Samples of device d in the whole step.
  int64_t device_samples(int d) const;
  /// Largest slice of device d in any micro-batch.
  int64_t largest_slice(int d) const;
};

int64_t row_count(const std::vector<RowRange>& rows);

/// `total` in `parts` sizes that differ by at most one, larger first.
std::vector<int64_t> equal_parts(int64_t total, int parts);
/// `total` by largest remainder, ties to the lower index.
std::vector<int64_t> weighted_parts(int64_t total, const std::vector<double>& weights);

/// First sample of leaf `leaf` of `leaves`: a leaf is a fixed range of samples, shorter or empty in a short batch.
inline int64_t leaf_begin(int64_t batch_size, int leaves, int64_t leaf) { return leaf * batch_size / leaves; }

/// Cuts a batch into micro-batches whose sizes differ by at most one, larger first, and splits each. A batch smaller
/// than gpu0=N (a short last one) goes to device 0 as a whole.
BatchPlan plan_batch(const Split& split, int64_t batch_size, int accumulate, int device_count);

/// The samples that the devices of one process compute at once: forward and backward run once for each micro-batch of a
/// step.
struct MicroBatch {
  std::vector<int64_t> sizes;  // samples of each device of the process
  int64_t first_row = 0;       // of its first sample, in this process's part of the batch
  int64_t position = 0;        // of its first sample, in the global batch
  bool last = true;            // of the step
  int64_t global_samples = 0;  // of the micro-batch, of all processes; 0: those of this process
  int index = 0;               // among the micro-batches of the step
  // Exact mode:
  std::vector<RowRange> leaves = {};  // numbers of each device's leaves
  RowRange all_leaves = {};           // those of all devices of all processes

  int64_t samples() const;
};

/// What one process needs to know about a step; its size does not depend on the number of processes.
struct ProcessPart {
  std::vector<MicroBatch> micro_batches;  // those in which any process has a sample
  /// Ranges of the global batch, in the order in which the devices take them: at most one range per micro-batch,
  /// because a process's devices are consecutive.
  std::vector<RowRange> rows;
};
/// The samples of one micro-batch that the devices of one process compute, which begin at `first_row` of its part.
MicroBatch micro_batch_of_process(const BatchPlan& plan, int micro_batch, int first_device, int device_count,
                                  int64_t first_row);
///   first_device  the process's first device among those of all processes
ProcessPart part_of_process(const BatchPlan& plan, int first_device, int device_count);

}  // namespace vitrine
