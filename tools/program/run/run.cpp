// SPDX-License-Identifier: Apache-2.0
#include "tools/program/run/run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include "kernels/conv2d.h"
#include "nn/model.h"
#include "nn/parallel/scheme.h"
#include "nn/segments.h"
#include "runtime/error.h"
#include "runtime/hash.h"
#include "runtime/parallel_for.h"
#include "runtime/process_group/agreement.h"
#include "runtime/process_group/join_processes.h"
#include "runtime/text.h"
#include "tools/program/flags/configuration.h"
#include "tools/program/process/interrupt.h"
#include "tools/program/run/checkpoint_files.h"
#include "tools/program/run/warnings.h"
#include "tools/program/text/output_file.h"

namespace vitrine::tools {
namespace {

// Synthetic data do not depend on --seed, which is for weights, order and dropout.
constexpr uint64_t kDataSeed = 0;
// The engine holds up to three batches; the rest are loaded ahead.
constexpr int kQueueBatches = 6;

ImageTransform host_transform(const Options& options, const Job& job) {
  if (!options.host_preprocess()) return {};
  const Shape from{job.data.train.height, job.data.train.width, job.data.train.channels};
  const Shape to{job.model.height, job.model.width, job.model.channels};
  return [from, to, normalization = job.normalization](std::span<const uint8_t> image, std::span<float> output) {
    resize_normalize_on_host(normalization, from, image, to, output);
  };
}

Backend backend_of(const Options& options) { return resolve_devices(options, cuda_device_count())[0].backend; }

/// The rows of this process in batches that are divided into `accumulate` micro-batches.
ShardFunction shard_of(const Run& run, int accumulate) {
  if (run.devices->process_count() == 1) return {};
  // Cached for each batch size: finding them costs time in proportion to the number of processes. Several loader
  // threads may call it.
  struct Known {
    std::mutex mutex;
    std::map<int64_t, std::vector<RowRange>> rows;
  };
  const DeviceGroup& devices = *run.devices;
  return [split = run.engine->config().scheme.split, accumulate, world_size = devices.world_size(),
          first = devices.first_rank(), size = devices.size(), known = std::make_shared<Known>()](int64_t samples) {
    const std::lock_guard lock(known->mutex);
    const auto [at, fresh] = known->rows.try_emplace(samples);
    if (fresh) at->second = part_of_process(plan_batch(split, samples, accumulate, world_size), first, size).rows;
    return at->second;
  };
}

LoaderConfig loader_config(const Options& options, const Job& job) {
  LoaderConfig config;
  config.seed = options.seed;
  config.workers = options.workers;
  config.queue_batches = kQueueBatches;
  config.host_memory = backend_of(options) == Backend::cuda ? HostMemory::pinned : HostMemory::pageable;
  config.transform = host_transform(options, job);
  if (config.transform) config.transformed_shape = Shape{job.model.height, job.model.width, job.model.channels};
  return config;
}

/// The training images, for the devices to hold.
ResidentImages resident_images(const Options& options, const Job& job) {
  if (!options.images_on_device()) return {};
  if (job.model.targets_per_sample > 1) {
    throw ConfigError(fmt::format("--data-on-device on: no data set has samples for {}; leave it out", job.model.name));
  }
  const Dataset& train = job.data.train;
  const auto read = [train](int64_t first, const View& images) {
    const auto bytes = static_cast<size_t>(train.bytes_per_image());
    parallel_for(images.shape[0], 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        train.read_image(first + i, std::span(images.as<uint8_t>() + static_cast<size_t>(i) * bytes, bytes));
      }
    });
  };
  return {train.size(), read};
}

/// The distinct batch sizes of `count` samples.
std::vector<int64_t> batch_sizes(int64_t count, int64_t batch_size, bool drop_last) {
  std::vector<int64_t> sizes;
  if (count >= batch_size) sizes.push_back(batch_size);
  if (count % batch_size != 0 && !drop_last) sizes.push_back(count % batch_size);
  return sizes;
}

/// Keeps the first samples of the training set, and of the test set the same share, rounded up.
void limit_samples(int64_t count, const std::string& description, DatasetPair& data) {
  if (description.starts_with("image-folder")) {
    throw ConfigError(
        fmt::format("--limit-samples {}: the images of an image-folder are sorted by class, so the first ones lack "
                    "classes; leave it out",
                    count));
  }
  const int64_t all = data.train.size();
  if (count >= all) return;
  data.test = first_samples(data.test, std::max<int64_t>(1, (data.test.size() * count + all - 1) / all));
  data.train = first_samples(data.train, count);
}

