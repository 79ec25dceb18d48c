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

const Json kAbsent(Json::value_t::discarded);

template <class T>
Field at(T Options::*member) {
  return Member<T>([member](Options& o) -> T& { return o.*member; });
}
template <class Part, class T>
Field at(Part Options::*part, T Part::*member) {
  return Member<T>([part, member](Options& o) -> T& { return o.*part.*member; });
}

/// The parts of a row beside flag, commands, place in Options and help.
struct Type {
  const char* name;
};
struct Required {
  Commands commands;
};
struct NoDefault {};
struct MayLackValue {};
struct Clear {
  const char* word;
};
struct HelpOf {
  Commands commands;
  const char* help;
};
struct Key {
  const char* name;
};
struct InJson {
  Commands commands;
};
struct Meaning {
  std::string text;
};
struct Read {
  Reader read;
};
struct Compared {
  Reader read;
};
struct EffectIf {
  std::function<Effect(const SettingContext&)> effect;
};
constexpr InJson kNotInJson{0};

void add(SettingRow& row, const Values& values) { row.values = values; }
void add(SettingRow& row, Type type) { row.type = type.name; }
void add(SettingRow& row, Required required) { row.required = required.commands; }
void add(SettingRow& row, NoDefault) { row.shows_default = false; }
void add(SettingRow& row, MayLackValue) { row.may_lack_value = true; }
void add(SettingRow& row, Clear clear) { row.clear = clear.word; }
void add(SettingRow& row, const HelpOf& of) { row.help_of.emplace_back(of.commands, of.help); }
void add(SettingRow& row, SettingRow::List list) { row.list = list; }
void add(SettingRow& row, const SettingRow::Choice& choice) { row.choice = choice; }
void add(SettingRow& row, const SettingRow::Owner& owner) { row.owner = owner; }
void add(SettingRow& row, Key key) { row.key = key.name; }
void add(SettingRow& row, InJson json) { row.json = json.commands; }
void add(SettingRow& row, const Meaning& meaning) { row.meaning = meaning.text; }
void add(SettingRow& row, const Read& value) { row.read = value.read; }
void add(SettingRow& row, const Compared& value) { row.compared = value.read; }
void add(SettingRow& row, Effect effect) { row.effect = effect; }
void add(SettingRow& row, const EffectIf& value) { row.effect_if = value.effect; }
void add(SettingRow& row, Ranks ranks) { row.ranks = ranks; }

template <class... Parts>
SettingRow flag(const char* name, Commands commands, const Field& field, const std::string& help,
                const Parts&... parts) {
  SettingRow row{.flag = name, .commands = commands, .field = field, .help = help};
  (add(row, parts), ...);
  return row;
}

/// A value of the JSON configuration that has no flag.
template <class... Parts>
SettingRow value(const char* key, Commands commands, const Parts&... parts) {
  SettingRow row{.key = key, .json = commands};
  (add(row, parts), ...);
  return row;
}

SettingTable in_group(const std::string& group, SettingTable rows) {
  for (SettingRow& row : rows) {
    if (row.group.empty()) row.group = group;
  }
  return rows;
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
  return in_group(
      "Model and data",
      {
          flag("--model", kModels, at(&Options::model),
               "Model to train; a FILE.json describes one by its layers (see docs/model_files.md)",
               one_of_or_file(model_names(), "FILE.json"),
               Read{[](const SettingContext& c) { return c.job.model.name; }}, Compared{[](const SettingContext& c) {
                 return fmt::format("{}, {} classes", identify_model(c.job), c.job.model.classes);
               }}),

          // The path may differ between machines.
          flag("--data", kModels, at(&Options::data),
               "cifar10:DIR, cifar100:DIR, fashion-mnist:DIR, idx:DIR, image-folder:DIR (a folder per class in train "
               "and val) or "
               "synthetic[:COUNT]",
               Required{kReproduce}, Compared{[](const SettingContext& c) { return identify_data(c.job); }}),
          flag("--image-size", kModels, at(&Options::image_size),
               "Height and width of the model's input [227 for alexnet, 224 for vgg16, resnet18 and resnet50, else the "
               "data's]; images of an image-folder are resized and cropped to it",
               whole_number(1, 1 << 16), NoDefault{}, Read{[](const SettingContext& c) { return c.job.model.height; }},
               Meaning{"height and width of the images that the model receives"}),
          value("channels", kModels, Read{[](const SettingContext& c) { return c.job.model.channels; }},
                Meaning{"channels of the images"}, Effect::local),
          flag("--classes", kModels, at(&Options::classes),
               "Outputs of the model, at least the data's classes [as many]", whole_number(1, 1 << 24),
               Read{[](const SettingContext& c) { return c.job.model.classes; }},
               Meaning{"outputs of the model: `--classes`, or the data's classes"}, Effect::local),
          flag("--limit-samples", kModels, at(&Options::limit_samples),
               "Use only the first N training images, and the same share of the test set [all]",
               whole_number(1, kMostSamples), Meaning{"`--limit-samples`; null: all"}, Effect::local),
          flag("--preprocess", kModels, at(&Options::preprocess),
               "Where images are resized and normalized: host (the loader) or device", one_of({"host", "device"}),
               Effect::rounding),
          flag("--normalize", kModels, at(&Options::normalize),
               "Mean and deviation of each channel, for pixels from 0 to 1: 0.5,0.5,0.5/0.2,0.2,0.2; or none [the "
               "data set's]",
               Meaning{"`--normalize`; null: the data set's"}, Compared{normalization_in_force}),
          flag("--workers", kModels, at(&Options::workers), "Threads that load batches", whole_number(1, 256),
               Effect::local, Ranks::local),
          flag("--data-on-device", kRuns, at(&Options::data_on_device),
               "Whether the training images lie on the devices, which gather their batches there: on (all of them on "
               "each device that takes batches from the host; plans count them) or off; results have the same bits",
               one_of({"on", "off"}), Read{[](const SettingContext& c) { return c.options.images_on_device(); }},
               Meaning{"whether `--data-on-device` is on"}, Effect::start),
          flag("--weights", kEval, at(&Options::weights),
               "FILE.safetensors with PyTorch's names and layouts, a checkpoint's folder, or a folder of checkpoints: "
               "its newest",
               Required{kEval}, Meaning{"`--weights`"}, Effect::local, Ranks::given),
      });
}

