// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "tools/program/flags/options.h"

namespace vitrine::tools {

/// busbw / algbw as in nccl-tests: how often the slowest link carries each byte. source  nccl-tests, doc/PERFORMANCE.md
///   counts  part sizes of scatter and gather, if they differ; the root keeps its own part
double bus_factor(Collective collective, int ranks, const std::vector<int64_t>& counts = {}, int root = 0);

/// One size of one collective, timed in one of the two ways (in place or not).
struct CollectiveTiming {
  double seconds = 0;  // per operation, on average
  /// The first kMostSingle operations one by one, each on this process's slowest device.
  double least_seconds = 0, median_seconds = 0, p99_seconds = 0;
  std::optional<int64_t> wrong;  // wrong elements over all ranks; nothing if not checked
};

/// Whether other work on the machine shows in the average: single operations take less than half of it.
bool is_disturbed(const CollectiveTiming& timing);

/// The p-th percentile by nearest rank; 0 without values.
double percentile(std::vector<double> values, double p);

/// Ranks on devices, of all processes of the devices' process group, with buffers for collectives of up to
/// `most_bytes`.
class CollectiveBench {
 public:
  struct Config {
    DType dtype = DType::f32;
    ReduceOp op = ReduceOp::sum;
    std::vector<int64_t> counts = {};  // relative part sizes of scatter and gather; empty: equal
    int64_t most_bytes = 0;
  };
  /// throws ConfigError unless there is a count for each rank.
  CollectiveBench(const DeviceGroupOptions& devices, Config config);

  /// The ranks of all processes.
  int ranks() const { return devices_->world_size(); }
  DeviceGroup& devices() { return *devices_; }
  std::string communicator() const { return communicators_[0]->description(); }

  struct Run {
    Collective collective = Collective::all_reduce;
    int64_t bytes = 0;  // of the larger of a rank's two buffers
    int root = 0;
    int warm_up = 5, iterations = 20;
    bool check = true;
    bool in_place = false;
  };
  /// Elements in the smaller of a rank's two buffers, as nccl-tests count them; the largest one if parts differ.
  int64_t count(Collective collective, int64_t bytes) const;
  /// The bytes of the larger buffer that a collective of `bytes` uses: parts are whole elements, so a remainder stays
  /// unused. 0 if `bytes` is below least_bytes().
  int64_t used_bytes(Collective collective, int64_t bytes) const;
  /// The bytes with which every part that is not empty has an element, and uneven parts have the ratio of the counts.
  int64_t least_bytes(Collective collective) const;
  CollectiveTiming time(const Run& run);
  /// Whether the condition holds in any process. Every process calls it.
  bool any(bool here);

 private:
  struct Buffers {
    ConstView input;
    View output;
  };
  static constexpr int kMostSingle = 10000;

  /// How the whole is divided: the ranks' parts, one to another.
  std::vector<int64_t> ratio(Collective collective) const;
  /// Elements of each rank's part.
  std::vector<int64_t> parts(Collective collective, int64_t bytes) const;
  /// Times single operations with events. Each device's thread calls it.
  struct Series {
    std::vector<std::unique_ptr<Event>> points;  // before the first operation, and after each
  };
  // `device` is a device of this process, `rank` its rank among all devices.
  int rank_of(int device) const { return devices_->first_rank() + device; }
  Buffers buffers(const Run& run, int device) const;
  void issue(const Run& run, int device);
  void for_each_device(const std::function<void(int)>& work);
  /// Waits for the devices.
  void synchronize();
  /// Returns when every process has arrived; `sum`, if there is one, is then the sum over the processes.
  void barrier(const char* what, int64_t* sum = nullptr);
  void fill(const Run& run);
  int64_t count_wrong(const Run& run);
  /// The value of element i of what rank r contributes: a small integer, so that sums over all ranks are exact in every
  /// dtype.
  float value(int rank, int64_t element) const;
  float combined(int64_t element) const;
  /// The value of element i of a rank's result.   first  offsets of the ranks' parts
  float expected(const Run& run, int rank, const std::vector<int64_t>& first, int64_t i) const;
  int64_t count_different(const std::vector<float>& expected, const std::vector<std::byte>& found) const;
  void repeat(const Run& run, int times, std::vector<Series>* series);

  std::unique_ptr<DeviceGroup> devices_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  Config config_;
  std::vector<Tensor> inputs_, outputs_;
};

}  // namespace vitrine::tools