/// A plan reads no pixels.
///   sequence_length  above 0: of a model that takes tokens, which knows `vocabulary` of them
DatasetPair open_data(const Options& o, int64_t image_size, int64_t sequence_length = 0, int64_t vocabulary = 0) {
  DatasetPair data = open_dataset(o.data, kDataSeed,
                                  {.image_size = image_size,
                                   .measured = o.normalize.empty() && o.command != Options::Command::plan,
                                   .val_split = o.val_split.value_or(0.0),
                                   .test_optional = !o.evaluate && o.eval_every == 0,
                                   .sequence_length = sequence_length,
                                   .vocabulary = vocabulary});
  const Dataset all = data.train;
  if (o.limit_samples) limit_samples(*o.limit_samples, o.data, data);
  if (sequence_length == 0) print_warnings(o, class_warnings(all, data.train));
  return data;
}

/// Refuses flags of images for a model that takes tokens.
void refuse_image_flags(const Options& o, const std::string& model) {
  const std::pair<bool, std::string> flags[] = {{o.image_size != 0, fmt::format("--image-size {}", o.image_size)},
                                                {o.host_preprocess(), "--preprocess host"},
                                                {o.images_on_device(), "--data-on-device on"},
                                                {!o.normalize.empty(), "--normalize " + o.normalize}};
  for (const auto& [given, flag] : flags) {
    if (given) throw ConfigError(fmt::format("{}: {} takes tokens, no images; leave it out", flag, model));
  }
  if (o.confusion) throw ConfigError(fmt::format("--confusion: {} has a class for each token; leave it out", model));
}

/// The model that --model FILE.json describes, and data for it.
Job open_model_file(const Options& o) {
  if (o.image_size != 0 || o.sequence_length != 0 || o.classes || o.dropout) {
    throw ConfigError(fmt::format("--{}: the file {} sets it; leave it out, or change the file",
                                  o.image_size != 0        ? "image-size"
                                  : o.sequence_length != 0 ? "sequence-length"
                                  : o.classes              ? "classes"
                                                           : "dropout",
                                  o.model));
  }
  Job job;
  job.model = read_model_file(o.model);
  const Model& model = job.model;
  if (o.data.starts_with("image-folder") && model.height != model.width) {
    throw ConfigError(fmt::format("--data {}: images of an image-folder become square, but {} takes images of {} x {}",
                                  o.data, o.model, model.height, model.width));
  }
  const std::string layers = model.net->describe();
  job.model_hash = hash_bytes(0, layers.data(), static_cast<int64_t>(layers.size()));
  if (!model.takes_images()) {
    refuse_image_flags(o, model.name);
    job.data = open_data(o, 0, model.targets_per_sample, model.classes);
    if (job.data.train.classes > model.classes) {
      throw ConfigError(
          fmt::format("--model {}: its output has {} classes, but {} has a vocabulary of {}; give the "
                      "embedding and the last layer as many, or choose another --data",
                      o.model, model.classes, job.data.train.name, job.data.train.classes));
    }
    return job;
  }
  job.data = open_data(o, model.height);
  if (o.command == Options::Command::plan && o.data.starts_with("synthetic")) {
    // Nothing is drawn, so its images may have any channels and its labels any classes.
    for (Dataset* set : {&job.data.train, &job.data.test}) {
      for (int64_t c = set->channels; c < model.channels; ++c) {
        set->mean[static_cast<size_t>(c)] = set->mean[0];
        set->std[static_cast<size_t>(c)] = set->std[0];
      }
      set->channels = model.channels;
      set->classes = model.classes;
    }
  }
  const Dataset& train = job.data.train;
  if (train.channels != model.channels) {
    throw ConfigError(
        fmt::format("--model {}: it takes images with {} channels, but {} has images with {}; change \"input\" and the "
                    "first layer, or choose another --data",
                    o.model, model.channels, train.name, train.channels));
  }
  if (train.classes > model.classes) {
    throw ConfigError(
        fmt::format("--model {}: its output has {} classes, but {} has labels of {}; give the last layer at least {} "
                    "outputs, or choose another --data",
                    o.model, model.classes, train.name, train.classes, train.classes));
  }
  job.normalization = resolve_normalization(o.normalize, train);
  return job;
}

}  // namespace