SettingTable device_settings() {
  using L = SettingRow::List;
  constexpr Commands kUsers = kModels | kBench;
  return in_group(
      "Devices",
      {
          flag("--devices", kUsers, at(&Options::devices),
               "A list: cpu:0-3 | cpu:0,cpu:1 | cuda:0-1 | cuda:all | cuda:0,cuda:0 (logical devices of one GPU); for "
               "each process [the GPU of its local rank, else cpu:0]",
               Key{"devices[]"}, Read{[](const SettingContext& c) {
                 Json names = Json::array();
                 for (const DeviceId& device : c.devices) names.push_back(device.str());
                 return names;
               }},
               Meaning{"devices of this process"}, EffectIf{of_devices}, Compared{[](const SettingContext& c) {
                 return fmt::format("{} {}", c.world_size.value_or(static_cast<int>(c.devices.size())),
                                    c.devices.front().backend == Backend::cuda ? "cuda" : "cpu");
               }},
               Ranks::local),
          flag("--device-memory", kUsers, at(&Options::device_memory),
               "Capacity of each device: 512MiB, or a list; a plain number is bytes [the machine's memory, divided]",
               bytes(1), Type{"SIZE"}, L::commas, Effect::start, Ranks::local),
          flag("--workspace", kUsers, at(&Options::workspace),
               "Scratch memory for each device's libraries: 64MiB [planned: what the model's convolutions want, 1MiB "
               "to 32MiB; on GPUs 32MiB or more]",
               bytes(0), Type{"SIZE"}, Meaning{"`--workspace` in bytes; null: sized by the plan"}, Effect::rounding,
               Compared{[](const SettingContext& c) {
                 return value_or_null(c.workspace_bytes ? c.workspace_bytes : c.options.workspace);
               }}),
          flag("--threads-per-device", kUsers, at(&Options::threads_per_device),
               "Threads of each CPU device: 2, or a list [the cores, divided]", whole_number(1, kMostThreadsPerDevice),
               Type{"N"}, L::commas, Effect::rounding, Compared{[](const SettingContext& c) {
                 return c.threads ? Json(*c.threads) : Json(c.options.threads_per_device);
               }},
               Ranks::local),
          flag("--tf32", kUsers, at(&Options::tf32),
               "Let GPUs round the inputs of matrix products and convolutions to TF32: faster, 10 bits of mantissa"),
          flag("--nccl-defaults", kUsers, at(&Options::nccl_defaults),
               "Let NCCL choose its algorithm and protocol, not Ring and Simple: often faster, but results may differ "
               "in their last bits from run to run",
               Effect::rounding),
          flag("--check-order", kUsers, at(&Options::check_order),
               "Check that operations on the same memory are ordered", kNotInJson, Effect::local, Ranks::local),
      });
}

