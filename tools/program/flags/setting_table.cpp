// SPDX-License-Identifier: Apache-2.0
// All settings of the program, in the order of the help and of the documentation.
#include <algorithm>
#include <set>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "nn/buffer_layout.h"
#include "nn/model.h"
#include "runtime/device.h"
#include "tools/program/flags/flag_values.h"
#include "tools/program/flags/setting.h"

namespace vitrine::tools {

namespace {

constexpr int64_t kMostSamples = int64_t{1} << 40, kMostSteps = int64_t{1} << 40;
constexpr Commands kNoCommand = 0;

const Json kAbsent(Json::value_t::discarded);

template <class T>
Field at(T Options::*member) {
  return Member<T>([member](Options& o) -> T& { return o.*member; });
}
template <class Part, class T>
Field at(Part Options::*part, T Part::*member) {
  return Member<T>([part, member](Options& o) -> T& { return o.*part.*member; });
}

Scheme scheme_of(const SettingContext& c) { return resolve_scheme(c.options, c.devices, c.world_size); }
Precision precision_of(const SettingContext& c) {
  return precision_for(c.options, c.job.model, resolve_precision(c.options));
}
bool is_sgd(const OptimizerConfig& optimizer) { return optimizer.kind == OptimizerConfig::Kind::sgd; }

/// Layers with running statistics take them over a micro-batch or, on request, over the samples of a device.
bool has_norms(const SettingContext& c) { return BufferLayout(*c.job.model.net).any_saved(); }
Effect of_devices(const SettingContext& c) {
  return has_norms(c) && c.options.batch_norm == "local" ? Effect::result : Effect::rounding;
}
/// A longer run makes the same steps at first, unless the schedule spans all of them.
Effect of_length(const SettingContext& c) {
  const std::string& schedule = c.options.schedule.schedule;
  return schedule == "cosine" || schedule == "one-cycle" ? Effect::result : Effect::none;
}

/// "" for the data set's own.
Json normalization_in_force(const SettingContext& c) {
  const auto describe = [channels = static_cast<size_t>(c.job.data.train.channels)](const Normalization& n) {
    return fmt::format("{}/{}", fmt::join(std::span(n.mean).first(channels), ","),
                       fmt::join(std::span(n.std).first(channels), ","));
  };
  const std::string used = describe(c.job.normalization);
  if (used == describe({c.job.data.train.mean, c.job.data.train.std})) return "";
  return used == describe({}) ? "none" : used;
}

Json augmentation_in_force(const SettingContext& c) {
  const Augmentation augmentation = resolve_augmentation(c.options.recipe);
  std::vector<std::string> parts;
  if (augmentation.flip) parts.emplace_back("flip");
  if (augmentation.crop_padding > 0) parts.push_back(fmt::format("crop:{}", augmentation.crop_padding));
  if (augmentation.cutout > 0) parts.push_back(fmt::format("cutout:{}", augmentation.cutout));
  return parts;
}

/// In the order in which they were given, which matters.
Json groups_in_force(const SettingContext& c) {
  std::vector<std::string> texts;
  for (const ParameterGroup& group : resolve_parameter_groups(c.options.recipe, 1.0)) {
    if (group.of != ParameterGroup::Of::names) continue;  // of --no-decay
    std::vector<std::string> values;
    if (group.lr_factor) values.push_back(fmt::format("lr={}", *group.lr_factor));
    if (group.weight_decay) values.push_back(fmt::format("weight-decay={}", *group.weight_decay));
    texts.push_back(fmt::format("{}:{}", group.pattern, fmt::join(values, ",")));
  }
  return fmt::format("{}", fmt::join(texts, " "));
}

SettingTable model_settings() {
  const std::string group = "Model and data";
  return {
      {.flag = "--model",
       .group = group,
       .commands = kModels,
       .field = at(&Options::model),
       .help = "Model to train; a FILE.json describes one by its layers (see docs/model_files.md)",
       .values = one_of_or_file(model_names(), "FILE.json"),
       .read = [](const SettingContext& c) { return c.job.model.name; },
       .compared =
           [](const SettingContext& c) {
             return fmt::format("{}, {} classes", identify_model(c.job), c.job.model.classes);
           }},
      {.flag = "--data",
       .group = group,
       .commands = kModels,
       .field = at(&Options::data),
       .help = "cifar10:DIR, fashion-mnist:DIR, idx:DIR, image-folder:DIR (a folder per class in train and val) or "
               "synthetic[:COUNT]",
       .required = kReproduce,
       // The path may differ between machines.
       .compared = [](const SettingContext& c) { return identify_data(c.job); }},
      {.flag = "--image-size",
       .group = group,
       .commands = kModels,
       .field = at(&Options::image_size),
       .help = "Height and width of the model's input [227 for alexnet, 224 for vgg16, resnet18 and resnet50, else the "
               "data's]; images of an image-folder are resized and cropped to it",
       .values = whole_number(1, 1 << 16),
       .shows_default = false,
       .read = [](const SettingContext& c) { return c.job.model.height; },
       .meaning = "height and width of the images that the model receives"},
      {.key = "channels",
       .json = kModels,
       .read = [](const SettingContext& c) { return c.job.model.channels; },
       .meaning = "channels of the images",
       .effect = Effect::local},
      {.flag = "--classes",
       .group = group,
       .commands = kModels,
       .field = at(&Options::classes),
       .help = "Outputs of the model, at least the data's classes [as many]",
       .values = whole_number(1, 1 << 24),
       .read = [](const SettingContext& c) { return c.job.model.classes; },
       .meaning = "outputs of the model: `--classes`, or the data's classes",
       .effect = Effect::local},
      {.flag = "--limit-samples",
       .group = group,
       .commands = kModels,
       .field = at(&Options::limit_samples),
       .help = "Use only the first N training images, and the same share of the test set [all]",
       .values = whole_number(1, kMostSamples),
       .meaning = "`--limit-samples`; null: all",
       .effect = Effect::local},
      {.flag = "--preprocess",
       .group = group,
       .commands = kModels,
       .field = at(&Options::preprocess),
       .help = "Where images are resized and normalized: host (the loader) or device",
       .values = one_of({"host", "device"}),
       .effect = Effect::rounding},
      {.flag = "--normalize",
       .group = group,
       .commands = kModels,
       .field = at(&Options::normalize),
       .help = "Mean and deviation of each channel, for pixels from 0 to 1: 0.5,0.5,0.5/0.2,0.2,0.2; or none [the "
               "data set's]",
       .meaning = "`--normalize`; null: the data set's",
       .compared = normalization_in_force},
      {.flag = "--workers",
       .group = group,
       .commands = kModels,
       .field = at(&Options::workers),
       .help = "Threads that load batches",
       .values = whole_number(1, 256),
       .effect = Effect::local,
       .ranks = Ranks::local},
      {.flag = "--data-on-device",
       .group = group,
       .commands = kRuns,
       .field = at(&Options::data_on_device),
       .help = "Whether the training images lie on the devices, which gather their batches there: on (all of them on "
               "each device that takes batches from the host; plans count them) or off; results have the same bits",
       .values = one_of({"on", "off"}),
       .read = [](const SettingContext& c) { return c.options.images_on_device(); },
       .meaning = "whether `--data-on-device` is on",
       .effect = Effect::start},
      {.flag = "--weights",
       .group = group,
       .commands = kEval,
       .field = at(&Options::weights),
       .help = "FILE.safetensors with PyTorch's names and layouts, a checkpoint's folder, or a folder of checkpoints: "
               "its newest",
       .required = kEval,
       .meaning = "`--weights`",
       .effect = Effect::local,
       .ranks = Ranks::given},
  };
}

SettingTable device_settings() {
  using L = SettingRow::List;
  const std::string group = "Devices";
  constexpr Commands kUsers = kModels | kBench;
  return {
      {.flag = "--devices",
       .group = group,
       .commands = kUsers,
       .field = at(&Options::devices),
       .help = "A list: cpu:0-3 | cpu:0,cpu:1 | cuda:0-1 | cuda:all | cuda:0,cuda:0 (logical devices of one GPU); for "
               "each process [the GPU of its local rank, else cpu:0]",
       .key = "devices[]",
       .read =
           [](const SettingContext& c) {
             Json names = Json::array();
             for (const DeviceId& device : c.devices) names.push_back(device.str());
             return names;
           },
       .meaning = "devices of this process",
       .effect_if = of_devices,
       .compared =
           [](const SettingContext& c) {
             return fmt::format("{} {}", c.world_size.value_or(static_cast<int>(c.devices.size())),
                                c.devices.front().backend == Backend::cuda ? "cuda" : "cpu");
           },
       .ranks = Ranks::local},
      {.flag = "--device-memory",
       .group = group,
       .commands = kUsers,
       .field = at(&Options::device_memory),
       .help = "Capacity of each device: 512MiB, or a list; a plain number is bytes [the machine's memory, divided]",
       .values = bytes(1),
       .type = "SIZE",
       .list = L::commas,
       .effect = Effect::start,
       .ranks = Ranks::local},
      {.flag = "--workspace",
       .group = group,
       .commands = kUsers,
       .field = at(&Options::workspace),
       .help = "Scratch memory for each device's libraries: 64MiB [planned: what the model's convolutions want, 1MiB "
               "to 32MiB; on GPUs 32MiB or more]",
       .values = bytes(0),
       .type = "SIZE",
       .meaning = "`--workspace` in bytes; null: sized by the plan",
       .effect = Effect::rounding,
       .compared =
           [](const SettingContext& c) {
             return value_or_null(c.workspace_bytes ? c.workspace_bytes : c.options.workspace);
           }},
      {.flag = "--threads-per-device",
       .group = group,
       .commands = kUsers,
       .field = at(&Options::threads_per_device),
       .help = "Threads of each CPU device: 2, or a list [the cores, divided]",
       .values = whole_number(1, kMostThreadsPerDevice),
       .type = "N",
       .list = L::commas,
       .effect = Effect::rounding,
       .compared =
           [](const SettingContext& c) { return c.threads ? Json(*c.threads) : Json(c.options.threads_per_device); },
       .ranks = Ranks::local},
      {.flag = "--tf32",
       .group = group,
       .commands = kUsers,
       .field = at(&Options::tf32),
       .help = "Let GPUs round the inputs of matrix products and convolutions to TF32: faster, 10 bits of mantissa"},
      {.flag = "--nccl-defaults",
       .group = group,
       .commands = kUsers,
       .field = at(&Options::nccl_defaults),
       .help = "Let NCCL choose its algorithm and protocol, not Ring and Simple: often faster, but results may differ "
               "in their last bits from run to run",
       .effect = Effect::rounding},
      {.flag = "--check-order",
       .group = group,
       .commands = kUsers,
       .field = at(&Options::check_order),
       .help = "Check that operations on the same memory are ordered",
       .json = kNoCommand,
       .effect = Effect::local,
       .ranks = Ranks::local},
  };
}

SettingTable scheme_settings() {
  const std::string group = "Scheme";
  return {
      {.flag = "--mode",
       .group = group,
       .commands = kRuns,
       .field = at(&Options::mode),
       .help = "dp, balanced, criterion or ddp [ddp]",
       .values = one_of(scheme_names()),
       .read = [](const SettingContext& c) { return c.options.mode_name(); },
       .meaning = "the scheme",
       .effect = Effect::rounding,
       .compared = [](const SettingContext& c) { return describe_axes(scheme_of(c)); }},
      {.flag = "--split",
       .group = group,
       .commands = kRuns | kCompare,
       .field = at(&Options::split),
       .help = "Shares of the devices: equal | 2,3,3 (weights) | gpu0=N (N samples per step on device 0)",
       .choice = {"auto", &Choices::split, " | auto (by --balance)"},
       .json = kRuns,
       .read = [](const SettingContext& c) { return scheme_of(c).split.str(); },
       .meaning = "`equal`, weights (`2,3,3`) or `gpu0=N`",
       .effect_if = of_devices},
      {.flag = "--balance",
       .group = group,
       .commands = kRuns,
       .field = at(&Options::balance),
       .help = "What --split auto equalizes: the memory left on each device (planned), or its time (measured first)",
       .values = one_of({"memory", "time"}),
       .json = kNoCommand,
       .effect = Effect::local},
      {.flag = "--gpu0-bsz",
       .group = group,
       .commands = kRuns | kCompare,
       .field = at(&Options::gpu0_batch_size),
       .help = "N: the same as --mode balanced --split gpu0=N",
       .values = whole_number(0),
       .json = kNoCommand,
       .effect = Effect::local},
      {.flag = "--staging",
       .group = group,
       .commands = kRuns,
       .field = at(&Options::staging),
       .help = "device0 (whole batch there first) or host (slices straight to their devices) [the mode's]",
       .values = one_of({"device0", "host"}),
       .read = [](const SettingContext& c) { return staging_name(scheme_of(c).staging); },
       .meaning = "`device0` or `host`",
       .effect = Effect::local},
      {.flag = "--loss-at",
       .group = group,
       .commands = kRuns,
       .field = at(&Options::loss_at),
       .help = "gathered (on the output device) or parallel (on each) [the mode's]",
       .values = one_of({"gathered", "parallel"}),
       .read = [](const SettingContext& c) { return loss_at_name(scheme_of(c).loss_at); },
       .meaning = "`gathered` or `parallel`",
       .effect = Effect::local},
      {.flag = "--reduce",
       .group = group,
       .commands = kRuns,
       .field = at(&Options::reduce),
       .help = "gpu0 (update there, then broadcast) or allreduce [the mode's]",
       .values = one_of({"gpu0", "allreduce"}),
       .read = [](const SettingContext& c) { return reduce_name(scheme_of(c).reduce); },
       .meaning = "`gpu0` or `allreduce`",
       .effect = Effect::local},
      {.flag = "--bucket-mb",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::bucket_mb),
       .help = "MiB of gradients in each bucket of an all-reduce",
       .values = number(1e-6, 1e6),
       .json = kRuns,
       .effect = Effect::rounding},
      {.flag = "--first-bucket-mb",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::first_bucket_mb),
       .help = "MiB in the first bucket, which can start earliest",
       .values = number(1e-6, 1e6),
       .json = kRuns,
       .effect = Effect::rounding},
      {.flag = "--output-device",
       .group = group,
       .commands = kRuns,
       .field = at(&Options::output_device),
       .help = "Where outputs are gathered: one of --devices [the first]",
       .read =
           [](const SettingContext& c) {
             const Scheme scheme = scheme_of(c);
             return scheme.loss_at == LossAt::gathered
                        ? Json(c.devices[static_cast<size_t>(scheme.output_device)].str())
                        : Json();
           },
       .meaning = "device of the gathered loss",
       .effect = Effect::start},
      {.flag = "--modes",
       .group = group,
       .commands = kCompare,
       .field = at(&Options::modes),
       .help = "Schemes to run",
       .json = kNoCommand,
       .effect = Effect::local},
      {.flag = "--modes",
       .group = group,
       .commands = kReproduce,
       .field = at(&Options::reproduce, &ReproduceOptions::modes),
       .help = "Modes to run, of single (the first device), dp, criterion and ddp",
       .effect = Effect::local},
      {.flag = "--batch-size",
       .group = "Batch",
       .commands = kModels,
       .field = at(&Options::batch_size),
       .help = "Samples of one optimizer step, over all devices and micro-batches",
       .values = whole_number(1, kMostSamples),
       .choice = {"max", &Choices::batch_size, "; max: the most that fit"},
       .meaning = "samples in one optimizer step, over all devices"},
  };
}