/// A GPT and sequences of tokens for it.
static Job open_tokens_and_model(const Options& o) {
  refuse_image_flags(o, o.model);
  const int64_t length = o.sequence_length != 0 ? o.sequence_length : model_sequence_length(o.model);
  const bool plans_synthetic = o.command == Options::Command::plan && o.data.starts_with("synthetic");
  const ModelOptions own{.classes = o.classes, .sequence_length = length};
  Job job;
  job.data = open_data(o, 0, length, o.classes.value_or(plans_synthetic ? make_model(o.model, own).classes : 0));
  const Dataset& train = job.data.train;
  if (o.classes && *o.classes < train.classes) {
    throw ConfigError(
        fmt::format("--classes {}: {} has a vocabulary of {}; give at least as many outputs, or leave it out",
                    *o.classes, train.name, train.classes));
  }
  job.model = make_model(
      o.model, {.classes = o.classes.value_or(train.classes), .dropout = o.dropout, .sequence_length = length});
  return job;
}

static Job open_data_and_model(const Options& options) {
  if (options.model.ends_with(".json")) return open_model_file(options);
  if (model_sequence_length(options.model) > 0) return open_tokens_and_model(options);
  Job job;
  job.data = open_data(options, options.image_size != 0 ? options.image_size : model_image_size(options.model));
  const Dataset& train = job.data.train;
  ModelOptions model_options;
  model_options.image_size = options.image_size;
  model_options.sequence_length = options.sequence_length;  // refused
  if (options.model == "wide-head" && options.command == Options::Command::plan) {
    job.model = make_model(options.model, {.image_size = options.image_size,
                                           .classes = options.classes,
                                           .dropout = options.dropout,
                                           .sequence_length = options.sequence_length});
    return job;
  }
  if (options.model == "wide-head") {
    throw ConfigError(
        "--model wide-head: it has a target at every position of a sequence, but data sets have one label for each "
        "image; see its memory with vitrine plan, train it from C++, or choose another model");
  }
  if (options.image_size == 0 && model_image_size(options.model) == 0) {
    if (train.height != train.width) {
      throw ConfigError(fmt::format("{}: images are {} x {}, but models take square ones; choose with --image-size",
                                    train.name, train.height, train.width));
    }
    model_options.image_size = train.height;
  }
  model_options.channels = train.channels;
  if (options.classes && *options.classes < train.classes) {
    throw ConfigError(
        fmt::format("--classes {}: {} has labels of {} classes; give at least as many outputs, or leave it out",
                    *options.classes, train.name, train.classes));
  }
  model_options.classes = options.classes.value_or(train.classes);
  model_options.dropout = options.dropout;
  job.model = make_model(options.model, model_options);
  job.normalization = resolve_normalization(options.normalize, train);
  return job;
}

Job open_job(const Options& options) {
  Job job = open_data_and_model(options);
  if (options.skip_damaged) {
    if (!options.data.starts_with("image-folder")) {
      throw ConfigError(fmt::format(
          "--skip-damaged: only an image-folder has files that are damaged one by one, but --data is {}; leave it out",
          options.data));
    }
    const auto skip = [](Dataset& set, std::shared_ptr<UnreadSamples>& skipped) {
      skipped = std::make_shared<UnreadSamples>();
      if (set.size() == 0) return;  // a test set that is not there
      set = skip_unread(set, skipped, SkippedErrors::damaged);
    };
    skip(job.data.train, job.skipped_train);
    skip(job.data.test, job.skipped_test);
  }
  if (!options.freeze.empty()) with_prefix<ConfigError>("--freeze: ", [&] { job.model.net->freeze(options.freeze); });
  return job;
}

int64_t weight_copies(const Options& options, const Job& job) {
  const FlatLayout layout(job.model.net->parameters(), 0);
  const int64_t elements = layout.parameter_elements();
  // What is loaded is in the order of the file, and of the model; of a checkpoint, the optimizer's file is the largest.
  const bool loads = !options.init_weights.empty() || !options.weights.empty() || !options.checkpoints.resume.empty();
  const int64_t held = loads ? 2 * elements : options.save.empty() ? 0 : elements + reordered_elements(layout);
  return held * size_of(DType::f32);
}

int64_t gradient_copy(const Job& job) {
  return FlatLayout(job.model.net->parameters(), 0).parameter_elements() * size_of(DType::f32);
}

