// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nn/model.h"
#include "nn/parallel/engine_config.h"
#include "nn/parallel/optimizer.h"
#include "nn/parallel/scheme.h"
#include "runtime/device_id.h"
#include "runtime/trace/phase_table.h"
#include "tools/program/flags/checkpoint_options.h"
#include "tools/program/flags/collective_options.h"
#include "tools/program/flags/recipe_options.h"
#include "tools/program/flags/reproduce_options.h"
#include "tools/program/flags/schedule_options.h"

namespace vitrine::tools {

/// Which experiments `vitrine lab` runs.
struct LabOptions {
  std::vector<std::string> names;  // empty: all
  bool list = false;
};

/// Settings that the program chooses with plans (choose.h).
struct Choices {
  bool batch_size = false;          // --batch-size max
  bool split = false;               // --split auto
  bool accumulate = false;          // --accumulate auto
  bool recompute_segments = false;  // --recompute-segments auto
  bool recompute = false;           // --recompute auto

  bool any() const { return batch_size || split || accumulate || recompute_segments || recompute; }
};

/// The command line's settings, checked as far as possible without opening a file or device.
struct Options {
  enum class Command { train, eval, compare, reproduce, plan, collectives, lab, info, lesson } command = Command::train;

  std::string model = "small-cnn";
  std::string data = "synthetic";
  int64_t image_size = 0;  // 0: the model's own, or the data's
  std::string preprocess = "device", normalize;
  std::optional<int64_t> classes, limit_samples;
  std::optional<float> dropout;
  int workers = 1;

  // With several processes:
  std::optional<int> rank, world_size, local_rank;
  int processes = 1;            // plan: their number; the first is planned
  std::string run_id;           // empty: the launcher's
  std::string rendezvous;       // tcp://HOST:PORT or file:PATH; empty: the launcher's
  double timeout_seconds = 60;  // of a collective
  int verify_replicas = 0;      // compare the replicas every so many steps; 0: at the start only
  bool quiet = false;           // this process is not the one that prints

  std::string devices;  // empty: the GPU of the local rank, else cpu:0
  std::vector<int64_t> device_memory;
  std::optional<int64_t> workspace;     // nothing: by backend and model
  std::vector<int> threads_per_device;  // one for all, or one for each
  bool tf32 = false;
  bool nccl_defaults = false;
  bool cuda_graph = true;
  std::optional<std::string> autotune;  // train: the file of the plans; empty: none
#ifdef VITRINE_CHECK_ORDER
  bool check_order = true;
#else
  bool check_order = false;
#endif

  std::optional<std::string> mode;
  std::string modes = "dp,balanced,criterion,ddp";  // compare; reproduce has its own
  std::optional<std::string> split, staging, loss_at, reduce, output_device;
  std::optional<int64_t> gpu0_batch_size;
  double bucket_mb = 25, first_bucket_mb = 1;  // MiB

  int64_t batch_size = 64;
  int accumulate = 1;
  std::string recompute_segments = "1", loss_gradient = "in-place";
  std::string recompute;  // names of parts; empty: by recompute_segments
  std::string batch_norm = "exact";
  Choices choices;
  std::string balance = "memory";  // --split auto: by memory or time
  std::optional<int64_t> epochs, steps;
  int rounds = 5;  // of compare
  bool evaluate = true;
  int64_t eval_every = 0;  // train: steps; 0: only at the end of epochs
  std::string optimizer = "adamw";
  std::optional<double> lr, momentum, weight_decay, adam_eps;
  std::string adam_betas;  // "0.9,0.999"; empty: the optimizer's
  bool nesterov = false;
  ScheduleOptions schedule;  // train
  RecipeOptions recipe;
  uint64_t seed = 0;
  std::string data_on_device = "off";  // train, plan
  bool shuffle = true;
  bool drop_last = false;

  std::string precision = "fp32";
  std::string precisions;                 // compare, reproduce; empty: the one precision
  std::optional<std::string> loss_scale;  // by precision
  std::optional<int> loss_scale_growth_interval;
  std::optional<double> clip_norm;
  bool allow_non_finite = false;
  std::string reduce_dtype = "f32";
  std::optional<std::string> broadcast;

