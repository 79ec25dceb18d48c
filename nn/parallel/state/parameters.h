// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <vector>

#include <vitrine/nn/parameter_store.h>

namespace vitrine {

struct EngineSetup;
struct Replica;
class ReplicaGroup;
class StepWindow;

/// The averages of the parameters (EngineConfig::ema_decay), in layout(): a state of training beside the optimizer's.
/// Parameters::set() starts them at the parameters. All functions wait for the steps in flight, and throw what these
/// throw; ConfigError in an engine without averages; OrderError while an Engine::AverageScope is open.
class Averages {
 public:
  Averages(EngineSetup& setup, ReplicaGroup& replicas, StepWindow& window)
      : setup_(setup), replicas_(replicas), window_(window) {}
  Averages(const Averages&) = delete;
  Averages& operator=(const Averages&) = delete;

  /// With several processes and Scheme::shard all call it.
  std::vector<float> values(int device = 0);
  /// With several processes all call it with the same values.
  void set(std::span<const float> flat);
  /// Puts the averages in the parameters' place, and back (Engine::AverageScope).
  void enter();
  void leave() noexcept;
  bool in_place() const { return in_place_; }

 private:
  /// Waits for steps, and checks that `operation` is allowed.
  void prepare(const char* operation);
  /// Exchanges parameters and averages on all devices.
  void exchange();

  EngineSetup& setup_;
  ReplicaGroup& replicas_;
  StepWindow& window_;
  bool in_place_ = false;
};

/// The parameters and saved buffers on the devices of an engine, read and set by the host. All functions wait for the
/// steps in flight, and throw what these throw. With several processes and Scheme::shard the first call after a step
/// gathers what the replicas have updated, so all make it, unless Engine::take_step_results(true) or evaluate() came
/// before.
class Parameters {
 public:
  Parameters(EngineSetup& setup, ReplicaGroup& replicas, StepWindow& window);
  Parameters(const Parameters&) = delete;
  Parameters& operator=(const Parameters&) = delete;

  const FlatLayout& layout() const;
  /// Sets the parameters from one flat host buffer in layout(). Makes all replicas equal; with several processes all
  /// call it, and rank 0's values are used: other ranks may pass nothing.
  void set(std::span<const float> flat);
  using TakePart = std::function<void(int64_t first, std::span<const float> values)>;
  /// The same from parts in host memory, so that no copy of all parameters exists: `give` calls its argument for each.
  /// With several processes it is called on rank 0.
  void set_in_parts(const std::function<void(const TakePart&)>& give);
  /// The f32 parameters; of a device that holds only the 16-bit copy, the copy's values. With several processes and
  /// Sharding::parameters all call it, and working_values(); with Scheme::shard and a 16-bit copy all call it.
  std::vector<float> values(int device = 0);
  /// What the layers of a device see: the 16-bit copy in f16 and bf16, else the f32 parameters.
  std::vector<float> working_values(int device = 0);
  /// The gradients of the last step on a device (layout().trained(), without the tail): of the sum of losses, divided
  /// by the nominal targets and multiplied by the loss scale. Where every target is valid and losses are not scaled,
  /// that is the gradient of the mean loss. Reduced gradients are sums over all devices. With several processes and
  /// Scheme::shard all call it. throws ConfigError in a forward-only engine.
  std::vector<float> gradients(int device = 0);
  /// Exact mode: LossTotals of each leaf of the last step. throws ConfigError in another mode
  std::vector<float> leaf_totals();

  /// Saved buffers, such as running statistics, as set() sets parameters. Between steps all replicas hold the same.
  /// Steps that were in flight when training diverged have updated them, but never with a value that is not finite;
  /// after a failure they are those of device 0.
  const BufferLayout& buffer_layout() const;
  void set_buffers(const BufferValues& values);
  BufferValues buffers(int device = 0);

  Averages& averages() { return averages_; }
  /// Compares what all devices of all processes hold of the parameters and saved buffers, by hashes; waits. With
  /// several processes all call it. throws CommError naming the replica and the parameter that differ.
  void verify();

 private:
  /// Each device takes its shard of rank 0's values from messages between hosts.
  void set_shards(const std::function<void(const TakePart&)>& give, const TakePart& set);
  /// Copies what the replica holds of a part in host memory to its parameters, or to its 16-bit copy where it has no
  /// others.
  void set_part(Replica& r, int64_t first, std::span<const float> values);
  /// Reads the flat buffer, or all shards of it.
  std::vector<float> read(int device, View (*flat)(const Replica&));
  /// Returns a hash of each parameter, then of each saved buffer.
  std::vector<uint64_t> hashes(Replica& r);

  EngineSetup& setup_;
  ReplicaGroup& replicas_;
  StepWindow& window_;
  Averages averages_;
};

}  // namespace vitrine
