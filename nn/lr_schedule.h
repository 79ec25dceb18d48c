// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace vitrine {

/// What a schedule sets before an optimizer step.
struct ScheduledValues {
  double lr = 0.0;
  std::optional<double> momentum;  // one_cycle only: momentum of sgd, beta1 of adam and adamw
};

/// How the learning rate changes during training. Names, defaults and formulas as in torch.optim.lr_scheduler. A
/// tick is what PyTorch's scheduler.step() counts: an optimizer step or an epoch, as `unit` says.
struct LrScheduleConfig {
  enum class Kind {
    constant,
    step,        // StepLR: lr * gamma^floor(tick / step_size)
    multi_step,  // MultiStepLR: lr * gamma^(number of milestones reached)
    cosine,      // CosineAnnealingLR: from lr to min_lr over `total` ticks
    one_cycle,   // OneCycleLR: lr is its max_lr; `total` ticks, always optimizer steps
    plateau,     // ReduceLROnPlateau: lr * factor when the metric has not improved for `patience` epochs
  } kind = Kind::constant;
  enum class Unit { step, epoch } unit = Unit::epoch;  // of step_size, milestones and total

  int64_t step_size = 30;
  std::vector<int64_t> milestones;  // ascending
  double gamma = 0.1;               // of step and multi_step
  int64_t total = 0;                // ticks of cosine and one_cycle
  double min_lr = 0.0;              // of cosine and plateau

  struct OneCycle {
    double start_fraction = 0.3;  // pct_start: share of the ticks in which the rate rises
    double initial_divisor = 25.0;
    double final_divisor = 1e4;
    bool cycle_momentum = true;
    double base_momentum = 0.85, max_momentum = 0.95;
  } one_cycle;

  struct Plateau {
    bool maximize = false;  // mode: false for a loss, true for an accuracy
    double factor = 0.1;
    int64_t patience = 10;
    double threshold = 1e-4;  // relative
    int64_t cooldown = 0;
    double eps = 1e-8;  // changes of the rate up to this are not made
  } plateau;

  /// Linear warm-up over this many optimizer steps (LinearLR before the schedule in a SequentialLR): from
  /// warmup_start_factor times the optimizer's initial rate up to that rate, which is lr, and lr / initial_divisor for
  /// one_cycle, whose momentum keeps its first value. The schedule starts after it, at tick 0. With unit epoch a tick
  /// is steps_per_epoch steps from there on, so step and multi_step change the rate within an epoch if the warm-up ends
  /// within one. plateau counts all epochs of training, warm-up included.
  int64_t warmup_steps = 0;
  double warmup_start_factor = 1.0 / 3.0;
};

/// Computes the learning rate of each optimizer step. Host code only; Engine::set_learning_rate() applies the value.
class LrSchedule {
 public:
  /// Requires lr >= 0 and steps_per_epoch >= 1. throws ConfigError, naming the field, for values that PyTorch rejects
  /// or that have no meaning.
  LrSchedule(const LrScheduleConfig& config, double lr, int64_t steps_per_epoch);

  /// The values for optimizer step `step` (0-based, counted over the whole run). Steps after `total` keep the last
  /// value.
  ScheduledValues at(int64_t step) const;

  /// Ends an epoch with this metric (plateau; the others ignore it). A NaN counts as no improvement, as in PyTorch.
  void end_epoch(double metric);

  /// What changes during training, for checkpoints.
  struct State {
    double plateau_lr = 0.0;
    double best = 0.0;
    bool has_best = false;
    int64_t bad_epochs = 0, cooldown_left = 0;
    bool operator==(const State&) const = default;
  };
  const State& state() const { return state_; }
  void restore(const State& state) { state_ = state; }

  const LrScheduleConfig& config() const { return config_; }

 private:
  double scheduled(int64_t step) const;
  ScheduledValues one_cycle(int64_t tick) const;

  LrScheduleConfig config_;
  double lr_;
  int64_t steps_per_epoch_;
  State state_;
};

}  // namespace vitrine