  std::string init_weights, save;
  bool init_partial = false;         // of --init-weights, load what fits
  std::string strip_prefix;          // of the names in weights files
  std::vector<std::string> freeze;   // patterns of parameters that are not trained
  CheckpointOptions checkpoints;     // train; plan knows the directory
  std::string weights, save_logits;  // eval
  bool confusion = false;            // train, eval
  CollectiveOptions collectives;
  ReproduceOptions reproduce;
  LabOptions lab;
  bool frontier = false;  // plan
  int lesson = 0;         // 0: the list
  bool answer = false;    // print the lesson's answer instead of running its command
  bool run_answer = false;

  std::string trace, report, memory_history, tensorboard, log;
  std::string record_steps;  // "2-4"; empty: those, and of a trace all
  std::string trace_level = "phase";
  bool json = false;
  int64_t log_every = 0;  // steps between lines of progress; 0: by time, or a bar

  std::vector<std::string> arguments;  // as they were given

  /// Whether an output needs recorded steps, in addition to the tables.
  bool records() const { return !trace.empty() || !report.empty() || !memory_history.empty(); }
  bool host_preprocess() const { return preprocess == "host"; }
  bool images_on_device() const { return data_on_device == "on"; }
  /// The preset: --mode, or what --gpu0-bsz stands for, or ddp.
  std::string mode_name() const { return gpu0_batch_size ? "balanced" : mode.value_or("ddp"); }
};

/// The parsed command line: options to run with, or a text to print and the exit status.
struct CommandLine {
  std::optional<Options> options;
  int exit_code = 0;
  std::string output;  // help and version: for stdout
  std::string error;   // for stderr
};

/// Exit statuses of the program.
inline constexpr int kExitOk = 0, kExitFailure = 1, kExitUsage = 2, kExitInterrupted = 130, kExitTerminated = 143;

struct SettingRow;
using SettingTable = std::vector<SettingRow>;
const SettingTable& setting_table();

/// Reads the arguments after the program's name. Never throws for user input.
CommandLine parse_command_line(const std::vector<std::string>& arguments, const SettingTable& table = setting_table());

/// throws ConfigError on options that contradict each other.
void check_combinations(const Options& options);

/// The requested devices, or the default. throws ConfigError, DeviceError when there is no GPU for this local rank.
std::vector<DeviceId> resolve_devices(const Options& options, int cuda_device_count);
/// The scheme of --mode, with the axes that have flags of their own replaced, adapted to devices and batch size. throws
/// ConfigError.
///   world_size  devices of all processes, where there are several
Scheme resolve_scheme(const Options& options, const std::vector<DeviceId>& devices, std::optional<int> world_size = {});
/// The schemes that `compare` runs, in order; adds to `notes` what the program chose. throws ConfigError.
std::vector<std::pair<std::string, Scheme>> resolve_compare_schemes(const Options& options,
                                                                    const std::vector<DeviceId>& devices,
                                                                    std::vector<std::string>& notes);
/// The precisions that `compare` runs each scheme in: "fp16" or "fp16:LOSS_SCALE", named as given; without --precisions
/// the one of --precision, without a name. The growth interval goes to those whose scale is dynamic, --broadcast to
/// those that have a 16-bit copy. throws ConfigError.
std::vector<std::pair<std::string, Precision>> resolve_compare_precisions(const Options& options);
OptimizerConfig resolve_optimizer(const Options& options);
/// Number of recompute segments; sqrt: the square root of the number of the model's parts.
int resolve_recompute_segments(const Options& options, const Model& model);
/// The names of --recompute, separated by commas. throws ConfigError.
std::vector<std::string> parse_recompute(const std::string& text);
/// Precision, loss scaling, clipping, and the data types used to reduce gradients and broadcast parameters. throws
/// ConfigError.
Precision resolve_precision(const Options& options);
/// The precision for a model: where some of its parameters stay f32, masters are broadcast. throws ConfigError for
/// --broadcast half there.
Precision precision_for(const Options& options, const Model& model, const Precision& precision);
TraceLevel resolve_trace_level(const Options& options);
/// "2-4" or "3", counted from 1, to a range counted from 0. throws ConfigError.
StepRange parse_step_range(const std::string& text);

/// "host", "gathered", "gpu0", ...: as the options spell them.
const char* staging_name(Staging staging);
const char* loss_at_name(LossAt loss_at);
const char* reduce_name(Reduce reduce);
/// "staging host, loss parallel, reduce allreduce".
std::string describe_axes(const Scheme& scheme);
/// "fp32", "fp16", "bf16".
const char* precision_name(DType compute);
/// "none", "dynamic" or the number.
std::string loss_scale_name(const LossScaling& scaling);

}  // namespace vitrine::tools
