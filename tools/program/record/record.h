// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/conv2d.h"
#include "nn/parallel/engine.h"
#include "nn/parallel/plan/movement_plan.h"
#include "runtime/memory/history.h"
#include "runtime/memory/pool.h"
#include "runtime/trace/communication_table.h"
#include "runtime/trace/step_recorder.h"
#include "tools/program/record/confusion.h"
#include "tools/program/record/device_sets.h"
#include "tools/program/text/json_text.h"

/// The record of a run, of a plan or of a comparison: one value that holds all that it has to report. Commands fill it;
/// processes exchange it; the terminal and the JSON (render/reports.h) and the HTML page (render/html/page.h) render
/// it.
namespace vitrine::tools {

/// What happened over the steps of a run: loss scales, skipped steps, gradient norms and losses that were not finite.
/// Steps count from 0 over the whole run.
struct StepRecord {
  /// A step whose gradient was not finite.
  struct Overflow {
    int64_t step;
    double loss_scale;
    std::string where;
  };
  struct Change {
    int64_t step;  // the first one with the new scale
    double loss_scale;
  };

  Precision precision;
  int64_t first_step = 0;           // of the run: above 0 if it continues from a checkpoint
  int64_t steps = 0;                // added
  std::vector<Overflow> overflows;  // the steps that the loss scaler or clipping skipped
  std::vector<Change> scales;       // the first step's scale, then each change
  std::vector<double> norms;
  double reduction_error = 0;  // of the first step; NaN if gradients are reduced in f32
  // Steps that stopped training or had a loss that was not finite.
  int64_t non_finite = 0;
  int64_t first_non_finite = -1;
  std::string non_finite_where;  // in the first of them

  /// Adds the next step.
  void add(const StepResult& result);
  /// Adds the loss scale that the next step would have.
  void end(double loss_scale);

  int64_t skipped() const { return static_cast<int64_t>(overflows.size()); }
  /// A line or two for people; empty if nothing is scaled or clipped and all losses are finite.
  std::string report() const;
  /// null, or {"initial", "final", "skipped_steps": [{"step", "first_in", "loss_scale"}], "changes": [{"step",
  /// "loss_scale"}]}
  Json loss_scale_json() const;
  /// null, or the norm of each step's gradients before clipping.
  Json gradient_norms_json() const;
  /// null, or the relative error of the first step's reduction.
  Json reduction_error_json() const;
};

/// One device of a run or of a plan.
struct DeviceRecord {
  std::string device;  // "cpu:0"; with several processes "rank 1 cpu:0"
  int64_t samples_per_step = 0;
  DevicePlan plan;
  PoolStatistics pool;        // as measured; in a plan, as planned. A capacity of 0 is not known.
  int64_t outside_bytes = 0;  // outside the pool
  /// Parts of outside_bytes. GPUs: what each owner's creation took, and the rest as "other". CPU devices: "dataset",
  /// "checkpoint" (the copy in host memory), "heap" (libraries, loader, threads), "code", "shared" (with other
  /// processes) and "released" (what was returned between the peak and the end).
  std::map<std::string, int64_t> outside_by_owner;
  PhaseTable phases;  // in a plan without times, like communication
  CommunicationTable communication;
  // The step that charts show; only for devices of this process.
  std::optional<MemoryTimeline> memory;
  std::optional<StepView> step;