SettingTable step_settings() {
  const std::string group = "Training";
  return {
      {.flag = "--accumulate,--acc-grad",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::accumulate),
       .help = "Micro-batches of each step",
       .values = whole_number(1, 1 << 20),
       .choice = {"auto", &Choices::accumulate, "; auto: the fewest that fit"},
       .meaning = "micro-batches in a step",
       .effect_if = [](const SettingContext& c) { return has_norms(c) ? Effect::result : Effect::rounding; }},
      {.flag = "--no-cuda-graph",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::cuda_graph),
       .help = "Issue every operation of each step; a process with one GPU replays CUDA graphs otherwise",
       .effect = Effect::none},
      {.flag = "--recompute-segments",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::recompute_segments),
       .help = "Activation checkpointing: keep only the inputs of N segments of the model, and compute the rest again "
               "in backward; sqrt: the square root of the number of its parts",
       .values = number_or_words(whole_number(1, std::numeric_limits<int>::max()), {"sqrt"}),
       .type = "N|sqrt",
       .choice = {"auto", &Choices::recompute_segments, "; auto: the fewest that fit"},
       .read = [](const SettingContext& c) { return resolve_recompute_segments(c.options, c.job.model); },
       .meaning = "segments of activation checkpointing; 1: none",
       .effect = Effect::none},
      {.flag = "--recompute",
       .group = group,
       .commands = kRuns,
       .field = at(&Options::recompute),
       .help = "Activation checkpointing of these parts of the model: each PART or run of parts FIRST-LAST keeps only "
               "its input",
       .type = "PART,FIRST-LAST",
       .choice = {"auto", &Choices::recompute,
                  "; auto: those that cost least time, so that it fits (plan --frontier shows the choices)"},
       .key = "recompute[]",
       .json = kTrainings,
       .read = [](const SettingContext& c) { return parse_recompute(c.options.recompute); },
       .meaning = "parts named by `--recompute`, or chosen by `--recompute auto`; empty without it",
       .effect = Effect::none},
      {.flag = "--loss-gradient",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::loss_gradient),
       .help = "Where the gradient of the outputs is written: in-place (over them) or apart",
       .values = one_of({"in-place", "apart"}),
       .effect = Effect::start},
      {.flag = "--batch-norm",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::batch_norm),
       .help = "Samples of a batch norm's statistics: exact (the whole micro-batch, on any split) or local (each "
               "device's, as PyTorch's dp and ddp)",
       .values = one_of({"exact", "local"}),
       .compared = [](const SettingContext& c) { return has_norms(c) ? Json(c.options.batch_norm) : Json(); }},
  };
}

