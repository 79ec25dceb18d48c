// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <vitrine/nn/parallel/plan/memory_plan.h>
#include <vitrine/runtime/reason.h>

namespace vitrine {

/// Workload::stop ended a search for configurations that fit.
class SearchStopped : public std::exception {
 public:
  const char* what() const noexcept override { return "the search for a configuration that fits was stopped"; }
};

/// The configuration with a split by these numbers of samples of each device.
EngineConfig with_slices(EngineConfig config, const std::vector<int64_t>& slices);

/// The devices for which a plan is made: those of this process; of a group of meta devices those of all processes,
/// which it opens like this one's.
class PlannedDevices {
 public:
  /// devices must outlive it.
  explicit PlannedDevices(DeviceGroup& devices);

  /// One group for each process.
  const std::vector<DeviceGroup*>& groups() const { return groups_; }
  int size() const { return static_cast<int>(devices_.size()); }
  Device& operator[](int i) const { return *devices_[static_cast<size_t>(i)]; }
  /// Among the devices of all processes.
  int rank(int i) const { return first_rank_ + i; }
  /// "cpu:0"; of several processes "rank 1 cpu:0", with the rank of the process.
  std::string name(int i) const;
  /// plan_memory() of all groups.
  std::vector<DevicePlan> plan(const Model& model, const EngineConfig& config, const Workload& workload,
                               PlanDetail detail = PlanDetail::peaks) const;

 private:
  std::vector<std::unique_ptr<DeviceGroup>> others_;
  std::vector<DeviceGroup*> groups_;
  std::vector<Device*> devices_;
  int first_rank_ = 0;
};

/// A configuration with its plan.
struct Fit {
  EngineConfig config;
  Workload workload;
  std::vector<DevicePlan> plans;  // of PlannedDevices
  std::vector<int64_t> headroom;  // capacity less peak, bytes; below 0 where it does not fit
  std::vector<int64_t> slices;    // samples of each device in the largest micro-batch

  bool fits() const;
  /// The least headroom of any device.
  int64_t tightest() const;
};

/// Searches configurations that fit the devices' memory, by plans alone: runs nothing and allocates nothing on a
/// device. It considers PlannedDevices.
class PlanSearch {
 public:
  /// model and devices must outlive it. The workload's `under` gives that of other batch sizes.
  PlanSearch(const Model& model, DeviceGroup& devices, EngineConfig config, Workload workload);

  const Model& model() const { return model_; }
  DeviceGroup& devices() const { return devices_; }
  const PlannedDevices& planned() const { return *planned_; }
  const EngineConfig& config() const { return config_; }
  const Workload& workload() const { return workload_; }
  /// The search of another configuration of the same run.
  PlanSearch with(EngineConfig config) const;
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

  /// "cpu:1: 3.1 MiB + 16 samples x 2.0 MiB = 35.1 MiB of 40.0 MiB, 4.9 MiB free", a line for each device, with several
  /// processes for those that differ: its peak as a line through this plan and that of half the batch.
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
  std::shared_ptr<const PlannedDevices> planned_;
  EngineConfig config_;
  Workload workload_;
};

}  // namespace vitrine
