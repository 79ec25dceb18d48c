// SPDX-License-Identifier: Apache-2.0
// All settings of the program, in the order of the help and of the documentation.
#include <set>
#include <span>
#include <utility>

#include <fmt/ranges.h>

#include "kernels/libraries.h"
#include "nn/model.h"
#include "nn/parameter_store.h"
#include "runtime/device.h"
#include "runtime/leaf_tree.h"
#include "runtime/text.h"
#include "tools/program/flags/setting.h"

namespace vitrine::tools {
namespace {

constexpr int64_t kMostSamples = int64_t{1} << 40, kMostSteps = int64_t{1} << 40;

using Context = const SettingContext&;

const Json kAbsent(Json::value_t::discarded);

template <class T>
Field at(T Options::*member) {
  return field_of([member](auto& o) -> auto& { return o.*member; });
}
template <class Group, class T>
Field at(Group Options::*group, T Group::*member) {
  return field_of([ group, member ](auto& o) -> auto& { return o.*group.*member; });
}

/// The rows of a group of the help.
struct Group {
  const char* name;
  SettingTable rows;
};

/// A row with what is particular about it.
SettingRow flag(const char* name, Commands commands, const Field& field, const char* help, SettingRow row) {
  row.flag = name, row.commands = commands, row.field = field, row.help = help;
  return row;
}
SettingRow flag(const char* name, Commands commands, const Field& field, const char* help, const Values& values = {},
                SettingRow row = {}) {
  row.values = values;
  return flag(name, commands, field, help, std::move(row));
}

/// What is particular about a flag of a process or its outputs: no run is compared by it.
SettingRow local(const char* type = "", Ranks ranks = Ranks::local) {
  return {.type = type, .json = 0, .effect = Effect::local, .ranks = ranks};
}

/// A value of the JSON configuration that has no flag.
SettingRow value(const char* key, Commands commands, SettingRow row) {
  row.key = key, row.json = commands;
  return row;
}

Scheme scheme_of(Context c) { return resolve_scheme(c.options, c.devices, c.world_size); }
Precision precision_of(Context c) { return resolve_precision(c.options); }
bool is_sgd(Context c) { return resolve_optimizer(c.options).kind == OptimizerConfig::Kind::sgd; }
/// The effective constants; the usual ones with sgd.
AdamConfig adam_of(Context c) { return is_sgd(c) ? AdamConfig() : resolve_optimizer(c.options).adam_kernel(); }

/// Layers with running statistics take them over a micro-batch or, on request, over the samples of a device.
bool has_norms(Context c) { return BufferLayout(*c.job.model.net).any_saved(); }
/// What decides how a leaf is computed: rounding, of which exact mode allows none.
Effect of_algorithms(Context c) { return c.options.exact ? Effect::result : Effect::rounding; }
/// Exact mode computes the same bits, however its leaves are distributed.
Effect unless_exact(Context c) { return c.options.exact ? Effect::none : Effect::rounding; }
Effect of_devices(Context c) {
  return has_norms(c) && c.options.batch_norm == "local" ? Effect::result : unless_exact(c);
}
/// A longer run makes the same steps at first, unless the schedule spans all of them.
Effect of_length(Context c) {
  const std::string& schedule = c.options.schedule.schedule;
  return schedule == "cosine" || schedule == "one-cycle" ? Effect::rate : Effect::none;
}

/// "" for the data set's own.
Json normalization_in_force(Context c) {
  const auto describe = [channels = static_cast<size_t>(c.job.data.train.channels)](const Normalization& n) {
    return fmt::format("{}/{}", fmt::join(std::span(n.mean).first(channels), ","),
                       fmt::join(std::span(n.std).first(channels), ","));
  };
  const std::string used = describe(c.job.normalization);
  if (used == describe({c.job.data.train.mean, c.job.data.train.std})) return "";
  return used == describe({}) ? "none" : used;
}

Json augmentation_in_force(Context c) {
  const Augmentation augmentation = resolve_augmentation(c.options.recipe);
  std::vector<std::string> parts;
  if (augmentation.flip) parts.emplace_back("flip");
  if (augmentation.crop_padding > 0) parts.push_back(fmt::format("crop:{}", augmentation.crop_padding));
  if (augmentation.cutout > 0) parts.push_back(fmt::format("cutout:{}", augmentation.cutout));
  return parts;
}

/// In the order in which they were given, which matters.
Json groups_in_force(Context c) {
  std::vector<std::string> texts;
  for (const ParameterGroup& group : resolve_parameter_groups(c.options.recipe, 1.0)) {
    if (group.kind != ParameterGroup::Kind::names) continue;  // of --no-decay
    std::vector<std::string> values;
    if (group.lr_factor) values.push_back(fmt::format("lr={}", *group.lr_factor));
    if (group.weight_decay) values.push_back(fmt::format("weight-decay={}", *group.weight_decay));
    texts.push_back(fmt::format("{}:{}", group.pattern, fmt::join(values, ",")));
  }
  return fmt::format("{}", fmt::join(texts, " "));
}

SettingTable model_settings() {
  return {
      flag("--model", kModels | kSample, at(&Options::model),
           "Model, or a FILE.json with its layers (docs/model_files.md)", one_of_or_file(model_names(), "FILE.json"),
           {.read = [](Context c) { return c.job.model.name; },
            .compared =
                [](Context c) { return fmt::format("{}, {} classes", identify_model(c.job), c.job.model.classes); }}),

      // The path may differ between machines.
      flag("--data", kModels, at(&Options::data),
           "cifar10:DIR, cifar100:DIR, fashion-mnist:DIR, idx:DIR, image-folder:DIR (a folder per class in train "
           "and val, or with --val-split) or synthetic[:COUNT]; for a GPT tokens:GLOB (16-bit files of llm.c or "
           "nanoGPT), "
           "text:FILE (bytes), characters:FILE or synthetic",
           {.type = "KIND:DIR", .compared = [](Context c) { return identify_data(c.job); }}),
      flag("--image-size", kModels, at(&Options::image_size),
           "Height and width of the model's input [227 for alexnet, 224 for vgg16, resnet18 and resnet50, else the "
           "data's]",
           whole_number(1, 1 << 16),
           {.shows_default = false,
            .read = [](Context c) { return c.job.model.height; },
            .meaning = "height and width of the images that the model receives"}),
      flag("--sequence-length", kModels, at(&Options::sequence_length),
           "Tokens of a sample of a GPT [1024, of nano-gpt 256]", whole_number(2, 1 << 16),
           {.shows_default = false,
            .read = [](Context c) { return c.job.data.train.sequence_length; },
            .meaning = "tokens of a sample; 0 for models that take no tokens"}),
      value("channels", kModels,
            {.read = [](Context c) { return c.job.model.channels; },
             .meaning = "channels of the images",
             .effect = Effect::local}),
      flag("--classes", kModels | kSample, at(&Options::classes), "Outputs of the model [the data's classes]",
           whole_number(1, 1 << 24),
           {.read = [](Context c) { return c.job.model.classes; },
            .meaning = "outputs of the model: `--classes`, or the data's classes",
            .effect = Effect::local}),
      flag("--limit-samples", kModels, at(&Options::limit_samples),
           "Use the first N training images and the same share of the test set [all]", whole_number(1, kMostSamples),
           {.meaning = "`--limit-samples`; null: all", .effect = Effect::local}),
      flag("--val-split", kModels, at(&Options::val_split),
           "Evaluate on this share of the training images, which are held out, the same in every run [the data's "
           "test set]",
           fraction(false, false), {.meaning = "`--val-split`; null: the data's test set"}),
      flag("--preprocess", kModels, at(&Options::preprocess), "Where images are resized and normalized",
           one_of({"host", "device"}), {.effect_if = of_algorithms}),
      flag("--normalize", kModels, at(&Options::normalize),
           "Mean/deviation per channel of pixels from 0 to 1: 0.5,0.5,0.5/0.2,0.2,0.2; or none [the data set's]",
           {.type = "MEAN/DEVIATION",
            .meaning = "`--normalize`; null: the data set's",
            .compared = normalization_in_force}),
      flag("--workers", kModels, at(&Options::workers), "Threads that load batches", whole_number(1, 256),
           {.effect = Effect::local, .ranks = Ranks::local}),
      flag("--skip-damaged", kTrain | kEval, at(&Options::skip_damaged),
           "Skip images of an image-folder that cannot be decoded, and list them; else one ends the run",
           {.effect = Effect::local}),
      flag("--data-on-device", kRuns, at(&Options::data_on_device), "Keep the whole training set in device memory",
           one_of({"on", "off"}),
           {.read = [](Context c) { return c.options.images_on_device(); },
            .meaning = "whether `--data-on-device` is on",
            .effect = Effect::local}),
      flag("--weights", kEval | kSample, at(&Options::weights),
           "FILE.safetensors, a checkpoint, a folder of checkpoints (its newest), or a model's folder of Hugging "
           "Face",
           {.type = "FILE", .required = kEval | kSample, .effect = Effect::local, .ranks = Ranks::given}),
  };
}

SettingTable device_settings() {
  using L = SettingRow::List;
  constexpr Commands kUsers = kModels | kBench | kSample;
  return {
      flag("--devices", kUsers, at(&Options::devices),
           "Devices of each process: cpu:0-3 | cuda:0-1 | cuda:all | cuda:0,cuda:0 (two logical devices of one "
           "GPU) [the GPU of its local rank, else cpu:0]",
           {.type = "LIST",
            .key = "devices[]",
            .read = [](Context c) { return device_names(c.devices); },
            .meaning = "devices of this process",
            .effect_if = of_devices,
            .compared =
                [](Context c) {
                  return fmt::format("{} {}", c.world_size.value_or(static_cast<int>(c.devices.size())),
                                     c.devices.front().backend == Backend::cuda ? "cuda" : "cpu");
                },
            .ranks = Ranks::local}),
      flag("--device-memory", kUsers, at(&Options::device_memory),
           "Capacity of each device: 512MiB, or a list [the available memory, divided]", bytes(4096),
           {.type = "SIZE", .list = L::commas, .effect = Effect::local, .ranks = Ranks::local}),
      flag("--workspace", kUsers, at(&Options::workspace),
           "Scratch memory of each device's libraries: 64MiB [planned: what the convolutions need]", bytes(0),
           {.type = "SIZE",
            .meaning = "`--workspace` in bytes; null: sized by the plan",
            .effect_if = of_algorithms,
            .compared =
                [](Context c) {
                  const bool planned = c.workspace_bytes && !c.options.exact;  // there its size changes no bits
                  return value_or_null(planned ? c.workspace_bytes : c.options.workspace);
                }}),
      flag("--threads-per-device", kUsers, at(&Options::threads_per_device),
           "Threads of each CPU device: 2, or a list [the cores, divided]", whole_number(1, kMostThreadsPerDevice),
           {.type = "N",
            .list = L::commas,
            .effect_if = unless_exact,
            .compared = [](Context c) { return c.threads ? Json(*c.threads) : Json(c.options.threads_per_device); },
            .ranks = Ranks::local}),
      value("cpu_arithmetic", kModels,
            {.read =
                 [](Context c) { return c.devices.front().backend == Backend::cuda ? Json() : Json(cpu_arithmetic()); },
             .meaning = "libraries and instruction set of operations on CPU devices; null: GPUs",
             .effect_if = of_algorithms}),
      flag("--tf32", kUsers, at(&Options::tf32),
           "Use TF32 in matrix products and convolutions on GPUs: faster, 10 bits of mantissa"),
      // Checkpoints of versions without the flag continue.
      flag("--winograd", kModels, at(&Options::winograd),
           "Let f32 convolutions on CPU devices run by Winograd's algorithm: faster, six times the rounding error",
           {.effect_if = of_algorithms, .compared = [](Context c) { return c.options.winograd ? "on" : ""; }}),
      flag("--nccl-defaults", kUsers, at(&Options::nccl_defaults),
           "Let NCCL choose its algorithm and protocol: often faster, but last bits may differ from run to run",
           {.effect = Effect::rounding}),
      flag("--check-order", kUsers, at(&Options::check_order), "Report unordered operations on the same memory",
           local()),
  };
}

/// These words; `alias` becomes `word`.
Values with_alias(std::vector<std::string> words, const char* alias, const char* word) {
  Values values = one_of(std::move(words));
  values.accepts = [alias, word](std::string& text) {
    if (text == alias) text = word;
    return false;  // the words decide
  };
  return values;
}

/// Names of schemes.
Values scheme_values() { return with_alias(scheme_names(), "fsdp", "zero3"); }

SettingTable scheme_settings() {
  using L = SettingRow::List;
  return {
      flag("--mode", kRuns, at(&Options::mode),
           "Data-parallel scheme: a preset of --split, --staging, --loss-at, --reduce and --shard; fsdp means zero3 "
           "[ddp]",
           scheme_values(),
           {.choice = {"auto", &Choices::mode, "; auto: the fastest that fits"},
            .read = [](Context c) { return c.options.mode_name(); },
            .meaning = "the scheme",
            .effect_if = unless_exact,
            .compared = [](Context c) { return describe_axes(scheme_of(c)); }}),
      flag("--split", kRuns | kCompare, at(&Options::split),
           "Shares of the devices: equal | 2,3,3 (weights) | gpu0=N (samples per step on device 0)",
           {.type = "SPLIT",
            .choice = {"auto", &Choices::split, " | auto (by --balance)"},
            .json = kRuns,
            .read = [](Context c) { return scheme_of(c).split.str(); },
            .meaning = "`equal`, weights (`2,3,3`) or `gpu0=N`",
            .effect_if = of_devices}),
      flag("--balance", kRuns, at(&Options::balance),
           "Criterion of --split auto: memory (planned) or time (measured first)", one_of({"memory", "time"}),
           {.json = 0, .effect = Effect::local}),
      flag("--gpu0-bsz", kRuns | kCompare, at(&Options::gpu0_batch_size), "Short for --mode balanced --split gpu0=N",
           whole_number(0), {.json = 0, .effect = Effect::local}),
      flag("--staging", kRuns, at(&Options::staging),
           "Where a batch goes first: device0 (whole, then scattered) or host (slices straight to their devices) "
           "[the mode's]",
           one_of({"device0", "host"}),
           {.read = [](Context c) { return staging_name(scheme_of(c).staging); },
            .meaning = "`device0` or `host`",
            .effect = Effect::local}),
      flag("--loss-at", kRuns, at(&Options::loss_at),
           "Where the loss is computed: gathered (on the output device) or parallel (on each) [the mode's]",
           one_of({"gathered", "parallel"}),
           {.read = [](Context c) { return loss_at_name(scheme_of(c).loss_at); },
            .meaning = "`gathered` or `parallel`",
            .effect = Effect::local}),
      flag("--reduce", kRuns, at(&Options::reduce),
           "How gradients are reduced: device0 (update there, then broadcast; also called gpu0) or allreduce "
           "[the mode's]",
           with_alias({"device0", "allreduce"}, "gpu0", "device0"),
           {.read = [](Context c) { return reduce_name(scheme_of(c).reduce); },
            .meaning = "`device0` or `allreduce`",
            .effect = Effect::local}),
      flag("--shard", kRuns, at(&Options::shard),
           "What each device holds a part of: none, optimizer (states and averages), gradients (and these) or "
           "parameters (all three) [the mode's]",
           one_of(sharding_names()),
           {.read = [](Context c) { return sharding_name(scheme_of(c).shard); },
            .meaning = "`none`, `optimizer`, `gradients` or `parameters`",
            .effect = Effect::local}),
      flag("--update-in-backward", kRuns, at(&Options::update_in_backward),
           "Update the parameters of a bucket during backward, and free its gradients", {.effect = Effect::none}),
      flag("--bucket-mb", kTrainings, at(&Options::bucket_mb),
           "MiB of gradients in each all-reduce bucket, and of parameters that zero3 gathers at once",
           number(1e-6, 1e6), {.json = kRuns, .effect_if = unless_exact}),
      flag("--first-bucket-mb", kTrainings, at(&Options::first_bucket_mb), "MiB of gradients in the first bucket",
           number(1e-6, 1e6), {.json = kRuns, .effect_if = unless_exact}),
      flag("--output-device", kRuns, at(&Options::output_device), "Device on which outputs are gathered [the first]",
           {.type = "DEVICE",
            .read =
                [](Context c) {
                  const Scheme scheme = scheme_of(c);
                  return scheme.loss_at == LossAt::gathered
                             ? Json(c.devices[static_cast<size_t>(scheme.output_device)].str())
                             : Json();
                },
            .meaning = "device of the gathered loss",
            .effect = Effect::local}),
      flag("--modes", kCompare, at(&Options::modes), "Schemes to run, a list", scheme_values(),
           {.list = L::commas, .json = 0, .effect = Effect::local}),
      flag("--batch-size", kModels, at(&Options::batch_size), "Samples of one optimizer step, over all devices",
           whole_number(1, kMostSamples),
           {.group = "Batch",
            .choice = {"max", &Choices::batch_size, "; max: the most that fit"},
            .meaning = "samples in one optimizer step, over all devices"}),
  };
}

SettingTable step_settings() {
  return {
      flag(
          "--accumulate,--acc-grad", kTrainings, at(&Options::accumulate),
          "Micro-batches in each step (gradient accumulation)", whole_number(1, 1 << 20),
          {.choice = {"auto", &Choices::accumulate, "; auto: the fewest that fit"},
           .meaning = "micro-batches in a step",
           .effect_if = [](Context c) { return has_norms(c) && !c.options.exact ? Effect::result : unless_exact(c); }}),
      flag("--no-cuda-graph", kTrainings, at(&Options::cuda_graph), "Do not replay steps as CUDA graphs",
           {.effect = Effect::none}),
      flag("--recompute-segments", kTrainings, at(&Options::recompute_segments),
           "Activation checkpointing in N segments; sqrt: the square root of the number of the model's parts",
           number_or_words(whole_number(1, std::numeric_limits<int>::max()), {"sqrt"}),
           {.type = "N|sqrt",
            .choice = {"auto", &Choices::recompute_segments, "; auto: the fewest that fit"},
            .read = [](Context c) { return resolve_recompute_segments(c.options, c.job.model); },
            .meaning = "segments of activation checkpointing; 1: none",
            .effect = Effect::none}),
      flag("--recompute", kRuns, at(&Options::recompute), "Activation checkpointing of these parts of the model",
           {.type = "PART,FIRST-LAST",
            .choice = {"auto", &Choices::recompute, "; auto: the fastest choice that fits (see plan --frontier)"},
            .key = "recompute[]",
            .json = kTrainings,
            .read = [](Context c) { return parse_recompute(c.options.recompute); },
            .meaning = "parts named by `--recompute`, or chosen by `--recompute auto`; empty without it",
            .effect = Effect::none}),
      flag("--loss-gradient", kTrainings, at(&Options::loss_gradient),
           "Where the gradient of the outputs is written: over them (in-place) or apart", one_of({"in-place", "apart"}),
           {.effect = Effect::local}),
      flag("--batch-norm", kTrainings, at(&Options::batch_norm),
           "Batch norm's statistics: exact (of the whole micro-batch) or local (of each device, as PyTorch's dp "
           "and ddp)",
           one_of({"exact", "local"}),
           {.compared = [](Context c) { return has_norms(c) ? Json(c.options.batch_norm) : Json(); }}),
      flag("--exact", kRuns | kCompare, at(&Options::exact),
           "Compute the same bits on any devices: by leaves, fixed parts of the batch (docs/exactness.md)"),
      flag("--leaves", kRuns | kCompare, at(&Options::leaves), "Leaves of a batch, with --exact",
           whole_number(1, TreeOrder::kMostNodes), {.owner = {"exact", {"on"}}}),
      flag("--leaf-threads", kRuns | kCompare, at(&Options::leaf_threads),
           "Threads that compute a leaf on CPU devices, with --exact", whole_number(1, kMostThreadsPerDevice),
           {.owner = {"exact", {"on"}}}),
      flag("--batch-norm-leaves", kRuns | kCompare, at(&Options::batch_norm_leaves),
           "Consecutive leaves over which batch norm takes its statistics, with --exact [all]",
           whole_number(1, TreeOrder::kMostNodes),
           {.owner = {"exact", {"on"}}, .meaning = "`--batch-norm-leaves`; null: all leaves"}),
  };
}

SettingTable optimizer_settings() {
  using L = SettingRow::List;
  const auto of_sgd = [](const auto& value) {
    return [value](Context c) { return is_sgd(c) ? Json(resolve_optimizer(c.options).sgd.*value) : kAbsent; };
  };
  return {
      flag("--optimizer", kTrainings, at(&Options::optimizer), "Optimizer", one_of({"sgd", "adam", "adamw"}),
           {.meaning = "`sgd`, `adam` or `adamw`"}),
      flag("--lr", kTrainings, at(&Options::lr), "Learning rate [0.001]", number_of_at_least_0(),
           {.read = [](Context c) { return resolve_optimizer(c.options).learning_rate(); },
            .meaning = "learning rate, before the schedule",
            .effect = Effect::rate}),
      flag("--momentum", kTrainings, at(&Options::momentum), "Momentum of sgd [0]", number_of_at_least_0(),
           {.read = of_sgd(&SgdConfig::momentum), .meaning = "only with sgd"}),
      flag("--nesterov", kTrainings, at(&Options::nesterov), "Nesterov's momentum of sgd",
           {.read = of_sgd(&SgdConfig::nesterov),
            .meaning = "only with sgd",
            .compared = [](Context c) { return c.options.nesterov ? Json(true) : Json(); }}),
      flag("--adam-betas", kTrainings, at(&Options::adam_betas),
           "Decay rates of the moments, for adam and adamw: B1,B2 [0.9,0.999]",
           {.type = "B1,B2",
            .key = "betas[]",
            .read =
                [](Context c) {
                  return is_sgd(c) ? kAbsent : Json{adam_of(c).beta1, adam_of(c).beta2};
                },
            .meaning = "only with adam and adamw",
            .compared =
                [](Context c) {
                  const AdamConfig used = adam_of(c), usual;
                  return used.beta1 == usual.beta1 && used.beta2 == usual.beta2 ? Json() : Json{used.beta1, used.beta2};
                }}),
      flag("--adam-eps", kTrainings, at(&Options::adam_eps),
           "Added to the root of the second moment, for adam and adamw [1e-8]", number_of_at_least_0(),
           {.key = "eps",
            .read = [](Context c) { return is_sgd(c) ? kAbsent : Json(adam_of(c).eps); },
            .meaning = "only with adam and adamw",
            .compared = [](Context c) { return adam_of(c).eps == AdamConfig().eps ? Json() : Json(adam_of(c).eps); }}),
      flag("--weight-decay", kTrainings, at(&Options::weight_decay), "Weight decay [0.01 for adamw, else 0]",
           number_of_at_least_0(),
           {.read = [](Context c) { return resolve_optimizer(c.options).weight_decay(); }, .meaning = "weight decay"}),
      flag("--augment", kTrainings, at(&Options::recipe, &RecipeOptions::augment),
           "Random changes of training images, a list: flip, crop:N (after padding with N zeros), cutout:N (a "
           "square of N x N) [none]",
           {.type = "LIST", .clear = "none", .compared = augmentation_in_force}),
      flag("--label-smoothing", kTrainings, at(&Options::recipe, &RecipeOptions::label_smoothing),
           "Label smoothing: share of the target that is spread over all classes", number(0, 1)),

      // The kinds once each, in one order, which does not matter.
      flag("--no-decay", kTrainings, at(&Options::recipe, &RecipeOptions::no_decay),
           "Parameters without weight decay, a list: norms, biases [none]", one_of({"norms", "biases", "none"}),
           {.list = L::commas,
            .clear = "none",
            .compared =
                [](Context c) {
                  return std::set<std::string>(c.options.recipe.no_decay.begin(), c.options.recipe.no_decay.end());
                }}),
      flag("--param-group", kTrainings, at(&Options::recipe, &RecipeOptions::groups),
           "Learning rate and weight decay of parameters by name: 'classifier.*:lr=0.01,weight-decay=0'; may be "
           "repeated, the last match counts",
           {.type = "PATTERN:LIST",
            .list = L::repeated,
            .key = "param_groups[]",
            .meaning = "`--param-group`, in the order given",
            .compared = groups_in_force}),
      flag("--ema", kTrainings, at(&Options::recipe, &RecipeOptions::ema),
           "Keep an exponential moving average of the weights with this decay (0.999); it is evaluated and saved",
           fraction(false, false)),
      flag("--dropout", kTrainings, at(&Options::dropout), "Probability of dropout [the model's]",
           fraction(true, false),
           {.meaning = "`--dropout`; null: the model's own",
            .compared =
                [](Context c) {
                  const float dropout = c.job.model_hash ? 0.0F : model_dropout(c.options.model);
                  return dropout > 0.0F ? fmt::format("{}", c.options.dropout.value_or(dropout)) : "";
                }}),
      flag("--seed", kTrainings | kSample, at(&Options::seed),
           "Seed of initial weights, order of samples, dropout and augmentation", whole_number(0),
           {.help_of = {kSample, "Seed of the drawn tokens"}}),
      flag("--shuffle,!--no-shuffle", kTrainings, at(&Options::shuffle), "Shuffle the samples in each epoch [on]",
           {.meaning = "false with `--no-shuffle`"}),
      flag("--drop-last", kTrainings, at(&Options::drop_last), "Drop the last batch of an epoch if it is not full"),
      flag("--init-weights", kTrainings, at(&Options::init_weights),
           "FILE.safetensors, checkpoint or folder of Hugging Face to start from; what it lacks and another head "
           "stay random, and are listed [random weights]",
           {.type = "FILE", .effect = Effect::local, .ranks = Ranks::given}),  // only rank 0 reads the file
      flag("--freeze", kTrainings, at(&Options::freeze),
           "Parameters that are not trained, a list of patterns, as 'features.*': without gradients and optimizer "
           "states [none]",
           {.type = "PATTERN", .list = L::commas, .key = "freeze[]", .meaning = "patterns of `--freeze`"}),
      flag("--epochs", kRuns, at(&Options::epochs), "Passes over the training set [1]", whole_number(1, kMostSteps),
           {.read = [](Context c) { return c.options.steps ? Json() : Json(c.options.epochs.value_or(1)); },
            .meaning = "null with `--steps`",
            .effect_if = of_length}),
      flag("--steps", kRuns | kCompare, at(&Options::steps), "Optimizer steps, instead of --epochs",
           whole_number(1, kMostSteps),
           {.help_of = {kCompare, "Optimizer steps of each round; the first is not measured [6]"},
            .meaning = "`--steps`; null with `--epochs`. `compare`: steps of a round",
            .effect_if = of_length}),
      flag("--eval-every", kTrain, at(&Options::eval_every),
           "Also evaluate on the test set after every N steps [at the end of each epoch]", whole_number(1, kMostSteps),
           {.shows_default = false, .effect = Effect::local}),
      flag("--no-eval", kRuns, at(&Options::evaluate), "Do not evaluate on the test set",
           {.key = "evaluate", .effect = Effect::local}),
      flag("--autotune", kTrain, at(&Options::autotune),
           "Time the plans of cuDNN and cuBLASLt first and train with the fastest; FILE.json keeps them for other "
           "runs",
           {.type = "[FILE.json]",
            .may_lack_value = true,
            .read = [](Context c) { return c.options.autotune.has_value(); },
            .meaning = "whether `--autotune` is given",
            .effect = Effect::rounding}),
      flag("--rounds", kCompare, at(&Options::rounds), "Rounds in which the schemes take turns", whole_number(1, 1000),
           {.effect = Effect::local}),
  };
}

SettingTable precision_settings() {
  const auto unless_several = [](const auto& value) {
    return [value](Context c) { return c.options.precisions.empty() ? Json(value(c)) : kAbsent; };
  };
  return {
      flag("--precision", kModels | kSample, at(&Options::precision),
           "Precision of layers and activations; master weights are f32", one_of({"fp32", "fp16", "bf16"}),
           {.read = unless_several([](Context c) { return c.options.precision; }),
            .meaning = "`--precision`; absent with `--precisions`"}),
      flag("--loss-scale", kRuns | kCompare, at(&Options::loss_scale),
           "Loss scale: none, dynamic or a NUMBER [dynamic for fp16, else none]",
           {.type = "none|dynamic|X",
            .read = unless_several([](Context c) { return loss_scale_name(precision_of(c).loss_scaling); }),
            .meaning = "`none`, `dynamic` or the fixed scale; absent with `--precisions`"}),
      flag("--loss-scale-growth-interval", kTrainings, at(&Options::loss_scale_growth_interval),
           "Finite steps before the loss scale doubles [2000]", whole_number(1, 1 << 30),
           {.compared =
                [](Context c) {
                  const LossScaling scaling = resolve_precision(c.options).loss_scaling;
                  return scaling.kind == LossScaling::Kind::dynamic ? Json(scaling.constants.growth_interval) : Json();
                }}),
      flag("--clip-norm", kTrainings, at(&Options::clip_norm), "Clip the norm of the gradient [not clipped]",
           number_above_0()),
      flag("--allow-non-finite", kModels | kSample, at(&Options::allow_non_finite),
           "Continue when a loss or gradient is not finite [stop]",
           {.help_of = {kEval | kSample, "Accept weights that are NaN or infinite [refuse them]"}, .json = kTrainings}),
      flag("--reduce-dtype", kTrainings, at(&Options::reduce_dtype), "Data type used to reduce gradients",
           one_of({"f32", "f16", "bf16"}), {.meaning = "data type used to reduce gradients"}),
      flag("--precisions", kCompare, at(&Options::precisions),
           "Precisions to run, with loss scales: fp32,fp16:none,fp16:dynamic [--precision]",
           {.type = "LIST",
            .key = "precisions[]",
            .read =
                [](Context c) {
                  if (c.options.precisions.empty()) return kAbsent;
                  Json names = Json::array();
                  for (const auto& [name, precision] : resolve_compare_precisions(c.options)) names.push_back(name);
                  return names;
                },
            .meaning = "`--precisions`; absent without it",
            .effect = Effect::local}),
  };
}

SettingTable output_settings() {
  return {
      flag("--json", kModels | kSample | kBench | kLab | kInfo | kVerify, at(&Options::json),
           "Print one JSON object on stdout", local()),
      flag("--save", kTrain, at(&Options::save), "Write the weights at the end",
           {.type = "FILE.safetensors", .effect = Effect::local, .ranks = Ranks::given}),
      // Steps whose memory is recorded are not replayed as CUDA graphs, which all ranks do together.
      flag("--report", kTrainings | kLab, at(&Options::report), "Write a page with charts and findings to FILE.html",
           {.help_of = {kLab, "Write a page with a chart for each bug to FILE.html"},
            .type = "FILE.html",
            .json = 0,
            .effect = Effect::local,
            .ranks = Ranks::given}),
      flag("--details", kTrain, at(&Options::details), "Print the tables of time, communication and memory", local()),
      flag("--tensorboard", kTrain, at(&Options::tensorboard), "Write TensorBoard events to the folder DIR",
           local("DIR", Ranks::given)),
      flag("--log", kTrain, at(&Options::log), "Write a row for each step and epoch to FILE.jsonl or FILE.csv",
           local("FILE.jsonl")),
      flag("--hashes", kTrain, at(&Options::hashes),
           "Write a hash of the training state after each step to FILE.jsonl, for vitrine verify",
           local("FILE.jsonl", Ranks::given)),
      flag("--confusion", kTrain | kEval, at(&Options::confusion), "Print the confusion matrix of the test set",
           {.json = 0, .effect = Effect::local}),
      flag("--trace", kTrain, at(&Options::trace), "Write a trace for Perfetto to FILE.json",
           {.type = "FILE.json", .effect = Effect::local, .ranks = Ranks::given}),
      flag("--memory-history", kTrain, at(&Options::memory_history),
           "Write the memory history to FILE.json, as torch.cuda.memory._snapshot() has it",
           local("FILE.json", Ranks::given)),
      flag("--log-every", kModels & ~kPlan, at(&Options::log_every),
           "Print progress every N steps [every 10 s, or a bar on a terminal]", whole_number(1, kMostSteps),
           {.shows_default = false, .json = 0, .effect = Effect::local, .ranks = Ranks::local}),
      flag("--record-steps", kTrain, at(&Options::record_steps),
           "Steps that --report, --trace and --memory-history show [2-4; with --trace all]",
           {.type = "FIRST-LAST", .json = 0, .effect = Effect::local}),
      flag("--trace-level", kTrain, at(&Options::trace_level), "What is timed", one_of({"off", "phase", "operation"}),
           {.effect = Effect::local, .ranks = Ranks::local}),
      flag("--frontier", kPlan, at(&Options::frontier), "Show bytes against time for choices of --recompute", local()),
      flag("--prove", kPlan, at(&Options::prove), "Write the schedule to FILE.jsonl, for tools/check_schedule",
           local("FILE.jsonl")),
      flag("--save-logits", kEval, at(&Options::save_logits), "Write the outputs of all samples to FILE.npy",
           {.type = "FILE.npy", .effect = Effect::local, .ranks = Ranks::given}),
      flag("--list", kLab, at(&Options::lab, &LabOptions::list), "List the bugs and their questions", local()),
  };
}

SettingTable process_settings() {
  constexpr Commands kUsers = kTrain | kEval | kBench;
  return {
      flag("--rank", kUsers, at(&Options::rank), "Rank of this process [set by torchrun, mpirun or srun]",
           whole_number(0, 1 << 20), local()),
      flag("--world-size", kUsers, at(&Options::world_size), "Number of processes, with --rank",
           whole_number(1, 1 << 20), local()),
      flag("--local-rank,--local_rank", kUsers, at(&Options::local_rank),
           "Rank of this process on its machine, which is also its GPU", whole_number(0, 1 << 20), local()),
      flag("--rendezvous", kUsers, at(&Options::rendezvous),
           "Where processes meet: tcp://HOST:PORT or file:PATH [MPI, or the launcher's address]", local("ADDRESS")),
      flag("--run-id", kUsers, at(&Options::run_id),
           "Name of this run, which keeps apart runs that meet at one rendezvous [torchrun's --rdzv-id, or Slurm's "
           "job and step]",
           local("NAME")),
      flag("--timeout", kUsers, at(&Options::timeout_seconds),
           "Seconds to wait for the others in a collective; longer for one that is slow, not stuck", number(0.1, 1e6),
           {.json = 0, .effect = Effect::local}),
      flag("--verify-replicas", kTrain, at(&Options::verify_replicas),
           "Compare the parameters of all replicas every N steps [only at the start]", whole_number(1, 1 << 30),
           {.shows_default = false, .json = 0, .effect = Effect::local}),
      flag("--processes", kPlan, at(&Options::processes), "Plan for N processes with these devices each",
           whole_number(1, 1 << 16),
           {.json = 0, .effect_if = unless_exact, .compared = [](Context c) { return c.processes; }}),
  };
}

/// A flag of some learning-rate schedules.
///   otherwise  the effective value if the flag is left out
SettingRow of_schedule(const char* name, const Field& field, const char* help, const Values& values,
                       std::vector<std::string> schedules, const Json& otherwise = {}, SettingRow row = {}) {
  row.json = kTrainings, row.owner = {"lr-schedule", std::move(schedules), otherwise}, row.effect = Effect::rate;
  return flag(name, kTrain, field, help, values, std::move(row));
}

SettingTable schedule_settings() {
  const LrScheduleConfig d;
  using S = ScheduleOptions;
  const auto at_s = [](auto member) { return at(&Options::schedule, member); };
  return {
      flag("--lr-schedule", kTrain, at_s(&S::schedule), "Learning-rate schedule, as in torch.optim.lr_scheduler",
           one_of(schedule_names()), {.json = kTrainings, .effect = Effect::rate}),
      of_schedule("--lr-step-size", at_s(&S::step_size), "step: epochs between decays [30]",
                  whole_number(1, kMostSteps), {"step"}, d.step_size),
      of_schedule("--lr-milestones", at_s(&S::milestones), "multi-step: epochs of the decays, 30,60,80",
                  whole_number(1, kMostSteps), {"multi-step"}, {}, {.list = SettingRow::List::commas}),
      of_schedule("--lr-gamma", at_s(&S::gamma), "step, multi-step: factor of each decay [0.1]", number_above_0(),
                  {"step", "multi-step"}, d.gamma),
      of_schedule("--lr-min", at_s(&S::min_lr), "cosine, plateau: lowest learning rate [0]", number_of_at_least_0(),
                  {"cosine", "plateau"}, d.min_lr),
      of_schedule("--lr-patience", at_s(&S::patience), "plateau: epochs without improvement before a decay [10]",
                  whole_number(0, kMostSteps), {"plateau"}, d.plateau.patience),
      of_schedule("--lr-factor", at_s(&S::factor), "plateau: factor of each decay [0.1]", fraction(false, false),
                  {"plateau"}, d.plateau.factor),
      of_schedule("--lr-threshold", at_s(&S::threshold),
                  "plateau: relative change that counts as an improvement [0.0001]", number_of_at_least_0(),
                  {"plateau"}, d.plateau.threshold),
      of_schedule("--lr-cooldown", at_s(&S::cooldown), "plateau: epochs after a decay that do not count [0]",
                  whole_number(0, kMostSteps), {"plateau"}, d.plateau.cooldown),
      // Checkpoints of versions without the flag continue.
      of_schedule("--lr-eps", at_s(&S::eps), "plateau: changes of the rate up to this are not made [1e-08]",
                  number_of_at_least_0(), {"plateau"}, {},
                  {.compared =
                       [d](Context c) {
                         const double eps = c.options.schedule.eps.value_or(d.plateau.eps);
                         return eps == d.plateau.eps ? Json() : Json(eps);
                       }}),
      of_schedule("--lr-metric", at_s(&S::metric),
                  "plateau: what must improve: test loss, test accuracy, or training loss of the epoch's last batch",
                  one_of({"loss", "accuracy", "last-batch"}), {"plateau"}),
      flag("--warmup-steps", kTrain, at_s(&S::warmup_steps), "Optimizer steps of linear warm-up",
           whole_number(0, kMostSteps), {.json = kTrainings, .effect = Effect::rate}),
      flag("--warmup-factor", kTrain, at_s(&S::warmup_factor),
           "Share of the learning rate at the first step of the warm-up [1/3]", fraction(false, true),
           {.owner = {"warmup-steps"},
            .json = kTrainings,
            .effect = Effect::rate,
            .compared =
                [d](Context c) {
                  const S& o = c.options.schedule;
                  return o.warmup_steps > 0 ? Json(o.warmup_factor.value_or(d.warmup_start_factor)) : Json();
                }}),
  };
}

SettingTable checkpoint_settings() {
  using C = CheckpointOptions;
  const auto at_c = [](auto member) { return at(&Options::checkpoints, member); };
  return {
      flag("--checkpoint-dir", kRuns, at_c(&C::directory), "Save checkpoints in the folder DIR",
           {.type = "DIR", .json = kTrain, .effect = Effect::local, .ranks = Ranks::given}),
      flag("--checkpoint-every", kTrain, at_c(&C::every), "When to save: epoch or N (steps) [epoch]",
           {.type = "epoch|N",
            .read =
                [](Context c) {
                  const C& o = c.options.checkpoints;
                  return o.directory.empty() ? Json() : Json(o.every.value_or("epoch"));
                },
            .meaning = "`--checkpoint-every`; null without `--checkpoint-dir`",
            .effect = Effect::local}),
      flag("--keep-last", kTrain, at_c(&C::keep_last), "Keep the newest N checkpoints [all]",
           whole_number(1, kMostSteps), local()),
      flag("--keep-best", kTrain, at_c(&C::keep_best),
           "Keep the checkpoint of the best epoch by test accuracy, as DIR/best", {.json = 0, .effect = Effect::local}),
      flag("--resume", kTrain, at_c(&C::resume),
           "Continue from the newest checkpoint in DIR, or auto: from --checkpoint-dir if it has one, else from "
           "the start",
           local("DIR|auto", Ranks::given)),
  };
}

/// nccl-tests counts iterations that check; here all do.
Values check_counts() {
  Values values = one_of({"0", "1"});
  values.accepts = [](std::string& text) {
    if (parse_number<int>(text).value_or(0) > 1) text = "1";
    return false;  // the words decide
  };
  return values;
}

/// Of collectives, named as nccl-tests' flags, and of the lab and the lessons: nothing is recorded of them.
std::vector<Group> other_settings() {
  using C = CollectiveOptions;
  const auto at_c = [](auto member) { return at(&Options::collectives, member); };
  const auto at_s = [](auto member) { return at(&Options::sample, member); };
  const Values size = bytes(0, kMostCollectiveBytes);
  return {
      {"Options",
       {
           flag("NAME", kBench, at_c(&C::names),
                "Collectives to time (sendrecv is a ring, reduce_broadcast what --reduce device0 does, tree_all_reduce "
                "that of --exact) [all]",
                with_alias(collective_names(), "gpu0_star", "reduce_broadcast"), {.list = SettingRow::List::repeated}),
           flag("NAME", kLab, at(&Options::lab, &LabOptions::names), "Bugs to show in full [a table of all]",
                {.list = SettingRow::List::repeated}),
           flag("--prompt", kSample, at_s(&SampleOptions::prompt),
                "Text to continue, for a model of bytes, or of characters that its weights name", {.type = "TEXT"}),
           flag("--prompt-tokens", kSample, at_s(&SampleOptions::prompt_tokens), "Tokens to continue: 15496,995",
                whole_number(0, (1 << 16) - 1), {.type = "N,N", .list = SettingRow::List::commas}),
           flag("--tokens", kSample, at_s(&SampleOptions::tokens), "Tokens to add", whole_number(1, 1 << 24)),
           flag("--temperature", kSample, at_s(&SampleOptions::temperature),
                "Divides the outputs before a token is drawn; 0: always the most probable token",
                number_of_at_least_0()),
           flag("--top-k", kSample, at_s(&SampleOptions::top_k), "Draw from the K most probable tokens only [all]",
                whole_number(1, 1 << 16)),
           flag("--out", kPage, at(&Options::page), "File of the page", {.type = "FILE.html", .required = kPage}),
       }},
      {"Sizes",
       {
           flag("-b,--minbytes", kBench, at_c(&C::first_bytes), "Smallest size: 8, 64K, 32M [64K, or the value of -e]",
                size, {.type = "SIZE"}),
           flag("-e,--maxbytes", kBench, at_c(&C::last_bytes), "Largest size [16M, or the value of -b]", size,
                {.type = "SIZE"}),
           flag("-f,--stepfactor", kBench, at_c(&C::step_factor), "Factor between successive sizes",
                number(1.0001, 1e6)),
           flag("-i,--stepbytes", kBench, at_c(&C::step_bytes), "Bytes between successive sizes, instead of a factor",
                bytes(1, kMostCollectiveBytes), {.type = "SIZE", .shows_default = false}),
       }},
      {"Operation",
       {
           flag("-g,--ngpus", kBench, at_c(&C::devices_of_thread),
                "Devices in place of --devices: so many GPUs of each process, or CPU devices without a GPU",
                whole_number(1, 1024), {.shows_default = false}),
           flag("-t,--nthreads", kBench, at_c(&C::threads), "Multiplies -g, as in nccl-tests", whole_number(1, 1024),
                {.shows_default = false}),
           flag("-n,--iters", kBench, at_c(&C::iterations), "Timed operations", whole_number(1, 1 << 24)),
           flag("-w,--warmup_iters", kBench, at_c(&C::warm_up), "Operations before the timed ones",
                whole_number(0, 1 << 24)),
           flag("-c,--check", kBench, at_c(&C::check), "1 or more: check every element of the results, 0: do not",
                check_counts()),
           flag("-d,--datatype", kBench, at_c(&C::datatype), "Data type",
                one_of({"float", "half", "bfloat16", "int32", "f32", "f16", "bf16", "i32"})),
           flag("-o,--op", kBench, at_c(&C::reduction), "Reduction", one_of({"sum", "min", "max", "avg"})),
           flag("-r,--root", kBench, at_c(&C::root), "Rank of the root", whole_number(0, 1 << 20)),
           flag("--counts", kBench, at_c(&C::counts), "Shares of the ranks in scatter and gather: 8,19,19,18 [equal]",
                whole_number(0, 1 << 30), {.type = "N,N", .list = SettingRow::List::commas}),
       }},
      {"Runs",
       {
           flag("--a", kVerify, at(&Options::verify_a),
                "Flags of vitrine train, a command that runs it, or FILE.jsonl of train --hashes",
                {.type = "RUN", .required = kVerify}),
           flag("--b", kVerify, at(&Options::verify_b), "The run to compare it with",
                {.type = "RUN", .required = kVerify}),
       }},
      {"Lesson",
       {
           flag("number", kLesson, at(&Options::lesson), "The lesson to run [list the lessons]",
                {.shows_default = false}),
           flag("--answer", kLesson, at(&Options::answer), "Print the exercise and its answer"),
           flag("--run", kLesson, at(&Options::run_answer), "With --answer: also run the answer's command"),
       }}};
}

}  // namespace

const SettingTable& setting_table() {
  static const SettingTable table = [] {
    std::vector<Group> groups = {{"Model and data", model_settings()},
                                 {"Devices", device_settings()},
                                 {"Scheme", scheme_settings()},
                                 {"Training", step_settings()},
                                 {"Training", optimizer_settings()},
                                 {"Precision", precision_settings()},
                                 {"Output", output_settings()},
                                 {"Processes", process_settings()},
                                 {"Learning-rate schedule", schedule_settings()},
                                 {"Checkpoints", checkpoint_settings()}};
    for (Group& group : other_settings()) {
      for (SettingRow& row : group.rows) row.json = 0, row.effect = Effect::local, row.ranks = Ranks::local;
      groups.push_back(std::move(group));
    }
    SettingTable all;
    for (Group& group : groups) {
      for (SettingRow& row : group.rows) {
        if (row.group.empty()) row.group = group.name;
        all.push_back(std::move(row));
      }
    }
    return all;
  }();
  return table;
}

}  // namespace vitrine::tools