SettingTable optimizer_settings() {
  using L = SettingRow::List;
  const std::string group = "Training";
  const auto of_sgd = [](const auto& value) {
    return [value](const SettingContext& c) {
      const OptimizerConfig optimizer = resolve_optimizer(c.options);
      return is_sgd(optimizer) ? Json(optimizer.sgd.*value) : kAbsent;
    };
  };
  return {
      {.flag = "--optimizer",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::optimizer),
       .help = "sgd, adam or adamw",
       .values = one_of({"sgd", "adam", "adamw"}),
       .meaning = "`sgd`, `adam` or `adamw`"},
      {.flag = "--lr",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::lr),
       .help = "Learning rate [0.001]",
       .help_of = {{kReproduce, "Learning rate [0.0001]"}},
       .values = number_of_at_least_0(),
       .read = [](const SettingContext& c) { return resolve_optimizer(c.options).learning_rate(); },
       .meaning = "learning rate, before the schedule"},
      {.flag = "--momentum",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::momentum),
       .help = "Momentum, for sgd [0]",
       .values = number_of_at_least_0(),
       .read = of_sgd(&SgdConfig::momentum),
       .meaning = "only with sgd"},
      {.flag = "--nesterov",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::nesterov),
       .help = "Nesterov's momentum, for sgd",
       .read = of_sgd(&SgdConfig::nesterov),
       .meaning = "only with sgd"},
      {.key = "betas[]",
       .json = kTrainings,
       .read =
           [](const SettingContext& c) {
             const OptimizerConfig optimizer = resolve_optimizer(c.options);
             if (is_sgd(optimizer)) return kAbsent;
             return Json{optimizer.adam_kernel().beta1, optimizer.adam_kernel().beta2};
           },
       .meaning = "only with adam and adamw",
       .effect = Effect::local},
      {.key = "eps",
       .json = kTrainings,
       .read =
           [](const SettingContext& c) {
             const OptimizerConfig optimizer = resolve_optimizer(c.options);
             return is_sgd(optimizer) ? kAbsent : Json(optimizer.adam_kernel().eps);
           },
       .meaning = "only with adam and adamw",
       .effect = Effect::local},
      {.flag = "--weight-decay",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::weight_decay),
       .help = "Weight decay [0.01 for adamw, else 0]",
       .values = number_of_at_least_0(),
       .read = [](const SettingContext& c) { return resolve_optimizer(c.options).weight_decay(); },
       .meaning = "weight decay"},
      {.flag = "--augment",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::recipe, &RecipeOptions::augment),
       .help = "Random changes of training images on the device, a list: flip (mirrored with probability 1/2), crop:N "
               "(padded with N zero pixels, then cropped), cutout:N (a square of N x N pixels set to the mean) [none]",
       .clear = "none",
       .compared = augmentation_in_force},
      {.flag = "--label-smoothing",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::recipe, &RecipeOptions::label_smoothing),
       .help = "Share of the target distribution that is spread over all classes, in training",
       .values = number(0, 1)},
      {.flag = "--no-decay",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::recipe, &RecipeOptions::no_decay),
       .help = "Parameters without weight decay, a list: norms (of normalization layers), biases [none]",
       .values = one_of({"norms", "biases", "none"}),
       .list = L::commas,
       .clear = "none",
       // The kinds once each, in one order, which does not matter.
       .compared =
           [](const SettingContext& c) {
             return std::set<std::string>(c.options.recipe.no_decay.begin(), c.options.recipe.no_decay.end());
           }},
      {.flag = "--param-group",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::recipe, &RecipeOptions::groups),
       .help = "Constants of parameters whose names match: PATTERN:lr=RATE,weight-decay=DECAY, as "
               "'classifier.*:lr=0.01'; the rate keeps its ratio to --lr under a schedule. Several may be given; a "
               "later one overrides an earlier one and --no-decay",
       .list = L::repeated,
       .key = "param_groups[]",
       .meaning = "`--param-group`, in the order given",
       .compared = groups_in_force},
      {.flag = "--ema",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::recipe, &RecipeOptions::ema),
       .help = "Keep an exponential moving average of the weights with this decay (0.999), evaluate it and save it "
               "beside --save",
       .values = fraction(false, false)},
      {.flag = "--dropout",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::dropout),
       .help = "Probability of dropout [the model's]",
       .values = fraction(true, false),
       .meaning = "`--dropout`; null: the model's own",
       .compared =
           [](const SettingContext& c) {
             const float dropout = c.job.model_hash ? 0.0F : model_dropout(c.options.model);
             return dropout > 0.0F ? fmt::format("{}", c.options.dropout.value_or(dropout)) : "";
           }},
      {.flag = "--seed",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::seed),
       .help = "Seed of initial weights, order of samples, dropout and augmentation",
       .values = whole_number(0)},
      {.flag = "--shuffle,!--no-shuffle",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::shuffle),
       .help = "Shuffle the samples in each epoch [on]",
       .meaning = "false with `--no-shuffle`"},
      {.flag = "--drop-last",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::drop_last),
       .help = "Drop the last batch of an epoch if it is not full"},
      {.flag = "--init-weights",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::init_weights),
       .help = "FILE.safetensors or checkpoint to start from [drawn from the seed]",
       .meaning = "`--init-weights`",
       .effect = Effect::start,
       .ranks = Ranks::given},  // only rank 0 reads the file
      {.flag = "--epochs",
       .group = group,
       .commands = kRuns | kReproduce,
       .field = at(&Options::epochs),
       .help = "Passes over the training set [1]",
       .help_of = {{kReproduce, "Passes over the training set [20]"}},
       .values = whole_number(1, kMostSteps),
       .read = [](const SettingContext& c) { return c.options.steps ? Json() : Json(c.options.epochs.value_or(1)); },
       .meaning = "null with `--steps`",
       .effect_if = of_length},
      {.flag = "--steps",
       .group = group,
       .commands = kRuns | kCompare,
       .field = at(&Options::steps),
       .help = "Optimizer steps, instead of --epochs",
       .help_of = {{kCompare, "Optimizer steps of each scheme in each round; the first is not measured [6]"}},
       .values = whole_number(1, kMostSteps),
       .meaning = "`--steps`; null with `--epochs`. `compare`: steps of a round",
       .effect_if = of_length},
      {.flag = "--no-eval",
       .group = group,
       .commands = kRuns,
       .field = at(&Options::evaluate),
       .help = "Do not evaluate on the test set",
       .key = "evaluate",
       .effect = Effect::start},
      {.flag = "--autotune",
       .group = group,
       .commands = kTrain,
       .field = at(&Options::autotune),
       .help = "Before the first step, time the plans that cuDNN and cuBLASLt have for each convolution and product, "
               "and train with the fastest; with FILE.json: take the plans in the file if there is one, and write "
               "those in use to it. Checkpoints keep the plans for --resume",
       .type = "[FILE.json]",
       .may_lack_value = true,
       .read = [](const SettingContext& c) { return c.options.autotune.has_value(); },
       .meaning = "whether `--autotune` is given",
       .effect = Effect::rounding},
      {.flag = "--rounds",
       .group = group,
       .commands = kCompare,
       .field = at(&Options::rounds),
       .help = "Rounds in which the schemes take turns; differences within the spread of the rounds are noise",
       .values = whole_number(1, 1000),
       .effect = Effect::local},
  };
}