  /// Whether the measured peak equals the planned one in every category.
  bool as_planned() const {
    return plan.peak_bytes == pool.peak_bytes && plan.peak_by_category == pool.peak_by_category;
  }
  bool fits() const { return pool.capacity_bytes == 0 || plan.peak_bytes <= pool.capacity_bytes; }
  /// Bytes of a category at the measured peak.
  int64_t bytes_at_peak(Category category) const { return pool.peak_by_category[static_cast<size_t>(category)]; }
  /// 0 where the capacity is not known.
  double share_of_capacity(int64_t bytes) const {
    return pool.capacity_bytes > 0 ? static_cast<double>(bytes) / static_cast<double>(pool.capacity_bytes) : 0.0;
  }
};

/// Parameters, gradients and optimizer's states that stay from step to step, without buckets in flight; of the step
/// that charts show, 0 without one.
int64_t states_bytes(const DeviceRecord& device);

// What every report shows of several devices.
std::vector<std::string> names_of(const std::vector<DeviceRecord>& devices);
/// Whether all of them are as_planned(), or all fit().
bool all_as_planned(const std::vector<DeviceRecord>& devices);
bool all_fit(const std::vector<DeviceRecord>& devices);
/// What the device that lacks most lacks; 0 if all fit.
int64_t missing_bytes(const std::vector<DeviceRecord>& devices);
/// The index of the device with the largest or the smallest peak. requires a device
size_t fullest(const std::vector<DeviceRecord>& devices);
size_t emptiest(const std::vector<DeviceRecord>& devices);
/// The steps in the devices' tables; 0 without devices.
int64_t measured_steps(const std::vector<DeviceRecord>& devices);
/// PhaseTable::named_share of the device on which least of the step is named.
double named_share(const std::vector<DeviceRecord>& devices);

/// What a device holds more of a category than another one, each at its peak.
struct MemoryDifference {
  Category category;
  int64_t bytes;  // negative: less
  std::vector<std::pair<int64_t, std::string>>
      tensors;  // which account for it, largest first; empty if the recorded step does not show them
};
/// The categories that differ, the largest difference first.
std::vector<MemoryDifference> memory_differences(const DeviceRecord& fuller, const DeviceRecord& emptier);

// Lookups that every report shares.
/// "backward features.3", or "update" without a layer.
std::string place_name(Phase phase, const std::string& layer);
/// The row of a phase or a cause of waiting; all zero where the device has none.
PhaseRow phase_row(const PhaseTable& table, Phase phase);
WaitRow wait_row(const PhaseTable& table, std::string_view cause);
/// The device that waited least for its peers: what is exposed there is what the step paid. Null if the devices did not
/// communicate.
const DeviceRecord* least_late(const std::vector<DeviceRecord>& devices);
/// Seconds of several phases.
double seconds_in(const PhaseTable& table, std::span<const Phase> phases);
/// Seconds or bytes of a PhaseTable or CommunicationTable divided by its steps, bytes rounded down; 0 without steps.
double per_step(double seconds, const auto& table) {
  return table.steps > 0 ? seconds / static_cast<double>(table.steps) : 0.0;
}
int64_t per_step(int64_t bytes, const auto& table) { return table.steps > 0 ? bytes / table.steps : 0; }

/// What the samples of a run over tokens are.
struct Tokens {
  int64_t per_sample = 0;    // 0: samples are not sequences of tokens
  double bytes_of_each = 0;  // in the text; 0: not known

  /// "1,234 tokens/s", or "1,234 samples/s" of other samples
  std::string rate(double samples_per_second) const;
  /// "  perplexity 12.34, 1.234 bits per byte" of a mean loss in nats: what follows it. Empty for other samples.
  std::string describe(double loss) const;
  /// Sets tokens_per_second, test_perplexity and test_bits_per_byte, null where they say nothing.
  void add_to(Json& json, std::optional<double> test_loss, double samples_per_second) const;
};

/// An epoch, or all steps of a run with --steps.
struct EpochRecord {
  int64_t epoch = 1;
  StepResult totals;
  int64_t samples = 0;
  int64_t steps = 0, steps_wanted = 0;  // fewer steps than wanted: the epoch was interrupted
  int64_t steps_before = 0;             // trained before this process, which continues from a checkpoint
  int64_t last_step = 0;                // the number of steps since the start of the run when it ended
  double seconds = 0;                   // spent training, without evaluation
  std::optional<double> last_loss;      // of the last step
  std::optional<double> test_loss, test_accuracy, test_top5;

  bool whole() const { return steps == steps_wanted; }
  double samples_per_second() const { return seconds > 0.0 ? static_cast<double>(samples) / seconds : 0.0; }
};

/// Samples per second in each round.
struct Rates {
  std::vector<double> rounds;