int64_t host_copies(const Options& options, const Job& job) {
  const FlatLayout layout(job.model.net->parameters(), 0);
  const bool hashes_steps = !options.hashes.empty();
  int64_t bytes = weight_copies(options, job) + (hashes_steps ? gradient_copy(job) : 0);
  EngineConfig config;
  config.optimizer = resolve_optimizer(options);
  apply_recipe(options.recipe, config);
  const int64_t states = (options.checkpoints.directory.empty() ? 0 : 1) + (options.exact || hashes_steps ? 1 : 0);
  for (const auto& [name, part] : plan_checkpoint_staging(layout, BufferLayout(*job.model.net), config))
    bytes += states * part;
  return bytes;
}

int64_t evaluate_batch_size(const Options& options) {
  if (options.exact) return options.batch_size;  // leaves of the same samples, whatever --accumulate says
  return (options.batch_size + options.accumulate - 1) / options.accumulate;
}

namespace {

/// What a workload depends on apart from batch size and micro-batches.
struct WorkloadSource {
  Options options;
  std::string data;
  int64_t train_samples = 0, test_samples = 0;
  std::optional<int64_t> steps;
  bool evaluate = false;

  Workload under(int64_t batch_size, int accumulate) const {
    Options sized = options;
    sized.batch_size = batch_size;
    sized.accumulate = accumulate;
    Workload workload;
    workload.train_batches = batch_sizes(train_samples, batch_size, sized.drop_last);
    if (workload.train_batches.empty()) {
      throw ConfigError(
          fmt::format("{}: {} samples do not fill a batch of {}, and --drop-last drops the rest; lower --batch-size",
                      data, train_samples, batch_size));
    }
    // A run that ends before the short last batch need not plan for it.
    if (workload.train_batches.size() == 2 && steps && *steps <= train_samples / batch_size)
      workload.train_batches.pop_back();
    if (evaluate) workload.evaluate_batches = batch_sizes(test_samples, evaluate_batch_size(sized), false);
    return workload;
  }
};

}  // namespace

Workload train_workload(const Options& options, const Job& job, std::optional<int64_t> steps, bool evaluate) {
  const WorkloadSource source{options, job.data.train.name, job.data.train.size(), job.data.test.size(), steps,
                              evaluate};
  Workload workload = source.under(options.batch_size, options.accumulate);
  workload.under = [source](const EngineConfig& config) { return source.under(config.batch_size, config.accumulate); };
  workload.stop = interrupted;
  return workload;
}

Workload evaluate_workload(const Options& options, const Job& job) {
  Workload workload;
  workload.evaluate_batches = batch_sizes(job.data.test.size(), evaluate_batch_size(options), false);
  workload.stop = interrupted;
  return workload;
}

LoaderConfig train_loader_config(const Options& options, const Job& job, const Run& run, int64_t epochs) {
  LoaderConfig config = loader_config(options, job);
  config.checker = run.devices->checker();
  config.batch_size = options.batch_size;
  config.shuffle = options.shuffle;
  config.drop_last = options.drop_last;
  config.epochs = epochs;
  config.sample_indices = run.engine->config().stages_sample_indices();
  config.images = run.engine->config().resident_images.count == 0;
  config.shard = shard_of(run, options.accumulate);
  // For the batches that Training looks at ahead.
  if (run.devices->process_count() > 1) config.queue_batches += 2;
  return config;
}

LoaderConfig evaluate_loader_config(const Options& options, const Job& job, const Run& run) {
  LoaderConfig config = loader_config(options, job);
  config.checker = run.devices->checker();
  config.batch_size = evaluate_batch_size(options);
  config.shuffle = false;
  config.shard = shard_of(run, 1);
  return config;
}