SettingTable precision_settings() {
  const std::string group = "Precision";
  const auto unless_several = [](const auto& value) {
    return [value](const SettingContext& c) { return c.options.precisions.empty() ? Json(value(c)) : kAbsent; };
  };
  return {
      {.flag = "--precision",
       .group = group,
       .commands = kModels & ~kReproduce,
       .field = at(&Options::precision),
       .help = "fp32, or fp16 or bf16 layers and activations with f32 master weights",
       .values = one_of({"fp32", "fp16", "bf16"}),
       .read = unless_several([](const SettingContext& c) { return c.options.precision; }),
       .meaning = "`--precision`; absent with `--precisions`"},
      {.flag = "--loss-scale",
       .group = group,
       .commands = kRuns | kCompare,
       .field = at(&Options::loss_scale),
       .help = "none, dynamic, or a fixed NUMBER [dynamic for fp16, else none]",
       .read = unless_several([](const SettingContext& c) { return loss_scale_name(precision_of(c).loss_scaling); }),
       .meaning = "`none`, `dynamic` or the fixed scale; absent with `--precisions`"},
      {.flag = "--loss-scale-growth-interval",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::loss_scale_growth_interval),
       .help = "Steps without overflow before the scale doubles [2000]",
       .values = whole_number(1, 1 << 30),
       .compared =
           [](const SettingContext& c) {
             const LossScaling scaling = resolve_precision(c.options).loss_scaling;
             return scaling.kind == LossScaling::Kind::dynamic ? Json(scaling.constants.growth_interval) : Json();
           }},
      {.flag = "--clip-norm",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::clip_norm),
       .help = "Largest norm of the gradient over all parameters [not clipped]",
       .values = number_above_0()},
      {.flag = "--allow-non-finite",
       .group = group,
       .commands = kModels,
       .field = at(&Options::allow_non_finite),
       .help = "Continue when a loss or gradient is not finite [stop, and keep the last finite weights]",
       .help_of = {{kEval, "Accept weights that are NaN or infinite [refuse them]"}},
       .json = kTrainings},
      {.flag = "--reduce-dtype",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::reduce_dtype),
       .help = "Data type used to reduce gradients: f32, f16 or bf16",
       .values = one_of({"f32", "f16", "bf16"}),
       .meaning = "data type used to reduce gradients"},
      {.flag = "--broadcast",
       .group = group,
       .commands = kTrainings,
       .field = at(&Options::broadcast),
       .help = "Under --reduce gpu0, what device 0 sends to the others: half (16 bits) or masters (f32) [half]",
       .values = one_of({"half", "masters"}),
       .json = kRuns | kCompare,
       .read = unless_several([](const SettingContext& c) {
         const Precision precision = precision_of(c);
         return precision.mixed() ? Json(precision.broadcasts_masters ? "masters" : "half") : Json();
       }),
       .meaning = "`half` or `masters`; null in fp32; absent with `--precisions`",
       .effect = Effect::rounding},
      {.flag = "--precisions",
       .group = group,
       .commands = kCompare | kReproduce,
       .field = at(&Options::precisions),
       .help = "Precisions to run each scheme in, with loss scales: fp32,fp16:none,fp16:dynamic [--precision]",
       .help_of = {{kReproduce, "Precisions to run each mode in, with loss scales"}},
       .key = "precisions[]",
       .read =
           [](const SettingContext& c) {
             if (c.options.precisions.empty()) return kAbsent;
             Json names = Json::array();
             for (const auto& [name, precision] : resolve_compare_precisions(c.options)) names.push_back(name);
             return names;
           },
       .meaning = "`--precisions`; absent without it",
       .effect = Effect::local},
  };
}

