// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "nn/lr_schedule.h"
#include "nn/model.h"
#include "nn/parallel/engine_config.h"
#include "nn/parallel/optimizer.h"
#include "nn/parallel/scheme.h"
#include "runtime/comm/reduce_op.h"
#include "runtime/device_id.h"
#include "runtime/dtype.h"
#include "runtime/trace/phase_table.h"

namespace CLI {
class App;
}

namespace vitrine::tools {

struct Options;

/// When checkpoints are saved.
struct CheckpointInterval {
  bool epochs = false;  // after each epoch
  int64_t steps = 0;    // above 0: after so many optimizer steps
};

/// The flags of checkpoints.
struct CheckpointOptions {
  std::string directory;  // empty: none are saved
  std::optional<std::string> every;
  std::optional<int64_t> keep_last;
  bool keep_best = false;
  std::string resume;  // a directory of checkpoints, one of them, or "auto"

  bool resumes_automatically() const { return resume == "auto"; }
};

/// throws ConfigError.
CheckpointInterval resolve_checkpoint_interval(const CheckpointOptions& options);
/// throws ConfigError for flags that need others.
///   evaluates_epochs  the run evaluates each epoch on the test set
void check_checkpoint_options(const CheckpointOptions& options, const std::string& init_weights, bool evaluates_epochs);

/// What `vitrine collectives` measures. reduce_broadcast is what `--reduce device0` does: a reduction to the root, then
/// a broadcast from there; tree_all_reduce is that of exact mode, with a leaf on each rank.
enum class Collective {
  scatter,
  gather,
  broadcast,
  reduce,
  all_reduce,
  reduce_scatter,
  all_gather,
  alltoall,
  sendrecv,
  reduce_broadcast,
  tree_all_reduce
};

/// What distinguishes a collective from the others.
struct CollectiveTraits {
  Collective collective;
  const char* name;
  bool sums = false;
  bool has_root = false;
  bool in_parts = false;      // the larger of a rank's two buffers has a part for each rank
  bool takes_counts = false;  // parts may have different sizes
  bool in_place = true;       // a rank's output may be its input, or a part of it
};
/// In the order of the enumeration.
std::span<const CollectiveTraits> all_collectives();
const CollectiveTraits& traits_of(Collective collective);
std::vector<std::string> collective_names();

/// Sizes up to this can be doubled and added without overflow.
inline constexpr int64_t kMostCollectiveBytes = int64_t{1} << 50;

/// What `vitrine collectives` times, named as nccl-tests' flags.
struct CollectiveOptions {
  std::vector<std::string> names;                  // all, when none was given
  std::optional<int64_t> first_bytes, last_bytes;  // -b, -e
  double step_factor = 4;
  int64_t step_bytes = 0;  // above 0: instead of the factor
  int iterations = 20, warm_up = 5;
  int devices_of_thread = 0, threads = 0;  // 0: --devices names them
  bool check = true;
  std::string datatype = "float", reduction = "sum";
  int root = 0;
  std::vector<int64_t> counts = {};  // of scatter and gather: the ranks' parts, one to another; empty: equal
  // Resolved:
  int64_t min_bytes = int64_t{64} << 10, max_bytes = int64_t{16} << 20;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
};

/// Completes the options.   app  the subcommand, parsed      throws ConfigError
void resolve_collectives(const CLI::App& app, CollectiveOptions& options);

/// The size that follows `bytes`: larger than it, and above max_bytes after the last one.
int64_t next_size(const CollectiveOptions& options, int64_t bytes);

/// The flags of what makes a model generalize: augmentation, label smoothing, parameter groups, averages of the
/// weights.
struct RecipeOptions {
  std::string augment;  // "flip,crop:4,cutout:8"; empty: none
  double label_smoothing = 0.0;
  std::vector<std::string> no_decay;  // norms, biases
  std::vector<std::string> groups;    // "PATTERN:lr=0.01,weight-decay=0"
  std::optional<double> ema;
};

/// throws ConfigError for what cannot be read, and where --augment meets --preprocess host.
void check_recipe(const RecipeOptions& options, bool host_preprocess);
Augmentation resolve_augmentation(const RecipeOptions& options);
/// throws ConfigError if --augment needs larger images.
///   stored  the smaller side of the data set's images     input  the smaller side of the model's input
void check_augmentation(const RecipeOptions& options, int64_t stored, int64_t input);
/// lr  the optimizer's learning rate, whose share a group's is
std::vector<ParameterGroup> resolve_parameter_groups(const RecipeOptions& options, double lr);
/// "0.49,0.48,0.45/0.25,0.24,0.26" for as many channels, or "none" for pixels from 0 to 1; the data set's where the
/// text is empty. throws ConfigError.
Normalization resolve_normalization(const std::string& text, const Dataset& train);

/// Puts the recipe into an engine's configuration, whose optimizer is set.
void apply_recipe(const RecipeOptions& options, EngineConfig& config);
/// ", label smoothing 0.1, augmentation flip,crop:4": what follows the optimizer in descriptions. Empty without any.
std::string describe_recipe(const RecipeOptions& options);
/// "model.safetensors" to "model.ema.safetensors": where the averages are saved.
std::string averages_path(const std::string& path);

/// The flags of the learning-rate schedule.
struct ScheduleOptions {
  std::string schedule = "constant";
  std::optional<int64_t> step_size, patience, cooldown;
  std::vector<int64_t> milestones;
  std::optional<double> gamma, factor, threshold, min_lr, eps;
  std::string metric = "loss";  // of plateau: loss or accuracy on the test set, or last-batch
  int64_t warmup_steps = 0;
  std::optional<double> warmup_factor;
};

/// The values of --lr-schedule.
std::vector<std::string> schedule_names();

/// The schedule for a run of `total_steps` optimizer steps that evaluates each epoch or not. throws ConfigError for
/// flags that do not belong to the schedule, or for plateau without evaluation.
LrScheduleConfig resolve_schedule(const ScheduleOptions& options, int64_t total_steps, bool evaluates_epochs);

/// ", schedule cosine, warm-up of 20 steps": what follows the learning rate in descriptions. Empty for a constant rate.
std::string describe_schedule(const ScheduleOptions& options);

/// Which experiments `vitrine lab` runs.
struct LabOptions {
  std::vector<std::string> names;  // empty: all
  bool list = false;
};

/// What `vitrine sample` continues, and how.
struct SampleOptions {
  std::string prompt;
  std::vector<int64_t> prompt_tokens;  // instead
  int64_t tokens = 100;
  double temperature = 1.0;  // 0: always the most probable token
  std::optional<int64_t> top_k;
};

/// Settings that the program chooses with plans (choose.h).
struct Choices {
  bool mode = false;                // --mode auto, before the others
  bool batch_size = false;          // --batch-size max
  bool split = false;               // --split auto
  bool accumulate = false;          // --accumulate auto
  bool recompute_segments = false;  // --recompute-segments auto
  bool recompute = false;           // --recompute auto