DeviceGroupOptions device_group_options(const Options& options, const std::vector<DeviceId>& devices,
                                        std::shared_ptr<ProcessGroup> process_group) {
  const auto is_meta = [](const DeviceId& id) { return id.backend == Backend::meta; };
  if (options.command != Options::Command::plan && std::any_of(devices.begin(), devices.end(), is_meta)) {
    throw ConfigError(
        "--devices: meta devices compute nothing, so there is nothing to train or to evaluate on them; use cpu or cuda "
        "devices, or vitrine plan");
  }
  const bool on_gpus = devices[0].backend == Backend::cuda;
  if (on_gpus && !options.threads_per_device.empty()) {
    throw ConfigError("--threads-per-device sets the threads of cpu devices; leave it out with GPUs");
  }
  if (!on_gpus && options.tf32)
    throw ConfigError("--tf32: TF32 is a mode of GPUs' tensor cores; leave it out, or use cuda devices");
  if (on_gpus && options.winograd)
    throw ConfigError("--winograd: cuDNN chooses the algorithms of GPUs; leave it out, or use cpu devices");
  // A record may be of a machine that has what this one lacks.
  const bool asks_here = options.winograd && options.workspace_record == nullptr;
  if (const Reason refusal = asks_here ? winograd_refusal() : Reason(); !refusal.empty())
    throw ConfigError(fmt::format("--winograd: {}; leave it out", refusal.str()));
  if (!on_gpus && !options.cuda_graph)
    throw ConfigError("--no-cuda-graph: only GPUs have CUDA graphs; leave it out, or use cuda devices");
  if (!on_gpus && options.nccl_defaults)
    throw ConfigError("--nccl-defaults: NCCL is for GPUs; leave it out, or use cuda devices");
  DeviceGroupOptions group;
  group.devices = devices;
  group.memory_bytes = options.device_memory;
  group.threads_per_device = options.threads_per_device;
  if (options.exact && !on_gpus) group.threads_per_device = {options.leaf_threads};
  group.check_order = options.check_order;
  group.tf32 = options.tf32;
  group.winograd = options.winograd;
  group.trace = resolve_trace_level(options);
  return join_processes(std::move(group), std::move(process_group));
}

EngineConfig engine_config(const Options& options, const Job& job, const Scheme& scheme, const Precision& precision) {
  EngineConfig config;
  config.scheme = scheme;
  config.batch_size = options.batch_size;
  config.accumulate = options.accumulate;
  config.recompute_segments = resolve_recompute_segments(options, job.model);
  config.recompute = parse_recompute(options.recompute);
  // The message begins with "recompute: ".
  with_prefix<ConfigError>("--", [&] { find_segments(*job.model.net, config.recompute); });
  config.batch_statistics = options.batch_norm == "local" ? BatchStatistics::local : BatchStatistics::exact;
  config.leaf_threads = options.leaf_threads;
  config.batch_norm_leaves = options.batch_norm_leaves.value_or(0);
  config.loss_gradient_in_place = options.loss_gradient == "in-place";
  config.update_in_backward = options.update_in_backward;
  config.optimizer = resolve_optimizer(options);
  apply_recipe(options.recipe, config);
  with_prefix<ConfigError>("--param-group: ", [&] {
    make_update_ranges(FlatLayout(job.model.net->parameters(), 0), config.parameter_groups, 0.0);
  });
  config.precision = precision;
  config.allow_non_finite = options.allow_non_finite;
  config.cuda_graph = options.cuda_graph;
  config.bucket_bytes = std::llround(options.bucket_mb * (1 << 20));
  config.first_bucket_bytes = std::llround(options.first_bucket_mb * (1 << 20));
  config.seed = options.seed;
  config.normalization = job.normalization;
  config.workspace_bytes = options.workspace;
  config.workspace_record = options.workspace_record;
  // No data set has samples for a model that does not take images; they are planned in the model's own shape.
  const bool ready_made = options.host_preprocess() || job.model.targets_per_sample > 1;
  if (ready_made && config.augmentation.any())
    throw ConfigError(
        fmt::format("--augment {}: {} takes no images; leave it out", options.recipe.augment, job.model.name));
  if (!ready_made) {
    check_augmentation(options.recipe, std::min(job.data.train.height, job.data.train.width),
                       std::min(job.model.height, job.model.width));
  }
  config.image_dtype = ready_made ? job.model.sample_dtype() : DType::u8;
  config.image_height = ready_made ? job.model.height : job.data.train.height;
  config.image_width = ready_made ? job.model.width : job.data.train.width;
  config.resident_images = resident_images(options, job);
  return config;
}

bool counts_confusion(const Options& options, const Job& job) {
  constexpr int64_t kMostClasses = 480;
  const bool draws = !options.tensorboard.empty() && job.model.classes <= kMostClasses && job.model.takes_images();
  return options.confusion || draws;
}