SettingTable output_settings() {
  const std::string group = "Output";
  const auto text = [&](const std::string& flag, Commands commands, const Field& field, const std::string& help,
                        Ranks ranks, Commands json = kNoCommand) {
    return SettingRow{.flag = flag,
                      .group = group,
                      .commands = commands,
                      .field = field,
                      .help = help,
                      .json = json,
                      .meaning = json != kNoCommand ? "`" + flag + "`" : "",
                      .effect = Effect::local,
                      .ranks = ranks};
  };
  SettingTable rows = {
      text("--json", kModels | kBench | kLab | kInfo, at(&Options::json), "Print one JSON object on stdout",
           Ranks::local),
      text("--save", kTrain, at(&Options::save), "Write the weights to FILE.safetensors at the end", Ranks::given,
           kTrain),
      // Steps whose memory is recorded are not replayed as CUDA graphs, which all ranks do together.
      text("--report", kTrainings | kLab, at(&Options::report), "Write a page with charts and findings to FILE.html",
           Ranks::given),
      text("--tensorboard", kTrain, at(&Options::tensorboard),
           "Write loss, learning rate, accuracy, confusion matrix, speed and memory to a new event file in the folder "
           "DIR",
           Ranks::given),
      text("--log", kTrain, at(&Options::log),
           "Write steps and epochs to FILE.jsonl (an object per line) or FILE.csv as they finish", Ranks::local),
      text("--confusion", kTrain | kEval, at(&Options::confusion),
           "Print the confusion matrix of the test set: a row for each class, a column for each prediction",
           Ranks::equal),
      text("--trace", kTrain, at(&Options::trace), "Write a Chrome trace to FILE.json (open it in Perfetto)",
           Ranks::given, kTrain),
      text("--memory-history", kTrain, at(&Options::memory_history),
           "Write what the devices held to FILE.pickle (open it at pytorch.org/memory_viz)", Ranks::given),
      text("--log-every", kModels & ~kPlan, at(&Options::log_every),
           "Print a line of progress on stderr after every N steps [one every 10 s, or a bar on a terminal]",
           Ranks::local),
      text("--record-steps", kTrain, at(&Options::record_steps),
           "Steps that --report, --trace and --memory-history show in detail [2-4; with --trace all]", Ranks::equal),
      text("--trace-level", kTrain, at(&Options::trace_level), "What is timed: off, phase or operation", Ranks::local,
           kTrain),
      text("--frontier", kPlan, at(&Options::frontier),
           "Show what recomputation of parts of the model saves in bytes and costs in time, for --recompute",
           Ranks::local),
      text("--save-logits", kEval, at(&Options::save_logits), "Write the outputs of all samples, in order, to FILE.npy",
           Ranks::given, kEval),
      text("--list", kLab, at(&Options::lab, &LabOptions::list), "List the bugs and their questions, and run nothing",
           Ranks::local),
  };
  for (SettingRow& row : rows) {
    if (row.flag == "--report") {
      row.help_of = {{kReproduce, "Where the page with tables and charts is written [OUT/report.html]"},
                     {kLab, "Write a page with a chart for each bug to FILE.html"}};
    } else if (row.flag == "--log-every") {
      row.values = whole_number(1, kMostSteps);
      row.shows_default = false;
    } else if (row.flag == "--trace-level") {
      row.values = one_of({"off", "phase", "operation"});
    }
  }
  return rows;
}