SettingTable scheme_settings() {
  return in_group(
      "Scheme",
      {
          flag("--mode", kRuns, at(&Options::mode), "dp, balanced, criterion or ddp [ddp]", one_of(scheme_names()),
               Read{[](const SettingContext& c) { return c.options.mode_name(); }}, Meaning{"the scheme"},
               Effect::rounding, Compared{[](const SettingContext& c) { return describe_axes(scheme_of(c)); }}),
          flag("--split", kRuns | kCompare, at(&Options::split),
               "Shares of the devices: equal | 2,3,3 (weights) | gpu0=N (N samples per step on device 0)",
               SettingRow::Choice{"auto", &Choices::split, " | auto (by --balance)"}, InJson{kRuns},
               Read{[](const SettingContext& c) { return scheme_of(c).split.str(); }},
               Meaning{"`equal`, weights (`2,3,3`) or `gpu0=N`"}, EffectIf{of_devices}),
          flag("--balance", kRuns, at(&Options::balance),
               "What --split auto equalizes: the memory left on each device (planned), or its time (measured first)",
               one_of({"memory", "time"}), kNotInJson, Effect::local),
          flag("--gpu0-bsz", kRuns | kCompare, at(&Options::gpu0_batch_size),
               "N: the same as --mode balanced --split gpu0=N", whole_number(0), kNotInJson, Effect::local),
          flag("--staging", kRuns, at(&Options::staging),
               "device0 (whole batch there first) or host (slices straight to their devices) [the mode's]",
               one_of({"device0", "host"}),
               Read{[](const SettingContext& c) { return staging_name(scheme_of(c).staging); }},
               Meaning{"`device0` or `host`"}, Effect::local),
          flag("--loss-at", kRuns, at(&Options::loss_at),
               "gathered (on the output device) or parallel (on each) [the mode's]", one_of({"gathered", "parallel"}),
               Read{[](const SettingContext& c) { return loss_at_name(scheme_of(c).loss_at); }},
               Meaning{"`gathered` or `parallel`"}, Effect::local),
          flag("--reduce", kRuns, at(&Options::reduce), "gpu0 (update there, then broadcast) or allreduce [the mode's]",
               one_of({"gpu0", "allreduce"}),
               Read{[](const SettingContext& c) { return reduce_name(scheme_of(c).reduce); }},
               Meaning{"`gpu0` or `allreduce`"}, Effect::local),
          flag("--bucket-mb", kTrainings, at(&Options::bucket_mb), "MiB of gradients in each bucket of an all-reduce",
               number(1e-6, 1e6), InJson{kRuns}, Effect::rounding),
          flag("--first-bucket-mb", kTrainings, at(&Options::first_bucket_mb),
               "MiB in the first bucket, which can start earliest", number(1e-6, 1e6), InJson{kRuns}, Effect::rounding),
          flag("--output-device", kRuns, at(&Options::output_device),
               "Where outputs are gathered: one of --devices [the first]", Read{[](const SettingContext& c) {
                 const Scheme scheme = scheme_of(c);
                 return scheme.loss_at == LossAt::gathered
                            ? Json(c.devices[static_cast<size_t>(scheme.output_device)].str())
                            : Json();
               }},
               Meaning{"device of the gathered loss"}, Effect::start),
          flag("--modes", kCompare, at(&Options::modes), "Schemes to run", kNotInJson, Effect::local),
          flag("--modes", kReproduce, at(&Options::reproduce, &ReproduceOptions::modes),
               "Modes to run, of single (the first device), dp, criterion and ddp", Effect::local),
          in_group("Batch", {flag("--batch-size", kModels, at(&Options::batch_size),
                                  "Samples of one optimizer step, over all devices and micro-batches",
                                  whole_number(1, kMostSamples),
                                  SettingRow::Choice{"max", &Choices::batch_size, "; max: the most that fit"},
                                  Meaning{"samples in one optimizer step, over all devices"})})
              .front(),
      });
}

SettingTable step_settings() {
  return in_group(
      "Training",
      {
          flag("--accumulate,--acc-grad", kTrainings, at(&Options::accumulate), "Micro-batches of each step",
               whole_number(1, 1 << 20),
               SettingRow::Choice{"auto", &Choices::accumulate, "; auto: the fewest that fit"},
               Meaning{"micro-batches in a step"},
               EffectIf{[](const SettingContext& c) { return has_norms(c) ? Effect::result : Effect::rounding; }}),
          flag("--no-cuda-graph", kTrainings, at(&Options::cuda_graph),
               "Issue every operation of each step; a process with one GPU replays CUDA graphs otherwise",
               Effect::none),
          flag("--recompute-segments", kTrainings, at(&Options::recompute_segments),
               "Activation checkpointing: keep only the inputs of N segments of the model, and compute the rest again "
               "in backward; sqrt: the square root of the number of its parts",
               number_or_words(whole_number(1, std::numeric_limits<int>::max()), {"sqrt"}), Type{"N|sqrt"},
               SettingRow::Choice{"auto", &Choices::recompute_segments, "; auto: the fewest that fit"},
               Read{[](const SettingContext& c) { return resolve_recompute_segments(c.options, c.job.model); }},
               Meaning{"segments of activation checkpointing; 1: none"}, Effect::none),
          flag("--recompute", kRuns, at(&Options::recompute),
               "Activation checkpointing of these parts of the model: each PART or run of parts FIRST-LAST keeps only "
               "its input",
               Type{"PART,FIRST-LAST"},
               SettingRow::Choice{
                   "auto", &Choices::recompute,
                   "; auto: those that cost least time, so that it fits (plan --frontier shows the choices)"},
               Key{"recompute[]"}, InJson{kTrainings},
               Read{[](const SettingContext& c) { return parse_recompute(c.options.recompute); }},
               Meaning{"parts named by `--recompute`, or chosen by `--recompute auto`; empty without it"},
               Effect::none),
          flag("--loss-gradient", kTrainings, at(&Options::loss_gradient),
               "Where the gradient of the outputs is written: in-place (over them) or apart",
               one_of({"in-place", "apart"}), Effect::start),
          flag("--batch-norm", kTrainings, at(&Options::batch_norm),
               "Samples of a batch norm's statistics: exact (the whole micro-batch, on any split) or local (each "
               "device's, as PyTorch's dp and ddp)",
               one_of({"exact", "local"}),
               Compared{[](const SettingContext& c) { return has_norms(c) ? Json(c.options.batch_norm) : Json(); }}),
      });
}