  double median() const;
  double least() const;
  double most() const;
  /// "1,234 ±2 %": the median and half of the range between rounds.
  std::string str() const;
};

/// What the measurements of a run mean, and the option that changes it.
struct Finding {
  std::string text;
  std::string remedy;  // "`--workers 4` loads with more threads"; options are in backquotes
  /// The share of the step's time, of the device's capacity or of the steps that it is about, 0 to 1; nothing for a
  /// result that costs nothing.
  std::optional<double> cost = std::nullopt;
  const char* cost_of = "";  // "its capacity", "the step", "the steps"; empty where the cost only sets the order
  bool harmless = false;     // nothing needs to change, whatever the cost
};

/// What a choice of recomputed parts needs and costs: see RecomputePoint.
struct RecomputationRecord {
  std::vector<std::string> recompute;  // empty: nothing
  int64_t peak_bytes = 0;              // of the fullest device
  double added_time = 0.0;             // estimated, as a share of the forward and backward pass
  std::optional<bool> fits;            // nothing where no capacity is known
  double saved = 0.0;                  // of the bytes without recomputation, as a share
  bool fastest = false;                // the first that fits
};

/// One scheme's run.
struct RunRecord {
  std::string name;   // "ddp"; in a comparison of precisions "ddp fp16"
  std::string batch;  // "16+16": samples of each device
  // Configuration:
  Scheme scheme;
  Precision precision;
  int64_t batch_size = 0;
  int accumulate = 1;
  int workers = 1;
  bool host_preprocess = false;
  int64_t bucket_bytes = 0, first_bucket_bytes = 0;
  bool update_in_backward = false;
  bool images_on_device = false;  // the host sends the index of each image only
  int64_t image_bytes = 0,
          label_bytes = 0;  // of a sample, as they are staged; the image with its index where images are augmented
  // Measurements:
  std::vector<DeviceRecord> devices;  // of all processes, in rank order; planned, the fullest first
  StepRecord steps;
  std::string diverged;    // why training stopped; empty if it did not diverge
  std::string failure;     // the error of the data that ended training; empty without one
  int64_t first_step = 0;  // from 0: the first step of this process; above 0 in a run that continues from a checkpoint
  std::string state_hash;  // of the training state at the end; empty where it was not taken
  std::vector<double> step_losses;
  std::vector<EpochRecord> epochs;
  Tokens tokens;
  std::optional<ConfusionMatrix> confusion;  // with --confusion: of the last evaluation
  int64_t shown_step = 0;                    // from 0: the step of DeviceRecord::memory and ::step
  std::optional<double>
      first_bucket_begins;  // share of backward that is over when the first bucket's reduction begins, 0 to 1
  Rates rates;              // in the rounds of a comparison
  std::string crowded;      // the warning that CPU devices have more threads than cores; empty if they do not
  bool equal_cpus = false;  // all devices are CPU devices with the same number of threads
  std::optional<ExactPrice> exact_price;  // with --exact
  int64_t planned_moved_bytes = 0;        // most_moved(), where stages are compared
  // Of a comparison:
  double gradient_difference = 0;  // relative, to one device in f32; not finite after an overflow
  double vanished_gradients = 0;   // share that are 0, but not on one device in f32
};

/// Exact mode: seconds of a step in which the device that takes longest adds the gradients of its leaves.
double leaf_seconds_per_step(const RunRecord& run);

/// Bytes of a phase of a step through a device's link, in the direction that carries more; a copy between devices
/// counts on the one that receives it. In a run those of samples follow from the batch, and those of
/// collectives are exact; of other copies, the mean of the calls counts, because those of the first and the last step
/// may lie outside the steps that were measured.
int64_t moved_bytes(const RunRecord& run, size_t device, Phase phase);
/// Bytes of a whole step: work that runs ahead may lie outside the measured steps.
int64_t moved_per_step(const PhaseRow& row, const PhaseTable& table);

/// A name and its text: {"scheme", "dp, split equal, ..."}.
using Facts = std::vector<std::pair<std::string, std::string>>;

/// Host memory, by name.
using StagingBytes = std::vector<std::pair<std::string, int64_t>>;

/// The checkpoints that a run saved.
struct CheckpointRecord {
  std::string folder, newest;  // newest: the name of the last one that this run saved; empty if there is none
  int64_t saved = 0, failed = 0;
  int64_t bytes = 0;           // of the tensor files of the newest
  double stall_seconds = 0.0;  // for which training waited for saves
  double write_seconds = 0.0;  // on the thread that writes
  StagingBytes planned_staging, staging;
};

/// What the records of a run, of a plan and of a comparison have in common.
struct Record {
  std::string title;
  std::string command_line;
  Facts facts;                     // model, data, scheme, machine
  Json config;                     // the effective settings
  std::vector<std::string> notes;  // what the program chose
  int processes = 1;
  bool interrupted = false;
  // What follows from the runs (conclude() in findings.h):
  std::vector<Finding> findings;  // what costs most comes first
  std::vector<Finding> stages;    // those of them that compare stages of sharding
};

/// A run, measured or planned.
struct SingleRunRecord : Record {
  RunRecord run;
  std::optional<RunRecord> stage_below;         // with sharded states: planned with one kind of them whole
  std::optional<CheckpointRecord> checkpoints;  // on rank 0, with checkpoints
};

struct TrainingRecord : SingleRunRecord {
  std::string communicator;
  std::string cuda_graphs;  // of this process; empty without GPUs
  GraphCounts graph_counts;
  std::vector<Conv2dChoice> convolutions;  // of this process's first device
  std::string plans;                       // of --autotune, a JSON object (nn/tuned_plans_file.h); empty without
  std::string resumed_from;                // the checkpoint's folder; empty for a run from the start
  std::vector<std::string> skipped;        // of --skip-damaged: what is wrong with each image
};

struct PlanRecord : SingleRunRecord {
  std::optional<std::vector<RecomputationRecord>> frontier;  // with --frontier: falling in bytes, rising in time
  std::string remedies;                                      // what would make it fit; empty if it fits
};

/// Runs under several schemes, which took turns.
struct ComparisonRecord : Record {
  std::vector<RunRecord> runs;
  std::vector<RunRecord> refused;  // only planned, because they do not fit
  std::optional<Finding> speed;
  int64_t compared_steps = 0;  // of a round
  int rounds = 1;

  std::string describe_interruption() const;  // "interrupted after 3 of 9 rounds"
};

/// Measurements as a JSON array, in which every member survives except charts. parse throws DataError naming `path`.
std::string devices_text(const std::vector<DeviceRecord>& devices);
std::vector<DeviceRecord> parse_devices(const std::string& path, const std::string& text);

}  // namespace vitrine::tools