  bool any() const { return batch_size || split || accumulate || recompute_segments || recompute; }
};

/// The command line's settings, checked as far as possible without opening a file or device.
struct Options {
  enum class Command { train, eval, compare, plan, collectives, lab, info, lesson, verify, page, sample };
  Command command = Command::train;

  std::string model = "small-cnn";
  std::string data = "synthetic";
  int64_t image_size = 0;       // 0: the model's own, or the data's
  int64_t sequence_length = 0;  // 0: the model's own
  std::string preprocess = "device", normalize;
  std::optional<int64_t> classes, limit_samples;
  std::optional<double> val_split;
  std::optional<float> dropout;
  int workers = 1;
  bool skip_damaged = false;  // images that cannot be decoded

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
  std::optional<int64_t> workspace;                         // nothing: by backend and model
  std::shared_ptr<const WorkspaceRecord> workspace_record;  // of the planner's page
  std::vector<int> threads_per_device;                      // one for all, or one for each
  bool tf32 = false, winograd = false;
  bool nccl_defaults = false;
  bool cuda_graph = true;
  std::optional<std::string> autotune;  // train: the file of the plans; empty: none
#ifdef VITRINE_CHECK_ORDER
  bool check_order = true;
#else
  bool check_order = false;
#endif

  std::optional<std::string> mode;
  std::string modes = "dp,balanced,criterion,ddp";  // compare
  std::optional<std::string> split, staging, loss_at, reduce, shard, output_device;
  std::optional<int64_t> gpu0_batch_size;
  double bucket_mb = 25, first_bucket_mb = 1;  // MiB
  bool update_in_backward = false;