SettingTable process_settings() {
  const std::string group = "Processes";
  constexpr Commands kUsers = kTrain | kEval | kBench;
  const auto local = [&](const std::string& flag, const Field& field, const std::string& help,
                         const Values& values = {}) {
    return SettingRow{.flag = flag,
                      .group = group,
                      .commands = kUsers,
                      .field = field,
                      .help = help,
                      .values = values,
                      .json = kNoCommand,
                      .effect = Effect::local,
                      .ranks = Ranks::local};
  };
  return {
      local("--rank", at(&Options::rank), "Rank of this process [set by torchrun, mpirun or srun]",
            whole_number(0, 1 << 20)),
      local("--world-size", at(&Options::world_size), "Number of processes, with --rank", whole_number(1, 1 << 20)),
      local("--local-rank,--local_rank", at(&Options::local_rank),
            "Rank of this process on its machine, and the number of its GPU", whole_number(0, 1 << 20)),
      local("--rendezvous", at(&Options::rendezvous),
            "Address at which processes find each other: tcp://HOST:PORT or file:PATH [MPI, or the launcher's "
            "address]"),
      {.flag = "--timeout",
       .group = group,
       .commands = kUsers,
       .field = at(&Options::timeout_seconds),
       .help = "Seconds a process waits for the others in one collective; five times as long in the first step",
       .values = number(0.1, 1e6),
       .json = kNoCommand,
       .effect = Effect::local},
      {.flag = "--verify-replicas",
       .group = group,
       .commands = kTrain,
       .field = at(&Options::verify_replicas),
       .help = "Compare the parameters of all replicas every N steps, not only at the start",
       .values = whole_number(1, 1 << 30),
       .shows_default = false,
       .json = kNoCommand,
       .effect = Effect::local},
      {.flag = "--processes",
       .group = group,
       .commands = kPlan,
       .field = at(&Options::processes),
       .help = "Plan for the first of N processes with these devices each, as mpirun -np N would start them",
       .values = whole_number(1, 1 << 16),
       .json = kNoCommand,
       .effect = Effect::rounding,
       .compared = [](const SettingContext& c) { return c.processes; }},
  };
}

/// A flag of some learning-rate schedules.
template <class T>
SettingRow of_schedule(const std::string& flag, T ScheduleOptions::*field, const std::string& help,
                       const Values& values, std::vector<std::string> schedules, Json otherwise = {}) {
  return {.flag = flag,
          .group = "Learning-rate schedule",
          .commands = kTrain | kReproduce,
          .field = at(&Options::schedule, field),
          .help = help,
          .values = values,
          .owner = {"lr-schedule", std::move(schedules), std::move(otherwise)},
          .json = kTrainings};
}