SettingTable optimizer_settings() {
  using L = SettingRow::List;
  const auto of_sgd = [](const auto& value) {
    return [value](const SettingContext& c) {
      const OptimizerConfig optimizer = resolve_optimizer(c.options);
      return is_sgd(optimizer) ? Json(optimizer.sgd.*value) : kAbsent;
    };
  };
  return in_group(
      "Training",
      {
          flag("--optimizer", kTrainings, at(&Options::optimizer), "sgd, adam or adamw",
               one_of({"sgd", "adam", "adamw"}), Meaning{"`sgd`, `adam` or `adamw`"}),
          flag("--lr", kTrainings, at(&Options::lr), "Learning rate [0.001]",
               HelpOf{kReproduce, "Learning rate [0.0001]"}, number_of_at_least_0(),
               Read{[](const SettingContext& c) { return resolve_optimizer(c.options).learning_rate(); }},
               Meaning{"learning rate, before the schedule"}),
          flag("--momentum", kTrainings, at(&Options::momentum), "Momentum, for sgd [0]", number_of_at_least_0(),
               Read{of_sgd(&SgdConfig::momentum)}, Meaning{"only with sgd"}),
          flag("--nesterov", kTrainings, at(&Options::nesterov), "Nesterov's momentum, for sgd",
               Read{of_sgd(&SgdConfig::nesterov)}, Meaning{"only with sgd"},
               Compared{[](const SettingContext& c) { return c.options.nesterov ? Json(true) : Json(); }}),
          flag("--adam-betas", kTrainings, at(&Options::adam_betas),
               "Decay rates of the moments, for adam and adamw: B1,B2 [0.9,0.999]", Type{"B1,B2"}, Key{"betas[]"},
               Read{[](const SettingContext& c) {
                 const OptimizerConfig optimizer = resolve_optimizer(c.options);
                 if (is_sgd(optimizer)) return kAbsent;
                 return Json{optimizer.adam_kernel().beta1, optimizer.adam_kernel().beta2};
               }},
               Meaning{"only with adam and adamw"}, Compared{[](const SettingContext& c) {
                 const AdamConfig d;
                 const OptimizerConfig optimizer = resolve_optimizer(c.options);
                 const AdamConfig used = is_sgd(optimizer) ? d : optimizer.adam_kernel();
                 if (used.beta1 == d.beta1 && used.beta2 == d.beta2) return Json();
                 return Json{used.beta1, used.beta2};
               }}),
          flag("--adam-eps", kTrainings, at(&Options::adam_eps),
               "Added to the root of the second moment, for adam and adamw [1e-8]", number_of_at_least_0(), Key{"eps"},
               Read{[](const SettingContext& c) {
                 const OptimizerConfig optimizer = resolve_optimizer(c.options);
                 return is_sgd(optimizer) ? kAbsent : Json(optimizer.adam_kernel().eps);
               }},
               Meaning{"only with adam and adamw"}, Compared{[](const SettingContext& c) {
                 const OptimizerConfig optimizer = resolve_optimizer(c.options);
                 const double eps = is_sgd(optimizer) ? AdamConfig().eps : optimizer.adam_kernel().eps;
                 return eps == AdamConfig().eps ? Json() : Json(eps);
               }}),
          flag("--weight-decay", kTrainings, at(&Options::weight_decay), "Weight decay [0.01 for adamw, else 0]",
               number_of_at_least_0(),
               Read{[](const SettingContext& c) { return resolve_optimizer(c.options).weight_decay(); }},
               Meaning{"weight decay"}),
          flag("--augment", kTrainings, at(&Options::recipe, &RecipeOptions::augment),
               "Random changes of training images on the device, a list: flip (mirrored with probability 1/2), crop:N "
               "(padded with N zero pixels, then cropped), cutout:N (a square of N x N pixels set to the mean) [none]",
               Clear{"none"}, Compared{augmentation_in_force}),
          flag("--label-smoothing", kTrainings, at(&Options::recipe, &RecipeOptions::label_smoothing),
               "Share of the target distribution that is spread over all classes, in training", number(0, 1)),

          // The kinds once each, in one order, which does not matter.
          flag("--no-decay", kTrainings, at(&Options::recipe, &RecipeOptions::no_decay),
               "Parameters without weight decay, a list: norms (of normalization layers), biases [none]",
               one_of({"norms", "biases", "none"}), L::commas, Clear{"none"}, Compared{[](const SettingContext& c) {
                 return std::set<std::string>(c.options.recipe.no_decay.begin(), c.options.recipe.no_decay.end());
               }}),
          flag("--param-group", kTrainings, at(&Options::recipe, &RecipeOptions::groups),
               "Constants of parameters whose names match: PATTERN:lr=RATE,weight-decay=DECAY, as "
               "'classifier.*:lr=0.01'; the rate keeps its ratio to --lr under a schedule. Several may be given; a "
               "later one overrides an earlier one and --no-decay",
               L::repeated, Key{"param_groups[]"}, Meaning{"`--param-group`, in the order given"},
               Compared{groups_in_force}),
          flag("--ema", kTrainings, at(&Options::recipe, &RecipeOptions::ema),
               "Keep an exponential moving average of the weights with this decay (0.999), evaluate it and save it "
               "beside --save",
               fraction(false, false)),
          flag("--dropout", kTrainings, at(&Options::dropout), "Probability of dropout [the model's]",
               fraction(true, false), Meaning{"`--dropout`; null: the model's own"},
               Compared{[](const SettingContext& c) {
                 const float dropout = c.job.model_hash ? 0.0F : model_dropout(c.options.model);
                 return dropout > 0.0F ? fmt::format("{}", c.options.dropout.value_or(dropout)) : "";
               }}),
          flag("--seed", kTrainings, at(&Options::seed),
               "Seed of initial weights, order of samples, dropout and augmentation", whole_number(0)),
          flag("--shuffle,!--no-shuffle", kTrainings, at(&Options::shuffle), "Shuffle the samples in each epoch [on]",
               Meaning{"false with `--no-shuffle`"}),
          flag("--drop-last", kTrainings, at(&Options::drop_last), "Drop the last batch of an epoch if it is not full"),
          flag("--init-weights", kTrainings, at(&Options::init_weights),
               "FILE.safetensors or checkpoint to start from [drawn from the seed]", Meaning{"`--init-weights`"},
               Effect::start, Ranks::given),  // only rank 0 reads the file
          flag("--init-partial", kTrainings, at(&Options::init_partial),
               "Load the tensors of --init-weights whose names and shapes fit, and list the others: for another head",
               Effect::start),
          flag("--strip-prefix", kModels, at(&Options::strip_prefix),
               "Remove this prefix from names in the weights file: module. for files of DistributedDataParallel",
               Type{"PREFIX"}, Meaning{"`--strip-prefix`"}, Effect::start),
          flag("--freeze", kTrainings, at(&Options::freeze),
               "Parameters that are not trained, a list of patterns, as 'features.*': without gradients and optimizer "
               "states [none]",
               Type{"PATTERN"}, L::commas, Key{"freeze[]"}, Meaning{"patterns of `--freeze`"}),
          flag("--epochs", kRuns | kReproduce, at(&Options::epochs), "Passes over the training set [1]",
               HelpOf{kReproduce, "Passes over the training set [20]"}, whole_number(1, kMostSteps),
               Read{[](const SettingContext& c) {
                 return c.options.steps ? Json() : Json(c.options.epochs.value_or(1));
               }},
               Meaning{"null with `--steps`"}, EffectIf{of_length}),
          flag("--steps", kRuns | kCompare, at(&Options::steps), "Optimizer steps, instead of --epochs",
               HelpOf{kCompare, "Optimizer steps of each scheme in each round; the first is not measured [6]"},
               whole_number(1, kMostSteps), Meaning{"`--steps`; null with `--epochs`. `compare`: steps of a round"},
               EffectIf{of_length}),
          flag("--eval-every", kTrain, at(&Options::eval_every),
               "Also evaluate on the test set after every N steps [at the end of each epoch]",
               whole_number(1, kMostSteps), NoDefault{}, Effect::start),
          flag("--no-eval", kRuns, at(&Options::evaluate), "Do not evaluate on the test set", Key{"evaluate"},
               Effect::start),
          flag("--autotune", kTrain, at(&Options::autotune),
               "Before the first step, time the plans that cuDNN and cuBLASLt have for each convolution and product, "
               "and train with the fastest; with FILE.json: take the plans in the file if there is one, and write "
               "those in use to it. Checkpoints keep the plans for --resume",
               Type{"[FILE.json]"}, MayLackValue{},
               Read{[](const SettingContext& c) { return c.options.autotune.has_value(); }},
               Meaning{"whether `--autotune` is given"}, Effect::rounding),
          flag("--rounds", kCompare, at(&Options::rounds),
               "Rounds in which the schemes take turns; differences within the spread of the rounds are noise",
               whole_number(1, 1000), Effect::local),
      });
}