  int64_t batch_size = 64;
  int accumulate = 1;
  std::string recompute_segments = "1", loss_gradient = "in-place";
  std::string recompute;  // names of parts; empty: by recompute_segments
  std::string batch_norm = "exact";
  bool exact = false;
  int leaves = 8, leaf_threads = 1;
  std::optional<int> batch_norm_leaves;  // nothing: all leaves of the step
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
  std::string precisions;                 // compare; empty: the one precision
  std::optional<std::string> loss_scale;  // by precision
  std::optional<int> loss_scale_growth_interval;
  std::optional<double> clip_norm;
  bool allow_non_finite = false;
  std::string reduce_dtype = "f32";

  std::string init_weights, save;
  std::vector<std::string> freeze;   // patterns of parameters that are not trained
  CheckpointOptions checkpoints;     // train; plan knows the directory
  std::string weights, save_logits;  // eval, and the weights of sample
  SampleOptions sample;
  bool confusion = false;  // train, eval
  bool details = false;    // train
  CollectiveOptions collectives;
  LabOptions lab;
  bool frontier = false;           // plan
  std::string prove;               // plan
  std::string verify_a, verify_b;  // verify: flags of train, a command that trains, or a file of hashes
  std::string page;                // page: its file
  int lesson = 0;                  // 0: the list
  bool answer = false;             // print the lesson's answer instead of running its command
  bool run_answer = false;         // run the answer's command as well

  std::string trace, report, memory_history, tensorboard, log, hashes;
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

std::vector<std::string> device_names(const std::vector<DeviceId>& devices);
/// The requested devices, or the default: the GPU with the local rank, modulo their number. throws ConfigError.
std::vector<DeviceId> resolve_devices(const Options& options, int cuda_device_count);
/// throws ConfigError for --autotune on CPU devices, which have nothing to time.
void check_autotune(const Options& options, const std::vector<DeviceId>& devices);
/// The scheme of --mode, with the axes that have flags of their own replaced, adapted to devices and batch size. throws
/// ConfigError.
///   world_size  devices of all processes, where there are several
Scheme resolve_scheme(const Options& options, const std::vector<DeviceId>& devices, std::optional<int> world_size = {});
/// The names of a list. throws ConfigError if one appears twice
std::vector<std::string> names_in(const char* option, const std::string& text);
/// The schemes that `compare` runs, in order; adds to `notes` what the program chose. throws ConfigError.
std::vector<std::pair<std::string, Scheme>> resolve_compare_schemes(const Options& options,
                                                                    const std::vector<DeviceId>& devices,
                                                                    std::vector<std::string>& notes);
/// The precisions that `compare` runs each scheme in: "fp16" or "fp16:LOSS_SCALE", named as given; without --precisions
/// the one of --precision, without a name. The growth interval goes to those whose scale is dynamic. throws
/// ConfigError.
std::vector<std::pair<std::string, Precision>> resolve_compare_precisions(const Options& options);
OptimizerConfig resolve_optimizer(const Options& options);
/// Number of recompute segments; sqrt: the square root of the number of the model's parts.
int resolve_recompute_segments(const Options& options, const Model& model);
/// The names of --recompute, separated by commas. throws ConfigError.
std::vector<std::string> parse_recompute(const std::string& text);
/// Precision, loss scaling, clipping, and the data type used to reduce gradients. throws ConfigError.
Precision resolve_precision(const Options& options);
TraceLevel resolve_trace_level(const Options& options);
/// "2-4" or "3", counted from 1, to a range counted from 0. throws ConfigError.
StepRange parse_step_range(const std::string& text);

/// "host", "gathered", "device0", ...: as the options spell them.
const char* staging_name(Staging staging);
const char* loss_at_name(LossAt loss_at);
const char* reduce_name(ReducerKind reduce);
/// "staging host, loss parallel, reduce allreduce".
std::string describe_axes(const Scheme& scheme);
/// "fp32", "fp16", "bf16".
const char* precision_name(DType compute);
/// "none", "dynamic" or the number.
std::string loss_scale_name(const LossScaling& scaling);

}  // namespace vitrine::tools