void agree_on_run(const Options& options, const Job& job, const std::vector<DeviceId>& devices,
                  ProcessGroup& process_group, int world_size) {
  AgreementFields fields = {{"command", options.command == Options::Command::train ? "train" : "eval"}};
  for (auto& field : agreed_settings({options, job, devices, world_size})) fields.push_back(std::move(field));
  require_agreement(process_group, "their settings", fields);
}

WeightsFile initial_weights(const Options& options) {
  return {options.init_weights, {.allow_non_finite = options.allow_non_finite, .partial = true}, "--init-weights"};
}

/// Prefixes of names that were left out, what was not loaded, and what of the file was not used.
static void report_loaded(const WeightsFile& weights, const FlatLayout& layout, const LoadedWeights& loaded) {
  if (loaded.prefixes.empty() && loaded.not_loaded.empty() && loaded.unused.empty()) return;
  constexpr size_t kShown = 8, kMostShown = 160;
  std::string text = fmt::format("vitrine: {} {}: loaded {} of {} parameters", weights.option, weights.path,
                                 loaded.parameters, layout.size());
  if (!loaded.prefixes.empty())
    text += fmt::format(", without '{}' before their names", fmt::join(loaded.prefixes, "' or '"));
  const auto list = [&](const char* what, const std::vector<std::string>& items, size_t shown) {
    if (!items.empty()) text += fmt::format("\n  {}:", what);
    for (size_t i = 0; i < std::min(items.size(), shown); ++i) text += "\n    " + excerpt(items[i], kMostShown);
    if (items.size() > shown) text += fmt::format("\n    and {} more", items.size() - shown);
  };
  list("not loaded, initialized from the seed", loaded.not_loaded, loaded.not_loaded.size());
  list("in the file, but not in the model", loaded.unused, kShown);
  fmt::print(stderr, "{}\n", text);
}

/// Refuses weights of other characters than the data has.
static void check_characters(const std::string& path, const Dataset& data) {
  const std::string stored = read_metadata(path, kCharacters);
  if (stored.empty() || stored == data.characters) return;
  throw DataError(fmt::format(
      "{}: it knows other characters than --data has: '{}', and {}; give a --data "
      "characters:FILE with the same ones",
      path, excerpt(stored), data.characters.empty() ? "none" : fmt::format("'{}'", excerpt(data.characters))));
}

void load_weights(Run& run, const Job& job, const WeightsFile& weights) {
  const FlatLayout& layout = run.engine->parameters().layout();
  const bool reads = run.devices->process() == 0;
  std::vector<float> flat(reads ? static_cast<size_t>(layout.parameter_elements()) : 0);
  const BufferLayout& buffer_layout = run.engine->parameters().buffer_layout();
  BufferValues buffers = buffer_layout.initial();
  const std::string prefix = weights.option.empty() ? "" : weights.option + " ";
  try {
    if (reads) {
      if (weights.load.partial) initialize(layout, run.engine->config().seed, flat);
      const std::string path = find_weights(weights.path);
      const LoadedWeights loaded = load_parameters(path, layout, flat, buffer_layout, buffers, weights.load);
      check_characters(path, job.data.train);
      report_loaded(weights, layout, loaded);
    }
  } catch (const NonFiniteWeights& error) {
    throw DataError(fmt::format("{}{}, or take them as they are with --allow-non-finite", prefix, error.what()));
  } catch (const DataError&) {
    rethrow_with_prefix(std::current_exception(), prefix);
  }
  run.engine->parameters().set(flat);
  run.engine->parameters().set_buffers(buffers);
}

Run open_run(std::unique_ptr<DeviceGroup> devices, const Job& job, const EngineConfig& config, const Workload& workload,
             const WeightsFile& weights, bool record_memory, bool reads_all_samples) {
  Run run;
  run.devices = std::move(devices);
  for (int d = 0; record_memory && d < run.devices->size(); ++d) (*run.devices)[d].pool().record_history(true);
  run.engine = std::make_unique<Engine>(job.model, *run.devices, config, workload);
  if (run.devices->process_count() == 1) {  // otherwise each process loads only its own rows
    const bool reads_images = !workload.train_batches.empty() && config.resident_images.count == 0;
    if (reads_images && reads_all_samples) job.data.train.samples->read_ahead(interrupted);
    if (!workload.evaluate_batches.empty()) job.data.test.samples->read_ahead(interrupted);
  }
  if (!weights.path.empty()) load_weights(run, job, weights);
  return run;
}

}  // namespace vitrine::tools
