// SPDX-License-Identifier: Apache-2.0
#include "tools/program/checkpoint/checkpoints.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "runtime/error.h"
#include "runtime/trace/span.h"
#include "tools/program/run/checkpoint_files.h"
#include "tools/program/text/output_file.h"

namespace vitrine::tools {

namespace {

constexpr const char* kSaving = "the checkpoint being saved";
constexpr const char* kInProgress = "saving";  // what rank 0 reports of it
constexpr const char* kSaved = "saved";
constexpr const char* kBestLink = "best";

double seconds_since(int64_t begin_ns) { return static_cast<double>(steady_now_ns() - begin_ns) * 1e-9; }

/// Does what follows a save: an error is reported on stderr, and the run goes on.
template <class Work>
void warn_if_it_fails(const std::string& checkpoint, const Work& work) {
  try {
    work();
  } catch (const std::exception& error) {
    fmt::print(stderr, "vitrine: warning: checkpoint {} is saved, but {}\n", checkpoint, error.what());
  }
}

}  // namespace

std::unique_ptr<CheckpointDirectory> open_checkpoint_directory(const Options& options, const Processes& processes) {
  const CheckpointOptions& o = options.checkpoints;
  if (o.directory.empty() || !processes.leads()) return nullptr;
  return with_prefix<DataError>("--checkpoint-dir ", [&] {
    auto directory = std::make_unique<CheckpointDirectory>(o.directory);
    const std::vector<NamedCheckpoint> found = list_checkpoints(o.directory);
    if (o.resume.empty() && !found.empty()) {
      throw DataError(
          fmt::format("{}: it has the checkpoints of another run, up to {}; continue that run with --resume auto, or "
                      "choose another folder",
                      o.directory, checkpoint_name(found.back().step)));
    }
    return directory;
  });
}

Checkpoints::Checkpoints(const Options& options, const Processes& processes, Run& run, const Job& job,
                         const std::string& run_id, std::unique_ptr<CheckpointDirectory> directory,
                         std::optional<BestCheckpoint> best)
    : options_(options),
      processes_(processes),
      engine_(*run.engine),
      metadata_(weights_metadata(job)),
      active_(!options.checkpoints.directory.empty()),
      interval_(resolve_checkpoint_interval(options.checkpoints)),
      directory_(std::move(directory)),
      best_(best) {
  if (!directory_) return;
  for (const NamedCheckpoint& checkpoint : list_checkpoints(directory_->path())) {
    if (run_id_of(checkpoint.path) == run_id) own_.insert(checkpoint_name(checkpoint.step));
  }
  staging_ = engine_.checkpointer().make_state();
  scratch_ =
      HostBuffer(checkpoint_scratch_elements(engine_.parameters().layout(), engine_.parameters().buffer_layout()) *
                 size_of(DType::f32));
  record_.folder = directory_->path();
  record_.planned_staging =
      plan_checkpoint_staging(engine_.parameters().layout(), engine_.parameters().buffer_layout(), engine_.config());
  for (const TrainingState::Flat& flat : staging_->flats) record_.staging.emplace_back(flat.name, flat.memory.bytes());
  record_.staging.emplace_back("tensor being written", scratch_.bytes());
}

Checkpoints::~Checkpoints() {
  if (thread_.joinable()) thread_.join();
}

bool Checkpoints::should_save_after_step(int64_t step) const {
  return active_ && interval_.steps > 0 && step % interval_.steps == 0;
}

/// Whether an epoch beats the best one, which depends on the save in progress if it beats only the one before. All
/// processes have the same values.
bool Checkpoints::is_best(double test_accuracy) {
  if (best_ && !(test_accuracy > best_->accuracy)) return false;
  if (new_best_ && !(test_accuracy > new_best_->accuracy)) wait_for_save();
  return !best_ || test_accuracy > best_->accuracy;
}

bool Checkpoints::should_save_after_epoch(int64_t step, std::optional<double> test_accuracy) {
  if (!active_) return false;
  next_best_.reset();
  if (options_.checkpoints.keep_best && test_accuracy && is_best(*test_accuracy))
    next_best_ = BestCheckpoint{step, *test_accuracy};
  return next_best_ || interval_.epochs;
}

/// While rank 0 waits for the disk it reports that to the other processes, so that no deadline ends the run. All
/// processes learn whether the save was a success.
void Checkpoints::wait_for_save() {
  if (ProcessGroup* const process_group = processes_.process_group().get(); process_group != nullptr) {
    if (!processes_.leads()) {
      std::string report;
      while ((report = process_group->broadcast(kSaving, {})) == kInProgress) {
      }
      if (report == kSaved && new_best_) best_ = new_best_;
      new_best_.reset();
      return;
    }
    constexpr std::chrono::milliseconds kPiece{5};
    const int64_t interval_ns =
        std::clamp<int64_t>(static_cast<int64_t>(options_.timeout_seconds * 2e8), 10'000'000, 1'000'000'000);
    for (int64_t reported_ns = steady_now_ns(); saving_;) {
      std::this_thread::sleep_for(kPiece);
      if (steady_now_ns() - reported_ns < interval_ns) continue;
      process_group->broadcast(kSaving, kInProgress);
      reported_ns = steady_now_ns();
    }
    process_group->broadcast(kSaving, saved_ ? kSaved : "failed");
  }
  if (thread_.joinable()) thread_.join();
  if (saved_ && new_best_) best_ = new_best_;
  new_best_.reset();
}

void Checkpoints::save(RunState state) {
  const int64_t begin_ns = steady_now_ns();
  wait_for_save();
  last_step_ = engine_.steps_issued();
  new_best_ = std::exchange(next_best_, std::nullopt);
  if (!directory_) return engine_.checkpointer().share_state();
  engine_.checkpointer().copy_state(*staging_);
  state.take_scalars(*staging_);
  state.best = new_best_ ? new_best_ : best_;
  saved_ = false;
  saving_ = true;
  const auto work = [this, state = std::move(state)] {
    write(state);
    saving_ = false;
  };
  try {
    thread_ = std::thread(work);
  } catch (const std::system_error&) {  // no more threads: training waits
    work();
  }
  record_.stall_seconds += seconds_since(begin_ns);
}

void Checkpoints::write(const RunState& state) {
  const std::string name = checkpoint_name(state.step);
  try {
    const int64_t begin_ns = steady_now_ns();
    const std::span<float> scratch(scratch_.view({scratch_.bytes() / size_of(DType::f32)}, DType::f32).as<float>(),
                                   static_cast<size_t>(scratch_.bytes() / size_of(DType::f32)));
    int64_t bytes = 0;
    write_checkpoint(directory_->path(), name,
                     checkpoint_files(engine_.parameters().layout(), engine_.parameters().buffer_layout(), *staging_,
                                      scratch, metadata_),
                     run_state_json(state), [&](int64_t written) { bytes = written; });
    ++record_.saved;
    record_.newest = name;
    record_.bytes = bytes;
    own_.insert(name);
    saved_ = true;
    record_.write_seconds += seconds_since(begin_ns);
  } catch (const std::exception& error) {
    ++record_.failed;
    error_ = error.what();
    fmt::print(
        stderr,
        "vitrine: warning: checkpoint {} is not saved: {}. The run goes on, and earlier checkpoints are unchanged\n",
        name, error_);
    return;
  }
  // The checkpoint is saved, whatever happens to the link and to older ones.
  warn_if_it_fails(name, [&] {
    if (state.best && state.best->step == state.step) directory_->point_link(kBestLink, name);
  });
  warn_if_it_fails(name, [&] { remove_old(state); });
}

/// Leaves later checkpoints, which this run will replace, those that are broken or of another run, and the one to which
/// the link points, also without --keep-best.
void Checkpoints::remove_old(const RunState& state) {
  if (!options_.checkpoints.keep_last) return;
  std::vector<NamedCheckpoint> found = list_checkpoints(directory_->path());
  std::erase_if(found, [&](const NamedCheckpoint& checkpoint) {
    return checkpoint.step > state.step || !own_.contains(checkpoint_name(checkpoint.step));
  });
  const auto kept = static_cast<size_t>(*options_.checkpoints.keep_last);
  std::error_code no_link;
  const std::string linked =
      std::filesystem::read_symlink(std::filesystem::path(directory_->path()) / kBestLink, no_link).filename().string();
  for (size_t i = 0; i + kept < found.size(); ++i) {
    const bool is_best = options_.checkpoints.keep_best && state.best && state.best->step == found[i].step;
    if (!is_best && checkpoint_name(found[i].step) != linked) remove_checkpoint(found[i].path);
  }
}

void Checkpoints::finish() {
  if (!active_) return;
  wait_for_save();
  if (record_.failed == 0) return;
  throw DataError(fmt::format("{} of {} checkpoints could not be saved; the last reason: {}", record_.failed,
                              record_.failed + record_.saved, error_));
}

std::optional<CheckpointRecord> Checkpoints::record() const {
  return directory_ ? std::optional(record_) : std::nullopt;
}

}  // namespace vitrine::tools