SettingTable precision_settings() {
  const auto unless_several = [](const auto& value) {
    return [value](const SettingContext& c) { return c.options.precisions.empty() ? Json(value(c)) : kAbsent; };
  };
  return in_group(
      "Precision",
      {
          flag("--precision", kModels & ~kReproduce, at(&Options::precision),
               "fp32, or fp16 or bf16 layers and activations with f32 master weights", one_of({"fp32", "fp16", "bf16"}),
               Read{unless_several([](const SettingContext& c) { return c.options.precision; })},
               Meaning{"`--precision`; absent with `--precisions`"}),
          flag("--loss-scale", kRuns | kCompare, at(&Options::loss_scale),
               "none, dynamic, or a fixed NUMBER [dynamic for fp16, else none]",
               Read{unless_several(
                   [](const SettingContext& c) { return loss_scale_name(precision_of(c).loss_scaling); })},
               Meaning{"`none`, `dynamic` or the fixed scale; absent with `--precisions`"}),
          flag("--loss-scale-growth-interval", kTrainings, at(&Options::loss_scale_growth_interval),
               "Steps without overflow before the scale doubles [2000]", whole_number(1, 1 << 30),
               Compared{[](const SettingContext& c) {
                 const LossScaling scaling = resolve_precision(c.options).loss_scaling;
                 return scaling.kind == LossScaling::Kind::dynamic ? Json(scaling.constants.growth_interval) : Json();
               }}),
          flag("--clip-norm", kTrainings, at(&Options::clip_norm),
               "Largest norm of the gradient over all parameters [not clipped]", number_above_0()),
          flag("--allow-non-finite", kModels, at(&Options::allow_non_finite),
               "Continue when a loss or gradient is not finite [stop, and keep the last finite weights]",
               HelpOf{kEval, "Accept weights that are NaN or infinite [refuse them]"}, InJson{kTrainings}),
          flag("--reduce-dtype", kTrainings, at(&Options::reduce_dtype),
               "Data type used to reduce gradients: f32, f16 or bf16", one_of({"f32", "f16", "bf16"}),
               Meaning{"data type used to reduce gradients"}),
          flag("--broadcast", kTrainings, at(&Options::broadcast),
               "Under --reduce gpu0, what device 0 sends to the others: half (16 bits) or masters (f32) [half]",
               one_of({"half", "masters"}), InJson{kRuns | kCompare}, Read{unless_several([](const SettingContext& c) {
                 const Precision precision = precision_of(c);
                 return precision.mixed() ? Json(precision.broadcasts_masters ? "masters" : "half") : Json();
               })},
               Meaning{"`half` or `masters`; null in fp32; absent with `--precisions`"}, Effect::rounding),
          flag("--precisions", kCompare | kReproduce, at(&Options::precisions),
               "Precisions to run each scheme in, with loss scales: fp32,fp16:none,fp16:dynamic [--precision]",
               HelpOf{kReproduce, "Precisions to run each mode in, with loss scales"}, Key{"precisions[]"},
               Read{[](const SettingContext& c) {
                 if (c.options.precisions.empty()) return kAbsent;
                 Json names = Json::array();
                 for (const auto& [name, precision] : resolve_compare_precisions(c.options)) names.push_back(name);
                 return names;
               }},
               Meaning{"`--precisions`; absent without it"}, Effect::local),
      });
}