SettingTable schedule_settings() {
  const LrScheduleConfig defaults;
  const LrScheduleConfig::Plateau& plateau = defaults.plateau;
  SettingRow milestones =
      of_schedule("--lr-milestones", &ScheduleOptions::milestones, "Epochs of the decays, for multi-step: 30,60,80",
                  whole_number(1, kMostSteps), {"multi-step"});
  milestones.list = SettingRow::List::commas;
  SettingRow patience = of_schedule("--lr-patience", &ScheduleOptions::patience,
                                    "Epochs without improvement before a decay, for plateau [10]",
                                    whole_number(0, kMostSteps), {"plateau"}, plateau.patience);
  patience.help_of = {{kReproduce, "Epochs without improvement before a decay, for plateau [3]"}};
  return {
      {.flag = "--lr-schedule",
       .group = "Learning-rate schedule",
       .commands = kTrain | kReproduce,
       .field = at(&Options::schedule, &ScheduleOptions::schedule),
       .help = "How the learning rate changes, as in torch.optim.lr_scheduler: constant; step and multi-step by "
               "epochs; cosine and one-cycle over all steps of the run; plateau when the test metric stops improving",
       .values = one_of(schedule_names()),
       .json = kTrainings},
      of_schedule("--lr-step-size", &ScheduleOptions::step_size, "Epochs between decays, for step [30]",
                  whole_number(1, kMostSteps), {"step"}, defaults.step_size),
      milestones,
      of_schedule("--lr-gamma", &ScheduleOptions::gamma, "Factor of each decay, for step and multi-step [0.1]",
                  number_above_0(), {"step", "multi-step"}, defaults.gamma),
      of_schedule("--lr-min", &ScheduleOptions::min_lr, "Lowest learning rate, for cosine and plateau [0]",
                  number_of_at_least_0(), {"cosine", "plateau"}, defaults.min_lr),
      patience,
      of_schedule("--lr-factor", &ScheduleOptions::factor, "Factor of each decay, for plateau [0.1]",
                  fraction(false, false), {"plateau"}, plateau.factor),
      of_schedule("--lr-threshold", &ScheduleOptions::threshold,
                  "Relative change that counts as an improvement, for plateau [0.0001]", number_of_at_least_0(),
                  {"plateau"}, plateau.threshold),
      of_schedule("--lr-cooldown", &ScheduleOptions::cooldown,
                  "Epochs after a decay that do not count towards --lr-patience, for plateau [0]",
                  whole_number(0, kMostSteps), {"plateau"}, plateau.cooldown),
      of_schedule("--lr-metric", &ScheduleOptions::metric,
                  "What plateau watches after each epoch: loss or accuracy on the test set, or last-batch (training "
                  "loss of the epoch's last batch)",
                  one_of({"loss", "accuracy", "last-batch"}), {"plateau"}),
      {.flag = "--warmup-steps",
       .group = "Learning-rate schedule",
       .commands = kTrain | kReproduce,
       .field = at(&Options::schedule, &ScheduleOptions::warmup_steps),
       .help = "Optimizer steps of linear warm-up before any schedule",
       .values = whole_number(0, kMostSteps),
       .json = kTrainings},
      {.flag = "--warmup-factor",
       .group = "Learning-rate schedule",
       .commands = kTrain | kReproduce,
       .field = at(&Options::schedule, &ScheduleOptions::warmup_factor),
       .help = "Share of the schedule's first learning rate at the first step of the warm-up [1/3]",
       .values = fraction(false, true),
       .owner = {"warmup-steps"},
       .json = kTrainings,
       .compared =
           [defaults](const SettingContext& c) {
             const ScheduleOptions& o = c.options.schedule;
             return o.warmup_steps > 0 ? Json(o.warmup_factor.value_or(defaults.warmup_start_factor)) : Json();
           }},
  };
}

SettingTable checkpoint_settings() {
  using L = SettingRow::List;
  const std::string group = "Checkpoints";
  const auto row = [&](const std::string& flag, Commands commands, const Field& field, const std::string& help,
                       Ranks ranks, Commands json = kNoCommand) {
    return SettingRow{.flag = flag,
                      .group = group,
                      .commands = commands,
                      .field = field,
                      .help = help,
                      .json = json,
                      .meaning = json != kNoCommand ? "`" + flag + "`" : "",
                      .effect = Effect::local,
                      .ranks = ranks};
  };
  SettingTable rows = {
      row("--checkpoint-dir", kRuns, at(&Options::checkpoints, &CheckpointOptions::directory),
          "Save checkpoints in the folder DIR: weights, optimizer, and all that a run needs to continue", Ranks::given,
          kTrain),
      row("--checkpoint-every", kTrain, at(&Options::checkpoints, &CheckpointOptions::every),
          "When: epoch, N (optimizer steps), or Nm (minutes) [epoch]", Ranks::equal, kTrain),
      row("--keep-last", kTrain | kReproduce, at(&Options::checkpoints, &CheckpointOptions::keep_last),
          "Keep the newest K checkpoints [all]", Ranks::local, kReproduce),
      row("--keep-best", kTrain, at(&Options::checkpoints, &CheckpointOptions::keep_best),
          "Also save and keep the checkpoint of the epoch with the highest test accuracy, to which the link DIR/best "
          "points",
          Ranks::equal),
      row("--resume", kTrain, at(&Options::checkpoints, &CheckpointOptions::resume),
          "Continue from the newest whole checkpoint in DIR, from one checkpoint's folder, or auto: from "
          "--checkpoint-dir if it has one, else from the start",
          Ranks::given),
      row("--resume-change", kTrain, at(&Options::checkpoints, &CheckpointOptions::resume_change),
          "Settings that may differ from the checkpoint's though they change results: lr,batch-size", Ranks::equal),
  };
  for (SettingRow& r : rows) {
    if (r.flag == "--checkpoint-every") {
      r.read = [](const SettingContext& c) {
        const CheckpointOptions& o = c.options.checkpoints;
        return o.directory.empty() ? Json() : Json(o.every.value_or("epoch"));
      };
      r.meaning += "; null without `--checkpoint-dir`";
    } else if (r.flag == "--keep-last") {
      r.values = whole_number(1, kMostSteps);
      r.help_of = {{kReproduce, "Keep the newest K checkpoints of each run [all]"}};
    } else if (r.flag == "--resume-change") {
      r.list = L::commas;
    }
  }
  return rows;
}

