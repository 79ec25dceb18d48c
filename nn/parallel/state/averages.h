// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

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

}  // namespace vitrine