SettingTable output_settings() {
  return in_group(
      "Output",
      {
          flag("--json", kModels | kBench | kLab | kInfo, at(&Options::json), "Print one JSON object on stdout",
               kNotInJson, Effect::local, Ranks::local),
          flag("--save", kTrain, at(&Options::save), "Write the weights to FILE.safetensors at the end",
               Meaning{"`--save`"}, Effect::local, Ranks::given),
          // Steps whose memory is recorded are not replayed as CUDA graphs, which all ranks do together.
          flag("--report", kTrainings | kLab, at(&Options::report),
               "Write a page with charts and findings to FILE.html",
               HelpOf{kReproduce, "Where the page with tables and charts is written [OUT/report.html]"},
               HelpOf{kLab, "Write a page with a chart for each bug to FILE.html"}, kNotInJson, Effect::local,
               Ranks::given),
          flag("--tensorboard", kTrain, at(&Options::tensorboard),
               "Write loss, learning rate, accuracy, confusion matrix, speed and memory to a new event file in the "
               "folder "
               "DIR",
               kNotInJson, Effect::local, Ranks::given),
          flag("--log", kTrain, at(&Options::log),
               "Write steps and epochs to FILE.jsonl (an object per line) or FILE.csv as they finish", kNotInJson,
               Effect::local, Ranks::local),
          flag("--confusion", kTrain | kEval, at(&Options::confusion),
               "Print the confusion matrix of the test set: a row for each class, a column for each prediction",
               kNotInJson, Effect::local),
          flag("--trace", kTrain, at(&Options::trace), "Write a Chrome trace to FILE.json (open it in Perfetto)",
               Meaning{"`--trace`"}, Effect::local, Ranks::given),
          flag("--memory-history", kTrain, at(&Options::memory_history),
               "Write what the devices held to FILE.pickle (open it at pytorch.org/memory_viz)", kNotInJson,
               Effect::local, Ranks::given),
          flag("--log-every", kModels & ~kPlan, at(&Options::log_every),
               "Print a line of progress on stderr after every N steps [one every 10 s, or a bar on a terminal]",
               whole_number(1, kMostSteps), NoDefault{}, kNotInJson, Effect::local, Ranks::local),
          flag("--record-steps", kTrain, at(&Options::record_steps),
               "Steps that --report, --trace and --memory-history show in detail [2-4; with --trace all]", kNotInJson,
               Effect::local),
          flag("--trace-level", kTrain, at(&Options::trace_level), "What is timed: off, phase or operation",
               one_of({"off", "phase", "operation"}), Effect::local, Ranks::local),
          flag("--frontier", kPlan, at(&Options::frontier),
               "Show what recomputation of parts of the model saves in bytes and costs in time, for --recompute",
               kNotInJson, Effect::local, Ranks::local),
          flag("--save-logits", kEval, at(&Options::save_logits),
               "Write the outputs of all samples, in order, to FILE.npy", Meaning{"`--save-logits`"}, Effect::local,
               Ranks::given),
          flag("--list", kLab, at(&Options::lab, &LabOptions::list),
               "List the bugs and their questions, and run nothing", kNotInJson, Effect::local, Ranks::local),
      });
}

SettingTable process_settings() {
  constexpr Commands kUsers = kTrain | kEval | kBench;
  return in_group(
      "Processes",
      {
          flag("--rank", kUsers, at(&Options::rank), "Rank of this process [set by torchrun, mpirun or srun]",
               whole_number(0, 1 << 20), kNotInJson, Effect::local, Ranks::local),
          flag("--world-size", kUsers, at(&Options::world_size), "Number of processes, with --rank",
               whole_number(1, 1 << 20), kNotInJson, Effect::local, Ranks::local),
          flag("--local-rank,--local_rank", kUsers, at(&Options::local_rank),
               "Rank of this process on its machine, and the number of its GPU", whole_number(0, 1 << 20), kNotInJson,
               Effect::local, Ranks::local),
          flag("--rendezvous", kUsers, at(&Options::rendezvous),
               "Address at which processes find each other: tcp://HOST:PORT or file:PATH [MPI, or the launcher's "
               "address]",
               kNotInJson, Effect::local, Ranks::local),
          flag("--run-id", kUsers, at(&Options::run_id),
               "Name of this run, which keeps apart runs that meet at one rendezvous [torchrun's --rdzv-id, or Slurm's "
               "job and step]",
               kNotInJson, Effect::local, Ranks::local),
          flag("--timeout", kUsers, at(&Options::timeout_seconds),
               "Seconds a process waits for the others in one collective; five times as long in the first step",
               number(0.1, 1e6), kNotInJson, Effect::local),
          flag("--verify-replicas", kTrain, at(&Options::verify_replicas),
               "Compare the parameters of all replicas every N steps, not only at the start", whole_number(1, 1 << 30),
               NoDefault{}, kNotInJson, Effect::local),
          flag("--processes", kPlan, at(&Options::processes),
               "Plan for the first of N processes with these devices each, as mpirun -np N would start them",
               whole_number(1, 1 << 16), kNotInJson, Effect::rounding,
               Compared{[](const SettingContext& c) { return c.processes; }}),
      });
}