SettingTable reproduce_settings() {
  const std::string group = "Reproduction";
  return {
      {.flag = "--out",
       .group = group,
       .commands = kReproduce,
       .field = at(&Options::reproduce, &ReproduceOptions::out),
       .help = "Folder of the runs: each has its checkpoints, TensorBoard files, log and result in a folder of its own",
       .required = kReproduce,
       .meaning = "`--out`",
       .effect = Effect::local},
      {.flag = "--seeds",
       .group = group,
       .commands = kReproduce,
       .field = at(&Options::reproduce, &ReproduceOptions::seeds),
       .help = "Repeat each run with this many seeds, from --seed on, and show the spread",
       .values = whole_number(1, 1000),
       .effect = Effect::local},
      {.flag = "--as-published",
       .group = group,
       .commands = kReproduce,
       .field = at(&Options::reproduce, &ReproduceOptions::as_published),
       .help = "Repeat the conditions of the published figures (1000 outputs, no normalization, no shuffling, plateau "
               "on the last batch's loss, one device) and put the figures beside the results",
       .effect = Effect::local},
  };
}

/// Of collectives, named as nccl-tests' flags, and of the lab and the lessons.
SettingTable other_settings() {
  using L = SettingRow::List;
  const auto row = [](const std::string& flag, const std::string& group, Commands commands, const Field& field,
                      const std::string& help, const Values& values = {}, L list = L::none) {
    return SettingRow{.flag = flag,
                      .group = group,
                      .commands = commands,
                      .field = field,
                      .help = help,
                      .values = values,
                      .list = list,
                      .json = kNoCommand,
                      .effect = Effect::local,
                      .ranks = Ranks::local};
  };
  const Values size = bytes(0, kMostCollectiveBytes);
  using C = CollectiveOptions;
  const auto at_c = [](auto member) { return at(&Options::collectives, member); };
  SettingTable rows = {
      row("NAME", "Options", kBench, at_c(&C::names),
          "scatter, gather, broadcast, reduce, all_reduce, reduce_scatter, all_gather, alltoall, sendrecv (a ring), "
          "gpu0_star (reduce + broadcast) [all]",
          one_of(collective_names()), L::repeated),
      row("NAME", "Options", kLab, at(&Options::lab, &LabOptions::names), "Bugs to show in full [a table of all]", {},
          L::repeated),
      row("-b,--minbytes", "Sizes", kBench, at_c(&C::first_bytes),
          "Smallest size: 8, 64K, 32M [64K, or the value of -e]", size),
      row("-e,--maxbytes", "Sizes", kBench, at_c(&C::last_bytes), "Largest size [16M, or the value of -b]", size),
      row("-f,--stepfactor", "Sizes", kBench, at_c(&C::step_factor), "Factor between successive sizes",
          number(1.0001, 1e6)),
      row("-i,--stepbytes", "Sizes", kBench, at_c(&C::step_bytes),
          "Bytes between successive sizes, instead of a factor", bytes(1, kMostCollectiveBytes)),
      row("-n,--iters", "Operation", kBench, at_c(&C::iterations), "Timed operations", whole_number(1, 1 << 24)),
      row("-w,--warmup_iters", "Operation", kBench, at_c(&C::warm_up), "Operations before the timed ones",
          whole_number(0, 1 << 24)),
      row("-c,--check", "Operation", kBench, at_c(&C::check), "1: check every element of the results, 0: do not",
          one_of({"0", "1"})),
      row("-d,--datatype", "Operation", kBench, at_c(&C::datatype), "float, half, bfloat16 or int32",
          one_of({"float", "half", "bfloat16", "int32", "f32", "f16", "bf16", "i32"})),
      row("-o,--op", "Operation", kBench, at_c(&C::reduction), "Reduction: sum, min, max or avg",
          one_of({"sum", "min", "max", "avg"})),
      row("-r,--root", "Operation", kBench, at_c(&C::root), "Rank of the root", whole_number(0, 1 << 20)),
      row("--counts", "Operation", kBench, at_c(&C::counts),
          "Relative part of each rank in scatter and gather: 8,19,19,18 [equal]", whole_number(0, 1 << 30), L::commas),
      row("number", "Lesson", kLesson, at(&Options::lesson), "The lesson to run [list the lessons]"),
      row("--answer", "Lesson", kLesson, at(&Options::answer),
          "Print the exercise and its answer instead of running the lesson"),
  };
  for (SettingRow& r : rows) {
    r.shows_default = r.flag != "-i,--stepbytes" && r.flag != "number";
    if (r.flag.ends_with("bytes")) r.type = "SIZE";
    if (r.flag == "--counts") r.type = "N,N";
  }
  return rows;
}

}  // namespace

const SettingTable& setting_table() {
  static const SettingTable table = [] {
    SettingTable all;
    for (SettingTable part : {model_settings(), device_settings(), scheme_settings(), step_settings(),
                              optimizer_settings(), precision_settings(), output_settings(), process_settings(),
                              schedule_settings(), checkpoint_settings(), reproduce_settings(), other_settings()}) {
      std::move(part.begin(), part.end(), std::back_inserter(all));
    }
    return all;
  }();
  return table;
}

}  // namespace vitrine::tools
