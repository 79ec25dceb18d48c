// SPDX-License-Identifier: Apache-2.0
#include "tools/program/train/training.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include <fmt/format.h>
#include <unistd.h>

#include "data/sampler.h"
#include "runtime/error.h"
#include "tools/program/flags/advice.h"
#include "tools/program/process/interrupt.h"
#include "tools/program/run/run_facts.h"
#include "tools/program/run/unread.h"
#include "tools/program/run/warnings.h"
#include "tools/program/text/progress.h"
#include "tools/program/text/tables.h"
#include "tools/program/text/terminal.h"
#include "vitrine_version.h"

namespace vitrine::tools {

namespace {

/// A vote to stop counts two steps later; it is known before the batch after them is needed.
constexpr int64_t kStepsAhead = 3;

/// A batch without any image that counts is no bad item: the data is damaged or gone. Such a step would change nothing
/// but running statistics.
constexpr const char* kNoneCounts =
    "--skip-damaged: a training batch has no image that can be decoded; are the files still there?";

bool any_counts(const HostBatch& batch) {
  const auto* const labels = batch.labels.as<int32_t>();
  return std::any_of(labels, labels + batch.labels.numel(), [](int32_t label) { return label != kIgnoredLabel; });
}

}  // namespace

void check_train_schedule(const Options& options) {
  const LrScheduleConfig schedule =
      resolve_schedule(options.schedule, std::numeric_limits<int64_t>::max(), options.evaluate && !options.steps);
  const OptimizerConfig optimizer = resolve_optimizer(options);
  if (schedule.kind == LrScheduleConfig::Kind::one_cycle && optimizer.kind == OptimizerConfig::Kind::sgd &&
      optimizer.sgd.momentum == 0.0) {
    throw ConfigError(
        "--lr-schedule one-cycle changes the momentum, which sgd does not have without --momentum; give one, for "
        "example --momentum 0.9");
  }
}

Training::Start::Start(const RunState* state, int64_t steps_per_epoch, int64_t batch_size) : of_run(state) {
  if (state == nullptr) return;
  epoch = state->epoch;
  batch = state->batch;
  if (state->batches_per_epoch == steps_per_epoch && state->batch_size == batch_size &&
      epoch * steps_per_epoch + batch == state->step)
    return;
  throw DataError(
      fmt::format("--resume: the checkpoint is at step {}, batch {} of {} in epoch {}, which this run with {} batches "
                  "of {} does not "
                  "reach; start a new run from its weights with --init-weights",
                  state->step, batch, state->batches_per_epoch, epoch + 1, steps_per_epoch, batch_size));
}

Training::Training(const Options& options, const Job& job, Run& run, std::string run_id, RunLog& log,
                   Checkpoints& checkpoints, StateHashes& hashes, const std::optional<Resumed>& resumed)
    : options_(options),
      job_(job),
      run_(run),
      run_id_(std::move(run_id)),
      engine_(*run.engine),
      steps_per_epoch_(batches_per_epoch({options.shuffle, options.drop_last, options.seed}, job.data.train.size(),
                                         options.batch_size)),
      start_(resumed ? &resumed->state : nullptr, steps_per_epoch_, options.batch_size),
      total_batches_(options.steps ? *options.steps : options.epochs.value_or(1) * steps_per_epoch_),
      epoch_count_((total_batches_ + steps_per_epoch_ - 1) / steps_per_epoch_),
      first_step_(engine_.steps_issued()),
      epoch_(start_.epoch),
      batch_(start_.batch),
      schedule_(resolve_schedule(options.schedule, total_batches_, options.evaluate && !options.steps),
                resolve_optimizer(options).learning_rate(), steps_per_epoch_),
      log_(log),
      checkpoints_(checkpoints),
      hashes_(hashes),
      source_(job.data.train, loader_from(options, job, run, start_, epoch_count_)),
      recorded_(options, first_step_, total_batches_),
      recorder_(run, recorded_.spans()),
      record_(configured_run(options, engine_.config(), engine_.facts().batch)) {
  record_.first_step = record_.steps.first_step = first_step_;
  record_.tokens = tokens_of(job_);
  if (checkpoints.active()) settings_ = values_of(run_settings(options, job, run));
  if (!resumed) return;
  schedule_.restore(resumed->state.schedule);
  if (!options.steps) {
    other_sums_ = start_.of_run->run_so_far;
  } else if (start_.batch > 0) {
    other_sums_ = start_.of_run->epoch_so_far;
  }
  saved_ = {start_.epoch, start_.batch};
}

std::string Training::describe_completion() const {
  const int64_t done = options_.steps ? start_.of_run->step : epoch_;
  const bool within = !options_.steps && batch_ > 0;
  return fmt::format(
      "the run is complete: {}{} {}{} {} done, and --{} is {}; nothing is left to train (give a larger number to "
      "continue)",
      within ? "more than " : "", done, options_.steps ? "step" : "epoch", done == 1 ? "" : "s",
      done == 1 && !within ? "is" : "are", options_.steps ? "steps" : "epochs",
      options_.steps ? *options_.steps : options_.epochs.value_or(1));
}

void Training::run(const std::function<void()>& before_last_evaluation) {
  if (is_complete()) return;
  try {
    check_first_batches();
    run_epochs(before_last_evaluation);
    if (stopped_ && record_.failure.empty()) {
      record_.failure = first_error(run_.devices->process_group(), error_ ? describe_unread(error_) : "");
    }
    if (!record_.failure.empty() && record_.step_losses.empty()) throw DataError(record_.failure);
  } catch (const DivergedError& error) {
    record_.diverged = error.what();
    for (const StepResult& totals : engine_.take_step_results(false)) {
      add_step(totals);
      if (!options_.update_in_backward || totals.overflow != "the update") continue;
      if (const std::optional<int64_t> saved = checkpoints_.last_step()) {
        record_.diverged += fmt::format("; the last one, of step {}, is in {}", *saved, options_.checkpoints.directory);
      } else if (first_step_ > 0) {
        record_.diverged +=
            fmt::format("; the last one is that of step {}, from which this run continued", first_step_);
      } else {
        record_.diverged += "; this run has saved none";
      }
    }
    if (!record_.epochs.empty() && record_.epochs.back().seconds == epoch_begin_seconds_) record_.epochs.pop_back();
    run_.devices->synchronize();
    recorder_.collect(source_.take_spans(), first_step_ + 1);
  }
}

void Training::end() {
  if (engine_.config().precision.loss_scaling.active())
    record_.steps.end(engine_.checkpointer().loss_scale_state().first);
}

LoaderConfig Training::loader_from(const Options& options, const Job& job, const Run& run, const Start& start,
                                   int64_t epoch_count) {
  LoaderConfig config = train_loader_config(options, job, run, std::max<int64_t>(epoch_count - start.epoch, 0));
  config.first_epoch = start.epoch;
  config.first_batch = start.batch;
  return config;
}

void Training::check_first_batches() {
  ProcessGroup* const process_group = run_.devices->process_group();
  if (process_group == nullptr) return;
  error_ = source_.error_within(std::min(kStepsAhead, total_batches_ - batches_done()));
  stopped_ = process_group->sum("whether the first images can be read", {error_ ? 1.0 : 0.0})[0] > 0.0;
}

std::optional<HostBatch> Training::next_batch() {
  const bool alone = run_.devices->process_count() == 1;
  const int64_t ahead = alone ? 0 : std::min(kStepsAhead, total_batches_ - batches_done() - 1);
  try {
    std::optional<HostBatch> batch = source_.next(engine_.steps_issued(), ahead);
    VITRINE_ASSERT(batch.has_value(), "the loader ended before the epochs it was made for");
    if (alone && job_.skipped_train && !any_counts(*batch)) throw DataError(kNoneCounts);
    if (!error_ && source_.error_ahead()) {
      error_ = source_.error_ahead();
      engine_.vote_to_stop();
    }
    return batch;
  } catch (const OrderError&) {
    throw;
  } catch (const std::exception&) {
    if (!alone) throw;  // the others have issued the step
    error_ = std::current_exception();
    stopped_ = true;
    return std::nullopt;
  }
}

void Training::run_epochs(const std::function<void()>& before_last_evaluation) {
  while (epoch_ < epoch_count_ && !stopped_) {
    // With --steps there is one result for all epochs.
    if (!options_.steps || record_.epochs.empty()) begin_result();
    train_epoch(record_.epochs.back());
    const bool ends_here = !options_.steps || epoch_ + 1 == epoch_count_;
    if (ends_here && options_.evaluate && !stopped_) {
      if (epoch_ + 1 == epoch_count_) before_last_evaluation();
      std::optional<Evaluation> test = evaluate();
      stopped_ = !test.has_value();
      if (test) {
        record_.epochs.back().test_loss = test->loss, record_.epochs.back().test_accuracy = test->accuracy,
        record_.epochs.back().test_top5 = test->top5;
        record_.confusion = std::move(test->confusion);
      }
      recorder_.discard();
    }
    if (!stopped_) end_epoch_of_schedule(record_.epochs.back());
    if (ends_here || stopped_) {
      log_epoch(record_.epochs.back());
      print_epoch(record_.epochs.back());
    }
    if (ends_here && !stopped_) check_evaluation(record_.epochs.back());
    if (!stopped_ && !end_epoch()) break;
  }
  // An interrupted run, and a whole one, can be continued from where it ended.
  if (checkpoints_.active() && saved_ != Position{epoch_, batch_} && engine_.steps_issued() > 0) save();
}

void Training::check_evaluation(const EpochRecord& result) const {
  if (options_.allow_non_finite || !result.test_loss || std::isfinite(*result.test_loss)) return;
  throw DivergedError(fmt::format(
      "training has diverged: the test loss after step {} is not finite, although the weights are. To continue, {}",
      engine_.steps_issued(), divergence_remedies(engine_.config())));
}

void Training::end_epoch_of_schedule(const EpochRecord& result) {
  const std::string& metric = options_.schedule.metric;
  const std::optional<double> value = metric == "last-batch" ? result.last_loss
                                      : metric == "loss"     ? result.test_loss
                                                             : result.test_accuracy;
  // The last batch counts only at the end of its epoch; evaluations take place only there.
  if (value && (metric != "last-batch" || batch_ == steps_per_epoch_)) schedule_.end_epoch(*value);
}

void Training::begin_result() {
  EpochRecord& result = record_.epochs.emplace_back();
  if (record_.epochs.size() == 1 && start_.of_run != nullptr && (options_.steps || start_.batch > 0)) {
    result = options_.steps ? start_.of_run->run_so_far : start_.of_run->epoch_so_far;
  }
  result.epoch = options_.steps ? 1 : epoch_ + 1;
  result.steps_before = result.steps;
  result.last_step = first_step_ + static_cast<int64_t>(record_.step_losses.size());
  const int64_t rest = options_.steps ? total_batches_ - batches_done() : steps_of_epoch() - batch_;
  result.steps_wanted = result.steps + rest;
}

bool Training::end_epoch() {
  const EpochRecord& result = record_.epochs.back();
  const bool after_steps = checkpoints_.should_save_after_step(engine_.steps_issued());
  const bool ended = batch_ == steps_per_epoch_;
  if (ended) ++epoch_, batch_ = 0;
  if (ended && options_.steps) other_sums_ = {};
  const bool after_epoch = checkpoints_.should_save_after_epoch(engine_.steps_issued(), result.test_accuracy);
  if (after_steps || after_epoch) save();
  return ended;
}

void Training::save() {
  log_.flush();  // a checkpoint never has steps whose rows are lost
  RunState state;
  state.version = VITRINE_VERSION;
  state.run_id = run_id_;
  state.parameters = parameters_hash(engine_.parameters().layout());
  state.epoch = epoch_;
  state.batch = batch_;
  state.batches_per_epoch = steps_per_epoch_;
  state.batch_size = options_.batch_size;
  state.seed = options_.seed;
  if (!record_.epochs.empty()) {
    state.epoch_so_far = options_.steps ? other_sums_ : record_.epochs.back();
    state.run_so_far = options_.steps ? record_.epochs.back() : other_sums_;
    state.test_loss = record_.epochs.back().test_loss;
    state.test_accuracy = record_.epochs.back().test_accuracy;
  }
  state.schedule = schedule_.state();
  state.settings = settings_;
  if (engine_.facts().tuned_plans) state.plans = *engine_.facts().tuned_plans;
  saved_ = {epoch_, batch_};
  checkpoints_.save(std::move(state));
}

std::optional<Evaluation> Training::evaluate() {
  std::optional<Engine::AverageScope> averages;
  if (options_.recipe.ema) averages.emplace(engine_);
  try {
    return evaluate_test_set(options_, job_, run_, "evaluating", counts_confusion(options_, job_));
  } catch (const DataError& error) {  // in all processes
    record_.failure = in_program_words(error.reason());
    return std::nullopt;
  }
}

bool Training::is_evaluation_due() const {
  const int64_t step = engine_.steps_issued();
  const bool at_the_end = options_.steps ? step == total_batches_ : batch_ == steps_per_epoch_;
  return options_.eval_every > 0 && step % options_.eval_every == 0 && !at_the_end && !stopped_;
}

void Training::evaluate_within_epoch() {
  const std::optional<Evaluation> test = evaluate();
  recorder_.discard();
  stopped_ = !test.has_value();
  if (!test) return;
  const int64_t step = engine_.steps_issued();
  log_.add_evaluation(step, epoch_ + 1, *test);
  if (options_.quiet) return;
  fmt::print(stderr, "step {}  test loss {}  test accuracy {:.4f}{}\n", step, format_loss(test->loss), test->accuracy,
             describe_top5(test->top5));
}

void Training::add_step(const StepResult& totals) {
  const int64_t number = first_step_ + static_cast<int64_t>(record_.step_losses.size());
  log_.add_step({number + 1, number / steps_per_epoch_ + 1, totals.mean_loss(), rates_[record_.step_losses.size()],
                 engine_.config().precision.loss_scaling.active() ? std::optional(totals.loss_scale) : std::nullopt});
  record_.step_losses.push_back(totals.mean_loss());
  record_.steps.add(totals);
}

void Training::train_epoch(EpochRecord& result) {
  const int64_t steps = steps_of_epoch();
  Progress progress(epoch_count_ > 1 ? fmt::format("epoch {}/{}", epoch_ + 1, epoch_count_) : "training",
                    steps - batch_,
                    {options_.quiet, options_.log_every, total_batches_ - epoch_ * steps_per_epoch_ - steps});
  int64_t begin = steady_now_ns();
  epoch_begin_seconds_ = result.seconds;
  const double other_begin_seconds = other_sums_.seconds;
  const auto take_time = [&] {
    const double seconds = static_cast<double>(steady_now_ns() - begin) * 1e-9;
    result.seconds = epoch_begin_seconds_ + seconds;
    other_sums_.seconds = other_begin_seconds + seconds;
  };
  StepResult done;
  int64_t steps_done = 0;
  const auto take_totals = [&](bool wait) {
    for (const StepResult& totals : engine_.take_step_results(wait)) {
      add_step(totals);
      for (StepResult* sum : {&done, &result.totals, &other_sums_.totals}) sum->add_totals(totals);
      stopped_ = stopped_ || totals.stop_votes > 0;
      if (job_.skipped_train && totals.valid == 0) {  // of several processes, whose parts of a batch may be small
        stopped_ = true;
        record_.failure = kNoneCounts;
      }
      for (EpochRecord* record : {&result, &other_sums_}) {
        record->last_loss = totals.mean_loss();
        ++record->steps;
      }
      ++result.last_step;
      progress.update(++steps_done, done.valid / job_.model.targets_per_sample, done.mean_loss());
    }
  };
  const bool alone = run_.devices->process_count() == 1;
  while (batch_ < steps && !stopped_) {
    if (interrupted()) {
      // Several processes end after the same step: the one whose result carries the vote.
      if (stopped_ = alone; stopped_) break;
      engine_.vote_to_stop();
    }
    const std::optional<HostBatch> item = next_batch();
    if (!item) break;
    recorded_.before_step(*run_.devices, engine_.steps_issued());
    set_learning_rate();
    engine_.train_step(*item);
    hashes_.add_step();
    ++batch_;
    result.samples += item->global_samples;
    other_sums_.samples += item->global_samples;
    take_totals(false);
    if (engine_.steps_issued() % PhaseRecorder::kStepsBetweenPolls == 0)
      recorder_.poll(source_.take_spans(), first_step_ + 1);
    if (options_.verify_replicas > 0 && engine_.steps_issued() % options_.verify_replicas == 0)
      engine_.parameters().verify();
    if (is_evaluation_due()) {
      take_totals(true);
      const int64_t evaluation_begin = steady_now_ns();
      recorder_.collect(source_.take_spans(), first_step_ + 1);
      if (!stopped_) evaluate_within_epoch();
      begin += steady_now_ns() - evaluation_begin;  // samples/s are of training
    }
    // A checkpoint at the end of an epoch follows its evaluation.
    if (stopped_ || batch_ == steps || !checkpoints_.should_save_after_step(engine_.steps_issued())) continue;
    take_totals(true);
    take_time();
    if (!stopped_) save();
  }
  take_totals(true);
  take_time();
  recorder_.collect(source_.take_spans(), first_step_ + 1);
}

void Training::set_learning_rate() {
  const ScheduledValues values = schedule_.at(engine_.steps_issued());
  engine_.set_learning_rate(values.lr);
  if (values.momentum) engine_.set_momentum(*values.momentum);
  rates_.push_back(values.lr);
}

void Training::log_epoch(const EpochRecord& result) {
  std::vector<DeviceRecord> devices(static_cast<size_t>(run_.devices->size()));
  for (size_t d = 0; d < devices.size(); ++d) {
    const Device& device = (*run_.devices)[static_cast<int>(d)];
    devices[d].device = device.name(), devices[d].pool = device.pool().statistics();
  }
  const bool counted = !options_.tensorboard.empty() && result.test_loss && record_.confusion;
  log_.add_epoch(result, devices, counted ? record_.confusion->report(job_.data.test.class_names, {}) : "");
}

std::string Training::describe_rate() const {
  const ScheduleOptions& schedule = options_.schedule;
  if (rates_.empty() || (schedule.schedule == "constant" && schedule.warmup_steps == 0)) return {};
  const std::string text = fmt::format("  lr {:.4g}", rates_.back());
  // The others change it in every step.
  const bool by_epochs = schedule.schedule == "plateau" || schedule.schedule.ends_with("step");
  const double next = schedule_.at(engine_.steps_issued()).lr;
  if (!by_epochs || batches_done() == total_batches_ || next >= rates_.back()) return text;
  return text + fmt::format(", lowered to {:.4g}", next);
}

void Training::print_epoch(const EpochRecord& result) const {
  if (options_.json && options_.quiet) return;  // only rank 0 prints on stderr
  std::string line = options_.steps ? fmt::format("{} step{}", result.steps, result.steps == 1 ? "" : "s")
                                    : fmt::format("epoch {}/{}", result.epoch, epoch_count_);
  if (!result.whole()) line += fmt::format(" (interrupted after {} of {} steps)", result.steps, result.steps_wanted);
  if (result.steps > 0) line += "  train loss " + format_loss(result.totals.mean_loss());
  if (result.test_loss) {
    line += fmt::format("  test loss {}{}  test accuracy {:.4f}", format_loss(*result.test_loss),
                        record_.tokens.describe(*result.test_loss), *result.test_accuracy);
    line += describe_top5(result.test_top5);
  }
  line += fmt::format("  {} in {}", record_.tokens.rate(result.samples_per_second()), format_duration(result.seconds));
  line += describe_rate();
  fmt::print(options_.json ? stderr : stdout, "{}\n",
             Style::of(options_.json ? STDERR_FILENO : STDOUT_FILENO).prose(line));
  std::fflush(options_.json ? stderr : stdout);
}

}  // namespace vitrine::tools
