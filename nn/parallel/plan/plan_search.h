// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <vitrine/nn/parallel/engine.h>
#include <vitrine/runtime/reason.h>

namespace vitrine {

/// The configuration with a split by these numbers of samples of each device.
EngineConfig with_slices(EngineConfig config, const std::vector<int64_t>& slices);

/// A configuration with its plan.
struct Fit {
  EngineConfig config;
  Workload workload;
  std::vector<DevicePlan> plans;  // of this process's devices
  std::vector<int64_t> headroom;  // capacity less peak, bytes; below 0 where it does not fit
  std::vector<int64_t> slices;    // samples of each device in the largest micro-batch

  bool fits() const;
  /// The least headroom of any device.
  int64_t tightest() const;
};

/// Searches configurations that fit the devices' memory, by plans alone: runs nothing and allocates nothing on a
/// device. With several processes it considers only this process's devices.
class PlanSearch {
 public:
  /// model and devices must outlive it. The workload's `under` gives that of other batch sizes.
  PlanSearch(const Model& model, DeviceGroup& devices, EngineConfig config, Workload workload);

  const Model& model() const { return model_; }
  DeviceGroup& devices() const { return devices_; }
  const EngineConfig& config() const { return config_; }
  const Workload& workload() const { return workload_; }
  /// The search of another configuration of the same run.
  PlanSearch with(EngineConfig config) const { return {model_, devices_, std::move(config), workload_}; }
  /// False for an engine that only evaluates, of which only the batch size can change.
  bool trains() const { return !workload_.train_batches.empty(); }
  /// False where CPU devices have all of the available memory, so that a larger capacity would not help.
  bool capacity_is_given() const;
  /// With a workspace that does not shrink: full_workspace_bytes().
  /// throws ConfigError, ShapeError as plan_memory() does; SearchStopped, as all searches do, if Workload::stop says
  /// so.
  Fit plan(const EngineConfig& config) const;
  /// Plans equal shares of each micro-batch if they fit, otherwise the split that makes the least headroom of any
  /// device as large as possible (the split becomes weights). Starts as if peaks were linear in the slice, then moves
  /// single samples while the exact plan improves. With several processes: plans the split as it is.
  Fit even_split(const EngineConfig& config) const;

  /// Settings that a search may also choose, in addition to the one that it searches.
  struct SearchSpace {
    bool split = false;      // each candidate gets its even_split(), the answer the split nearest to equal shares
    bool recompute = false;  // and the fewest segments of activation checkpointing with which it fits
  };
  /// The largest batch size up to `most` that fits, by bisection; eight sizes beyond the result are tried too, because
  /// a plan need not grow with each sample. None: not even the smallest fits.
  std::optional<Fit> largest_batch(int64_t most, SearchSpace space) const;
  /// The fewest micro-batches. None: not even micro-batches of a sample for each device fit.
  std::optional<Fit> fewest_micro_batches(SearchSpace space) const;
  /// The configuration, changed only in what `space` allows. None: it does not fit.
  std::optional<Fit> as_it_is(SearchSpace space) const;

  /// "cpu:1: 3.1 MiB + 16 samples x 2.0 MiB = 35.1 MiB of 40.0 MiB, 4.9 MiB free", a line for each device: its peak as
  /// a line through this plan and that of half the batch.
  std::vector<std::string> arithmetic(const Fit& fit) const;

 private:
  /// even_split(), if it fits moved towards equal shares as far as it still fits.
  Fit nearest_to_equal(const EngineConfig& config) const;
  /// Fits if something that `space` allows does.
  Fit best_of(const EngineConfig& config, SearchSpace space) const;
  /// best_of(), or none if the model cannot train on so few samples: batch norm needs more than one value.
  std::optional<Fit> candidate(const EngineConfig& config, SearchSpace space) const;
  /// The best that `space` allows for what was found to fit.
  std::optional<Fit> answer(std::optional<Fit> fit, SearchSpace space) const;

  const Model& model_;
  DeviceGroup& devices_;
  EngineConfig config_;
  Workload workload_;
};

}  // namespace vitrine