/// A flag of some learning-rate schedules.
template <class T, class... Parts>
SettingRow of_schedule(const char* name, T ScheduleOptions::*field, const std::string& help, const Values& values,
                       std::vector<std::string> schedules, const Parts&... parts) {
  return flag(name, kTrain | kReproduce, at(&Options::schedule, field), help, values, InJson{kTrainings},
              SettingRow::Owner{"lr-schedule", std::move(schedules)}, parts...);
}

/// The value in force if a flag is left out.
struct Otherwise {
  Json value;
};
void add(SettingRow& row, const Otherwise& otherwise) { row.owner.otherwise = otherwise.value; }

SettingTable schedule_settings() {
  constexpr Commands kUsers = kTrain | kReproduce;
  const LrScheduleConfig d;
  using S = ScheduleOptions;
  return in_group(
      "Learning-rate schedule",
      {
          flag(
              "--lr-schedule", kUsers, at(&Options::schedule, &S::schedule),
              "How the learning rate changes, as in torch.optim.lr_scheduler: constant; step and multi-step by epochs; "
              "cosine and one-cycle over all steps of the run; plateau when the test metric stops improving",
              one_of(schedule_names()), InJson{kTrainings}),
          of_schedule("--lr-step-size", &S::step_size, "Epochs between decays, for step [30]",
                      whole_number(1, kMostSteps), {"step"}, Otherwise{d.step_size}),
          of_schedule("--lr-milestones", &S::milestones, "Epochs of the decays, for multi-step: 30,60,80",
                      whole_number(1, kMostSteps), {"multi-step"}, SettingRow::List::commas),
          of_schedule("--lr-gamma", &S::gamma, "Factor of each decay, for step and multi-step [0.1]", number_above_0(),
                      {"step", "multi-step"}, Otherwise{d.gamma}),
          of_schedule("--lr-min", &S::min_lr, "Lowest learning rate, for cosine and plateau [0]",
                      number_of_at_least_0(), {"cosine", "plateau"}, Otherwise{d.min_lr}),
          of_schedule("--lr-patience", &S::patience, "Epochs without improvement before a decay, for plateau [10]",
                      whole_number(0, kMostSteps), {"plateau"}, Otherwise{d.plateau.patience},
                      HelpOf{kReproduce, "Epochs without improvement before a decay, for plateau [3]"}),
          of_schedule("--lr-factor", &S::factor, "Factor of each decay, for plateau [0.1]", fraction(false, false),
                      {"plateau"}, Otherwise{d.plateau.factor}),
          of_schedule("--lr-threshold", &S::threshold,
                      "Relative change that counts as an improvement, for plateau [0.0001]", number_of_at_least_0(),
                      {"plateau"}, Otherwise{d.plateau.threshold}),
          of_schedule("--lr-cooldown", &S::cooldown,
                      "Epochs after a decay that do not count towards --lr-patience, for plateau [0]",
                      whole_number(0, kMostSteps), {"plateau"}, Otherwise{d.plateau.cooldown}),
          of_schedule(
              "--lr-metric", &S::metric,
              "What plateau watches after each epoch: loss or accuracy on the test set, or last-batch (training "
              "loss of the epoch's last batch)",
              one_of({"loss", "accuracy", "last-batch"}), {"plateau"}),
          flag("--warmup-steps", kUsers, at(&Options::schedule, &S::warmup_steps),
               "Optimizer steps of linear warm-up before any schedule", whole_number(0, kMostSteps),
               InJson{kTrainings}),
          flag("--warmup-factor", kUsers, at(&Options::schedule, &S::warmup_factor),
               "Share of the schedule's first learning rate at the first step of the warm-up [1/3]",
               fraction(false, true), SettingRow::Owner{"warmup-steps"}, InJson{kTrainings},
               Compared{[d](const SettingContext& c) {
                 const S& o = c.options.schedule;
                 return o.warmup_steps > 0 ? Json(o.warmup_factor.value_or(d.warmup_start_factor)) : Json();
               }}),
      });
}

SettingTable checkpoint_settings() {
  using C = CheckpointOptions;
  const auto at_c = [](auto member) { return at(&Options::checkpoints, member); };
  return in_group(
      "Checkpoints",
      {
          flag("--checkpoint-dir", kRuns, at_c(&C::directory),
               "Save checkpoints in the folder DIR: weights, optimizer, and all that a run needs to continue",
               InJson{kTrain}, Meaning{"`--checkpoint-dir`"}, Effect::local, Ranks::given),
          flag("--checkpoint-every", kTrain, at_c(&C::every),
               "When: epoch, N (optimizer steps), or Nm (minutes) [epoch]", Read{[](const SettingContext& c) {
                 const C& o = c.options.checkpoints;
                 return o.directory.empty() ? Json() : Json(o.every.value_or("epoch"));
               }},
               Meaning{"`--checkpoint-every`; null without `--checkpoint-dir`"}, Effect::local),
          flag("--keep-last", kTrain | kReproduce, at_c(&C::keep_last), "Keep the newest K checkpoints [all]",
               HelpOf{kReproduce, "Keep the newest K checkpoints of each run [2]"}, whole_number(1, kMostSteps),
               InJson{kReproduce}, Meaning{"`--keep-last`"}, Effect::local, Ranks::local),
          flag("--keep-best", kTrain, at_c(&C::keep_best),
               "Also save and keep the checkpoint of the epoch with the highest test accuracy, to which the link "
               "DIR/best "
               "points",
               kNotInJson, Effect::local),
          flag("--resume", kTrain, at_c(&C::resume),
               "Continue from the newest whole checkpoint in DIR, from one checkpoint's folder, or auto: from "
               "--checkpoint-dir if it has one, else from the start",
               kNotInJson, Effect::local, Ranks::given),
          flag("--resume-change", kTrain, at_c(&C::resume_change),
               "Settings that may differ from the checkpoint's though they change results: lr,batch-size",
               SettingRow::List::commas, kNotInJson, Effect::local),
      });
}

SettingTable reproduce_settings() {
  using R = ReproduceOptions;
  return in_group(
      "Reproduction",
      {
          flag("--out", kReproduce, at(&Options::reproduce, &R::out),
               "Folder of the runs: each has its checkpoints, TensorBoard files, log and result in a folder of its own",
               Required{kReproduce}, Meaning{"`--out`"}, Effect::local),
          flag("--seeds", kReproduce, at(&Options::reproduce, &R::seeds),
               "Repeat each run with this many seeds, from --seed on, and show the spread", whole_number(1, 1000),
               Effect::local),
          flag("--as-published", kReproduce, at(&Options::reproduce, &R::as_published),
               "Repeat the conditions of the published figures (1000 outputs, no normalization, no shuffling, plateau "
               "on "
               "the last batch's loss, one device) and put the figures beside the results",
               Effect::local),
      });
}

/// Of collectives, named as nccl-tests' flags, and of the lab and the lessons: nothing is recorded of them.
SettingTable other_settings() {
  using C = CollectiveOptions;
  const auto at_c = [](auto member) { return at(&Options::collectives, member); };
  const Values size = bytes(0, kMostCollectiveBytes);
  const SettingTable groups[] = {
      in_group(
          "Options",
          {
              flag("NAME", kBench, at_c(&C::names),
                   "scatter, gather, broadcast, reduce, all_reduce, reduce_scatter, all_gather, alltoall, sendrecv (a "
                   "ring), gpu0_star (reduce + broadcast) [all]",
                   one_of(collective_names()), SettingRow::List::repeated),
              flag("NAME", kLab, at(&Options::lab, &LabOptions::names), "Bugs to show in full [a table of all]",
                   SettingRow::List::repeated),
          }),
      in_group("Sizes",
               {
                   flag("-b,--minbytes", kBench, at_c(&C::first_bytes),
                        "Smallest size: 8, 64K, 32M [64K, or the value of -e]", size, Type{"SIZE"}),
                   flag("-e,--maxbytes", kBench, at_c(&C::last_bytes), "Largest size [16M, or the value of -b]", size,
                        Type{"SIZE"}),
                   flag("-f,--stepfactor", kBench, at_c(&C::step_factor), "Factor between successive sizes",
                        number(1.0001, 1e6)),
                   flag("-i,--stepbytes", kBench, at_c(&C::step_bytes),
                        "Bytes between successive sizes, instead of a factor", bytes(1, kMostCollectiveBytes),
                        Type{"SIZE"}, NoDefault{}),
               }),
      in_group("Operation",
               {
                   flag("-n,--iters", kBench, at_c(&C::iterations), "Timed operations", whole_number(1, 1 << 24)),
                   flag("-w,--warmup_iters", kBench, at_c(&C::warm_up), "Operations before the timed ones",
                        whole_number(0, 1 << 24)),
                   flag("-c,--check", kBench, at_c(&C::check), "1: check every element of the results, 0: do not",
                        one_of({"0", "1"})),
                   flag("-d,--datatype", kBench, at_c(&C::datatype), "float, half, bfloat16 or int32",
                        one_of({"float", "half", "bfloat16", "int32", "f32", "f16", "bf16", "i32"})),
                   flag("-o,--op", kBench, at_c(&C::reduction), "Reduction: sum, min, max or avg",
                        one_of({"sum", "min", "max", "avg"})),
                   flag("-r,--root", kBench, at_c(&C::root), "Rank of the root", whole_number(0, 1 << 20)),
                   flag("--counts", kBench, at_c(&C::counts),
                        "Relative part of each rank in scatter and gather: 8,19,19,18 [equal]",
                        whole_number(0, 1 << 30), SettingRow::List::commas, Type{"N,N"}),
               }),
      in_group("Lesson",
               {
                   flag("number", kLesson, at(&Options::lesson), "The lesson to run [list the lessons]", NoDefault{}),
                   flag("--answer", kLesson, at(&Options::answer),
                        "Print the exercise and its answer instead of running the lesson"),
               }),
  };
  SettingTable all;
  for (const SettingTable& group : groups) {
    for (SettingRow row : group) {
      add(row, kNotInJson);
      add(row, Effect::local);
      add(row, Ranks::local);
      all.push_back(std::move(row));
    }
  }
  return all;
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
