// SPDX-License-Identifier: Apache-2.0
// All settings of the program, in the order of the help and of the documentation.
#include <set>
#include <span>
#include <type_traits>

#include <fmt/ranges.h>

#include "nn/buffer_layout.h"
#include "nn/model.h"
#include "runtime/device.h"
#include "runtime/leaf_tree.h"
#include "tools/program/flags/setting.h"

namespace vitrine::tools {

namespace {

constexpr int64_t kMostSamples = int64_t{1} << 40, kMostSteps = int64_t{1} << 40;

const Json kAbsent(Json::value_t::discarded);

template <class T>
Field at(T Options::*member) {
  return Member<T>([member](Options& o) -> T& { return o.*member; });
}
template <class Group, class T>
Field at(Group Options::*group, T Group::*member) {
  return Member<T>([group, member](Options& o) -> T& { return o.*group.*member; });
}

/// A part of a row beside flag, commands, place in Options and help: the value of a member.
template <auto Of>
struct Part {
  std::decay_t<decltype(SettingRow{}.*Of)> value;
};
using Type = Part<&SettingRow::type>;
using Required = Part<&SettingRow::required>;
using Clear = Part<&SettingRow::clear>;
using Key = Part<&SettingRow::key>;
using InJson = Part<&SettingRow::json>;
using Meaning = Part<&SettingRow::meaning>;
using Read = Part<&SettingRow::read>;
using Compared = Part<&SettingRow::compared>;
using EffectIf = Part<&SettingRow::effect_if>;
struct NoDefault {};
struct MayLackValue {};
struct HelpOf {
  Commands commands;
  const char* help;
};
const InJson kNotInJson{0};

template <auto Of>
void add(SettingRow& row, const Part<Of>& part) {
  row.*Of = part.value;
}
void add(SettingRow& row, const Values& values) { row.values = values; }
void add(SettingRow& row, NoDefault) { row.shows_default = false; }
void add(SettingRow& row, MayLackValue) { row.may_lack_value = true; }
void add(SettingRow& row, const HelpOf& of) { row.help_of.emplace_back(of.commands, of.help); }
void add(SettingRow& row, SettingRow::List list) { row.list = list; }
void add(SettingRow& row, const SettingRow::Choice& choice) { row.choice = choice; }
void add(SettingRow& row, const SettingRow::Owner& owner) { row.owner = owner; }
void add(SettingRow& row, Effect effect) { row.effect = effect; }
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
Precision precision_of(const SettingContext& c) { return resolve_precision(c.options); }
bool is_sgd(const OptimizerConfig& optimizer) { return optimizer.kind == OptimizerConfig::Kind::sgd; }

/// Layers with running statistics take them over a micro-batch or, on request, over the samples of a device.
bool has_norms(const SettingContext& c) { return BufferLayout(*c.job.model.net).any_saved(); }
/// What decides how a leaf is computed: rounding, of which exact mode allows none.
Effect of_algorithms(const SettingContext& c) { return c.options.exact ? Effect::result : Effect::rounding; }
/// Exact mode computes the same bits, however its leaves are distributed.
Effect unless_exact(const SettingContext& c) { return c.options.exact ? Effect::none : Effect::rounding; }
Effect of_devices(const SettingContext& c) {
  return has_norms(c) && c.options.batch_norm == "local" ? Effect::result : unless_exact(c);
}
/// A longer run makes the same steps at first, unless the schedule spans all of them.
Effect of_length(const SettingContext& c) {
  const std::string& schedule = c.options.schedule.schedule;
  return schedule == "cosine" || schedule == "one-cycle" ? Effect::rate : Effect::none;
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
          flag("--model", kModels, at(&Options::model), "Model, or a FILE.json with its layers (docs/model_files.md)",
               one_of_or_file(model_names(), "FILE.json"),
               Read{[](const SettingContext& c) { return c.job.model.name; }}, Compared{[](const SettingContext& c) {
                 return fmt::format("{}, {} classes", identify_model(c.job), c.job.model.classes);
               }}),

          // The path may differ between machines.
          flag("--data", kModels, at(&Options::data),
               "cifar10:DIR, cifar100:DIR, fashion-mnist:DIR, idx:DIR, image-folder:DIR (a folder per class in train "
               "and val, or with --val-split) or synthetic[:COUNT]",
               Type{"KIND:DIR"}, Compared{[](const SettingContext& c) { return identify_data(c.job); }}),
          flag("--image-size", kModels, at(&Options::image_size),
               "Height and width of the model's input [227 for alexnet, 224 for vgg16, resnet18 and resnet50, else the "
               "data's]",
               whole_number(1, 1 << 16), NoDefault{}, Read{[](const SettingContext& c) { return c.job.model.height; }},
               Meaning{"height and width of the images that the model receives"}),
          value("channels", kModels, Read{[](const SettingContext& c) { return c.job.model.channels; }},
                Meaning{"channels of the images"}, Effect::local),
          flag("--classes", kModels, at(&Options::classes), "Outputs of the model [the data's classes]",
               whole_number(1, 1 << 24), Read{[](const SettingContext& c) { return c.job.model.classes; }},
               Meaning{"outputs of the model: `--classes`, or the data's classes"}, Effect::local),
          flag("--limit-samples", kModels, at(&Options::limit_samples),
               "Use the first N training images and the same share of the test set [all]",
               whole_number(1, kMostSamples), Meaning{"`--limit-samples`; null: all"}, Effect::local),
          flag("--val-split", kModels, at(&Options::val_split),
               "Evaluate on this share of the training images, which are held out, the same in every run [the data's "
               "test set]",
               fraction(false, false), Meaning{"`--val-split`; null: the data's test set"}),
          flag("--preprocess", kModels, at(&Options::preprocess), "Where images are resized and normalized",
               one_of({"host", "device"}), EffectIf{of_algorithms}),
          flag("--normalize", kModels, at(&Options::normalize),
               "Mean/deviation per channel of pixels from 0 to 1: 0.5,0.5,0.5/0.2,0.2,0.2; or none [the data set's]",
               Type{"MEAN/DEVIATION"}, Meaning{"`--normalize`; null: the data set's"},
               Compared{normalization_in_force}),
          flag("--workers", kModels, at(&Options::workers), "Threads that load batches", whole_number(1, 256),
               Effect::local, Ranks::local),
          flag("--skip-damaged", kTrain | kEval, at(&Options::skip_damaged),
               "Skip images of an image-folder that cannot be decoded, and list them; else one ends the run",
               Effect::local),
          flag("--data-on-device", kRuns, at(&Options::data_on_device), "Keep the whole training set in device memory",
               one_of({"on", "off"}), Read{[](const SettingContext& c) { return c.options.images_on_device(); }},
               Meaning{"whether `--data-on-device` is on"}, Effect::local),
          flag("--weights", kEval, at(&Options::weights),
               "FILE.safetensors, a checkpoint, a folder of checkpoints (its newest), or a model's folder of Hugging "
               "Face",
               Type{"FILE"}, Required{kEval}, Meaning{"`--weights`"}, Effect::local, Ranks::given),
      });
}

SettingTable device_settings() {
  using L = SettingRow::List;
  constexpr Commands kUsers = kModels | kBench;
  return in_group(
      "Devices",
      {
          flag("--devices", kUsers, at(&Options::devices),
               "Devices of each process: cpu:0-3 | cuda:0-1 | cuda:all | cuda:0,cuda:0 (two logical devices of one "
               "GPU) [the GPU of its local rank, else cpu:0]",
               Type{"LIST"}, Key{"devices[]"}, Read{[](const SettingContext& c) { return device_names(c.devices); }},
               Meaning{"devices of this process"}, EffectIf{of_devices}, Compared{[](const SettingContext& c) {
                 return fmt::format("{} {}", c.world_size.value_or(static_cast<int>(c.devices.size())),
                                    c.devices.front().backend == Backend::cuda ? "cuda" : "cpu");
               }},
               Ranks::local),
          flag("--device-memory", kUsers, at(&Options::device_memory),
               "Capacity of each device: 512MiB, or a list [the available memory, divided]", bytes(4096), Type{"SIZE"},
               L::commas, Effect::local, Ranks::local),
          flag("--workspace", kUsers, at(&Options::workspace),
               "Scratch memory of each device's libraries: 64MiB [planned: what the convolutions need]", bytes(0),
               Type{"SIZE"}, Meaning{"`--workspace` in bytes; null: sized by the plan"}, EffectIf{of_algorithms},
               Compared{[](const SettingContext& c) {
                 const bool planned = c.workspace_bytes && !c.options.exact;  // there its size changes no bits
                 return value_or_null(planned ? c.workspace_bytes : c.options.workspace);
               }}),
          flag("--threads-per-device", kUsers, at(&Options::threads_per_device),
               "Threads of each CPU device: 2, or a list [the cores, divided]", whole_number(1, kMostThreadsPerDevice),
               Type{"N"}, L::commas, EffectIf{unless_exact}, Compared{[](const SettingContext& c) {
                 return c.threads ? Json(*c.threads) : Json(c.options.threads_per_device);
               }},
               Ranks::local),
          flag("--tf32", kUsers, at(&Options::tf32),
               "Use TF32 in matrix products and convolutions on GPUs: faster, 10 bits of mantissa"),
          // Checkpoints of versions without the flag continue.
          flag("--winograd", kModels, at(&Options::winograd),
               "Let f32 convolutions on CPU devices run by Winograd's algorithm: faster, six times the rounding error",
               EffectIf{of_algorithms},
               Compared{[](const SettingContext& c) { return c.options.winograd ? "on" : ""; }}),
          flag("--nccl-defaults", kUsers, at(&Options::nccl_defaults),
               "Let NCCL choose its algorithm and protocol: often faster, but last bits may differ from run to run",
               Effect::rounding),
          flag("--check-order", kUsers, at(&Options::check_order), "Report unordered operations on the same memory",
               kNotInJson, Effect::local, Ranks::local),
      });
}

/// Names of schemes; "fsdp" becomes "zero3".
Values scheme_values() {
  Values values = one_of(scheme_names());
  values.accepts = [](std::string& text) {
    if (text == "fsdp") text = "zero3";
    return false;  // the names decide
  };
  return values;
}

SettingTable scheme_settings() {
  using L = SettingRow::List;
  return in_group(
      "Scheme",
      {
          flag(
              "--mode", kRuns, at(&Options::mode),
              "Data-parallel scheme: a preset of --split, --staging, --loss-at, --reduce and --shard; fsdp means zero3 "
              "[ddp]",
              scheme_values(), SettingRow::Choice{"auto", &Choices::mode, "; auto: the fastest that fits"},
              Read{[](const SettingContext& c) { return c.options.mode_name(); }}, Meaning{"the scheme"},
              EffectIf{unless_exact}, Compared{[](const SettingContext& c) { return describe_axes(scheme_of(c)); }}),
          flag("--split", kRuns | kCompare, at(&Options::split),
               "Shares of the devices: equal | 2,3,3 (weights) | gpu0=N (samples per step on device 0)", Type{"SPLIT"},
               SettingRow::Choice{"auto", &Choices::split, " | auto (by --balance)"}, InJson{kRuns},
               Read{[](const SettingContext& c) { return scheme_of(c).split.str(); }},
               Meaning{"`equal`, weights (`2,3,3`) or `gpu0=N`"}, EffectIf{of_devices}),
          flag("--balance", kRuns, at(&Options::balance),
               "Criterion of --split auto: memory (planned) or time (measured first)", one_of({"memory", "time"}),
               kNotInJson, Effect::local),
          flag("--gpu0-bsz", kRuns | kCompare, at(&Options::gpu0_batch_size),
               "Short for --mode balanced --split gpu0=N", whole_number(0), kNotInJson, Effect::local),
          flag("--staging", kRuns, at(&Options::staging),
               "Where a batch goes first: device0 (whole, then scattered) or host (slices straight to their devices) "
               "[the mode's]",
               one_of({"device0", "host"}),
               Read{[](const SettingContext& c) { return staging_name(scheme_of(c).staging); }},
               Meaning{"`device0` or `host`"}, Effect::local),
          flag("--loss-at", kRuns, at(&Options::loss_at),
               "Where the loss is computed: gathered (on the output device) or parallel (on each) [the mode's]",
               one_of({"gathered", "parallel"}),
               Read{[](const SettingContext& c) { return loss_at_name(scheme_of(c).loss_at); }},
               Meaning{"`gathered` or `parallel`"}, Effect::local),
          flag("--reduce", kRuns, at(&Options::reduce),
               "How gradients are reduced: gpu0 (update there, then broadcast) or allreduce [the mode's]",
               one_of({"gpu0", "allreduce"}),
               Read{[](const SettingContext& c) { return reduce_name(scheme_of(c).reduce); }},
               Meaning{"`gpu0` or `allreduce`"}, Effect::local),
          flag("--shard", kRuns, at(&Options::shard),
               "What each device holds a part of: none, optimizer (states and averages), gradients (and these) or "
               "parameters (all three) [the mode's]",
               one_of(sharding_names()),
               Read{[](const SettingContext& c) { return sharding_name(scheme_of(c).shard); }},
               Meaning{"`none`, `optimizer`, `gradients` or `parameters`"}, Effect::local),
          flag("--update-in-backward", kRuns, at(&Options::update_in_backward),
               "Update the parameters of a bucket during backward, and free its gradients", Effect::none),
          flag("--bucket-mb", kTrainings, at(&Options::bucket_mb),
               "MiB of gradients in each all-reduce bucket, and of parameters that zero3 gathers at once",
               number(1e-6, 1e6), InJson{kRuns}, EffectIf{unless_exact}),
          flag("--first-bucket-mb", kTrainings, at(&Options::first_bucket_mb), "MiB of gradients in the first bucket",
               number(1e-6, 1e6), InJson{kRuns}, EffectIf{unless_exact}),
          flag("--output-device", kRuns, at(&Options::output_device),
               "Device on which outputs are gathered [the first]", Type{"DEVICE"}, Read{[](const SettingContext& c) {
                 const Scheme scheme = scheme_of(c);
                 return scheme.loss_at == LossAt::gathered
                            ? Json(c.devices[static_cast<size_t>(scheme.output_device)].str())
                            : Json();
               }},
               Meaning{"device of the gathered loss"}, Effect::local),
          flag("--modes", kCompare, at(&Options::modes), "Schemes to run, a list", scheme_values(), L::commas,
               kNotInJson, Effect::local),
          in_group("Batch", {flag("--batch-size", kModels, at(&Options::batch_size),
                                  "Samples of one optimizer step, over all devices", whole_number(1, kMostSamples),
                                  SettingRow::Choice{"max", &Choices::batch_size, "; max: the most that fit"},
                                  Meaning{"samples in one optimizer step, over all devices"})})
              .front(),
      });
}

SettingTable step_settings() {
  return in_group(
      "Training",
      {
          flag("--accumulate,--acc-grad", kTrainings, at(&Options::accumulate),
               "Micro-batches in each step (gradient accumulation)", whole_number(1, 1 << 20),
               SettingRow::Choice{"auto", &Choices::accumulate, "; auto: the fewest that fit"},
               Meaning{"micro-batches in a step"}, EffectIf{[](const SettingContext& c) {
                 return has_norms(c) && !c.options.exact ? Effect::result : unless_exact(c);
               }}),
          flag("--no-cuda-graph", kTrainings, at(&Options::cuda_graph), "Do not replay steps as CUDA graphs",
               Effect::none),
          flag("--recompute-segments", kTrainings, at(&Options::recompute_segments),
               "Activation checkpointing in N segments; sqrt: the square root of the number of the model's parts",
               number_or_words(whole_number(1, std::numeric_limits<int>::max()), {"sqrt"}), Type{"N|sqrt"},
               SettingRow::Choice{"auto", &Choices::recompute_segments, "; auto: the fewest that fit"},
               Read{[](const SettingContext& c) { return resolve_recompute_segments(c.options, c.job.model); }},
               Meaning{"segments of activation checkpointing; 1: none"}, Effect::none),
          flag("--recompute", kRuns, at(&Options::recompute), "Activation checkpointing of these parts of the model",
               Type{"PART,FIRST-LAST"},
               SettingRow::Choice{"auto", &Choices::recompute,
                                  "; auto: the fastest choice that fits (see plan --frontier)"},
               Key{"recompute[]"}, InJson{kTrainings},
               Read{[](const SettingContext& c) { return parse_recompute(c.options.recompute); }},
               Meaning{"parts named by `--recompute`, or chosen by `--recompute auto`; empty without it"},
               Effect::none),
          flag("--loss-gradient", kTrainings, at(&Options::loss_gradient),
               "Where the gradient of the outputs is written: over them (in-place) or apart",
               one_of({"in-place", "apart"}), Effect::local),
          flag("--batch-norm", kTrainings, at(&Options::batch_norm),
               "Batch norm's statistics: exact (of the whole micro-batch) or local (of each device, as PyTorch's dp "
               "and ddp)",
               one_of({"exact", "local"}),
               Compared{[](const SettingContext& c) { return has_norms(c) ? Json(c.options.batch_norm) : Json(); }}),
          flag("--exact", kRuns | kCompare, at(&Options::exact),
               "Compute the same bits on any devices: by leaves, fixed parts of the batch (docs/exactness.md)"),
          flag("--leaves", kRuns | kCompare, at(&Options::leaves), "Leaves of a batch, with --exact",
               whole_number(1, TreeOrder::kMostNodes), SettingRow::Owner{"exact", {"on"}}),
          flag("--leaf-threads", kRuns | kCompare, at(&Options::leaf_threads),
               "Threads that compute a leaf on CPU devices, with --exact", whole_number(1, kMostThreadsPerDevice),
               SettingRow::Owner{"exact", {"on"}}),
          flag("--batch-norm-leaves", kRuns | kCompare, at(&Options::batch_norm_leaves),
               "Consecutive leaves over which batch norm takes its statistics, with --exact [all]",
               whole_number(1, TreeOrder::kMostNodes), Meaning{"`--batch-norm-leaves`; null: all leaves"},
               SettingRow::Owner{"exact", {"on"}}),
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
          flag("--optimizer", kTrainings, at(&Options::optimizer), "Optimizer", one_of({"sgd", "adam", "adamw"}),
               Meaning{"`sgd`, `adam` or `adamw`"}),
          flag("--lr", kTrainings, at(&Options::lr), "Learning rate [0.001]", number_of_at_least_0(), Effect::rate,
               Read{[](const SettingContext& c) { return resolve_optimizer(c.options).learning_rate(); }},
               Meaning{"learning rate, before the schedule"}),
          flag("--momentum", kTrainings, at(&Options::momentum), "Momentum of sgd [0]", number_of_at_least_0(),
               Read{of_sgd(&SgdConfig::momentum)}, Meaning{"only with sgd"}),
          flag("--nesterov", kTrainings, at(&Options::nesterov), "Nesterov's momentum of sgd",
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
               "Random changes of training images, a list: flip, crop:N (after padding with N zeros), cutout:N (a "
               "square of N x N) [none]",
               Type{"LIST"}, Clear{"none"}, Compared{augmentation_in_force}),
          flag("--label-smoothing", kTrainings, at(&Options::recipe, &RecipeOptions::label_smoothing),
               "Label smoothing: share of the target that is spread over all classes", number(0, 1)),

          // The kinds once each, in one order, which does not matter.
          flag("--no-decay", kTrainings, at(&Options::recipe, &RecipeOptions::no_decay),
               "Parameters without weight decay, a list: norms, biases [none]", one_of({"norms", "biases", "none"}),
               L::commas, Clear{"none"}, Compared{[](const SettingContext& c) {
                 return std::set<std::string>(c.options.recipe.no_decay.begin(), c.options.recipe.no_decay.end());
               }}),
          flag("--param-group", kTrainings, at(&Options::recipe, &RecipeOptions::groups),
               "Learning rate and weight decay of parameters by name: 'classifier.*:lr=0.01,weight-decay=0'; may be "
               "repeated, the last match counts",
               Type{"PATTERN:LIST"}, L::repeated, Key{"param_groups[]"}, Meaning{"`--param-group`, in the order given"},
               Compared{groups_in_force}),
          flag("--ema", kTrainings, at(&Options::recipe, &RecipeOptions::ema),
               "Keep an exponential moving average of the weights with this decay (0.999); it is evaluated and saved",
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
               "FILE.safetensors, checkpoint or folder of Hugging Face to start from; what it lacks, or another head, "
               "stays random, and is listed [random weights]",
               Type{"FILE"}, Meaning{"`--init-weights`"}, Effect::local, Ranks::given),  // only rank 0 reads the file
          flag("--freeze", kTrainings, at(&Options::freeze),
               "Parameters that are not trained, a list of patterns, as 'features.*': without gradients and optimizer "
               "states [none]",
               Type{"PATTERN"}, L::commas, Key{"freeze[]"}, Meaning{"patterns of `--freeze`"}),
          flag("--epochs", kRuns, at(&Options::epochs), "Passes over the training set [1]", whole_number(1, kMostSteps),
               Read{[](const SettingContext& c) {
                 return c.options.steps ? Json() : Json(c.options.epochs.value_or(1));
               }},
               Meaning{"null with `--steps`"}, EffectIf{of_length}),
          flag("--steps", kRuns | kCompare, at(&Options::steps), "Optimizer steps, instead of --epochs",
               HelpOf{kCompare, "Optimizer steps of each round; the first is not measured [6]"},
               whole_number(1, kMostSteps), Meaning{"`--steps`; null with `--epochs`. `compare`: steps of a round"},
               EffectIf{of_length}),
          flag("--eval-every", kTrain, at(&Options::eval_every),
               "Also evaluate on the test set after every N steps [at the end of each epoch]",
               whole_number(1, kMostSteps), NoDefault{}, Effect::local),
          flag("--no-eval", kRuns, at(&Options::evaluate), "Do not evaluate on the test set", Key{"evaluate"},
               Effect::local),
          flag("--autotune", kTrain, at(&Options::autotune),
               "Time the plans of cuDNN and cuBLASLt first and train with the fastest; FILE.json keeps them for other "
               "runs",
               Type{"[FILE.json]"}, MayLackValue{},
               Read{[](const SettingContext& c) { return c.options.autotune.has_value(); }},
               Meaning{"whether `--autotune` is given"}, Effect::rounding),
          flag("--rounds", kCompare, at(&Options::rounds), "Rounds in which the schemes take turns",
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
          flag("--precision", kModels, at(&Options::precision),
               "Precision of layers and activations; master weights are f32", one_of({"fp32", "fp16", "bf16"}),
               Read{unless_several([](const SettingContext& c) { return c.options.precision; })},
               Meaning{"`--precision`; absent with `--precisions`"}),
          flag("--loss-scale", kRuns | kCompare, at(&Options::loss_scale),
               "Loss scale: none, dynamic or a NUMBER [dynamic for fp16, else none]", Type{"none|dynamic|X"},
               Read{unless_several(
                   [](const SettingContext& c) { return loss_scale_name(precision_of(c).loss_scaling); })},
               Meaning{"`none`, `dynamic` or the fixed scale; absent with `--precisions`"}),
          flag("--loss-scale-growth-interval", kTrainings, at(&Options::loss_scale_growth_interval),
               "Finite steps before the loss scale doubles [2000]", whole_number(1, 1 << 30),
               Compared{[](const SettingContext& c) {
                 const LossScaling scaling = resolve_precision(c.options).loss_scaling;
                 return scaling.kind == LossScaling::Kind::dynamic ? Json(scaling.constants.growth_interval) : Json();
               }}),
          flag("--clip-norm", kTrainings, at(&Options::clip_norm), "Clip the norm of the gradient [not clipped]",
               number_above_0()),
          flag("--allow-non-finite", kModels, at(&Options::allow_non_finite),
               "Continue when a loss or gradient is not finite [stop]",
               HelpOf{kEval, "Accept weights that are NaN or infinite [refuse them]"}, InJson{kTrainings}),
          flag("--reduce-dtype", kTrainings, at(&Options::reduce_dtype), "Data type used to reduce gradients",
               one_of({"f32", "f16", "bf16"}), Meaning{"data type used to reduce gradients"}),
          flag("--precisions", kCompare, at(&Options::precisions),
               "Precisions to run, with loss scales: fp32,fp16:none,fp16:dynamic [--precision]", Type{"LIST"},
               Key{"precisions[]"}, Read{[](const SettingContext& c) {
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
          flag("--json", kModels | kBench | kLab | kInfo | kVerify, at(&Options::json),
               "Print one JSON object on stdout", kNotInJson, Effect::local, Ranks::local),
          flag("--save", kTrain, at(&Options::save), "Write the weights at the end", Type{"FILE.safetensors"},
               Meaning{"`--save`"}, Effect::local, Ranks::given),
          // Steps whose memory is recorded are not replayed as CUDA graphs, which all ranks do together.
          flag("--report", kTrainings | kLab, at(&Options::report),
               "Write a page with charts and findings to FILE.html", Type{"FILE.html"},
               HelpOf{kLab, "Write a page with a chart for each bug to FILE.html"}, kNotInJson, Effect::local,
               Ranks::given),
          flag("--tensorboard", kTrain, at(&Options::tensorboard), "Write TensorBoard events to the folder DIR",
               Type{"DIR"}, kNotInJson, Effect::local, Ranks::given),
          flag("--log", kTrain, at(&Options::log), "Write a row for each step and epoch to FILE.jsonl or FILE.csv",
               Type{"FILE.jsonl"}, kNotInJson, Effect::local, Ranks::local),
          flag("--hashes", kTrain, at(&Options::hashes),
               "Write a hash of the training state after each step to FILE.jsonl, for vitrine verify",
               Type{"FILE.jsonl"}, kNotInJson, Effect::local, Ranks::given),
          flag("--confusion", kTrain | kEval, at(&Options::confusion), "Print the confusion matrix of the test set",
               kNotInJson, Effect::local),
          flag("--trace", kTrain, at(&Options::trace), "Write a trace for Perfetto to FILE.json", Type{"FILE.json"},
               Meaning{"`--trace`"}, Effect::local, Ranks::given),
          flag("--memory-history", kTrain, at(&Options::memory_history),
               "Write the memory history to FILE.json, as torch.cuda.memory._snapshot() has it", Type{"FILE.json"},
               kNotInJson, Effect::local, Ranks::given),
          flag("--log-every", kModels & ~kPlan, at(&Options::log_every),
               "Print progress every N steps [every 10 s, or a bar on a terminal]", whole_number(1, kMostSteps),
               NoDefault{}, kNotInJson, Effect::local, Ranks::local),
          flag("--record-steps", kTrain, at(&Options::record_steps),
               "Steps that --report, --trace and --memory-history show [2-4; with --trace all]", Type{"FIRST-LAST"},
               kNotInJson, Effect::local),
          flag("--trace-level", kTrain, at(&Options::trace_level), "What is timed",
               one_of({"off", "phase", "operation"}), Effect::local, Ranks::local),
          flag("--frontier", kPlan, at(&Options::frontier), "Show bytes against time for choices of --recompute",
               kNotInJson, Effect::local, Ranks::local),
          flag("--prove", kPlan, at(&Options::prove), "Write the schedule to FILE.jsonl, for tools/check_schedule",
               Type{"FILE.jsonl"}, kNotInJson, Effect::local, Ranks::local),
          flag("--save-logits", kEval, at(&Options::save_logits), "Write the outputs of all samples to FILE.npy",
               Type{"FILE.npy"}, Meaning{"`--save-logits`"}, Effect::local, Ranks::given),
          flag("--list", kLab, at(&Options::lab, &LabOptions::list), "List the bugs and their questions", kNotInJson,
               Effect::local, Ranks::local),
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
               "Rank of this process on its machine, which is also its GPU", whole_number(0, 1 << 20), kNotInJson,
               Effect::local, Ranks::local),
          flag("--rendezvous", kUsers, at(&Options::rendezvous),
               "Where processes meet: tcp://HOST:PORT or file:PATH [MPI, or the launcher's address]", Type{"ADDRESS"},
               kNotInJson, Effect::local, Ranks::local),
          flag("--run-id", kUsers, at(&Options::run_id),
               "Name of this run, which keeps apart runs that meet at one rendezvous [torchrun's --rdzv-id, or Slurm's "
               "job and step]",
               Type{"NAME"}, kNotInJson, Effect::local, Ranks::local),
          flag("--timeout", kUsers, at(&Options::timeout_seconds),
               "Seconds to wait for the others in a collective; up to five times as long for one that is slow, not "
               "stuck",
               number(0.1, 1e6), kNotInJson, Effect::local),
          flag("--verify-replicas", kTrain, at(&Options::verify_replicas),
               "Compare the parameters of all replicas every N steps [only at the start]", whole_number(1, 1 << 30),
               NoDefault{}, kNotInJson, Effect::local),
          flag("--processes", kPlan, at(&Options::processes), "Plan for N processes with these devices each",
               whole_number(1, 1 << 16), kNotInJson, Effect::rounding,
               Compared{[](const SettingContext& c) { return c.processes; }}),
      });
}

/// A flag of some learning-rate schedules.
template <class T, class... Parts>
SettingRow of_schedule(const char* name, T ScheduleOptions::*field, const std::string& help, const Values& values,
                       std::vector<std::string> schedules, const Parts&... parts) {
  return flag(name, kTrain, at(&Options::schedule, field), help, values, InJson{kTrainings},
              SettingRow::Owner{"lr-schedule", std::move(schedules)}, Effect::rate, parts...);
}

/// The value in force if a flag is left out.
struct Otherwise {
  Json value;
};
void add(SettingRow& row, const Otherwise& otherwise) { row.owner.otherwise = otherwise.value; }

SettingTable schedule_settings() {
  constexpr Commands kUsers = kTrain;
  const LrScheduleConfig d;
  using S = ScheduleOptions;
  return in_group(
      "Learning-rate schedule",
      {
          flag("--lr-schedule", kUsers, at(&Options::schedule, &S::schedule),
               "Learning-rate schedule, as in torch.optim.lr_scheduler", one_of(schedule_names()), InJson{kTrainings},
               Effect::rate),
          of_schedule("--lr-step-size", &S::step_size, "step: epochs between decays [30]", whole_number(1, kMostSteps),
                      {"step"}, Otherwise{d.step_size}),
          of_schedule("--lr-milestones", &S::milestones, "multi-step: epochs of the decays, 30,60,80",
                      whole_number(1, kMostSteps), {"multi-step"}, SettingRow::List::commas),
          of_schedule("--lr-gamma", &S::gamma, "step, multi-step: factor of each decay [0.1]", number_above_0(),
                      {"step", "multi-step"}, Otherwise{d.gamma}),
          of_schedule("--lr-min", &S::min_lr, "cosine, plateau: lowest learning rate [0]", number_of_at_least_0(),
                      {"cosine", "plateau"}, Otherwise{d.min_lr}),
          of_schedule("--lr-patience", &S::patience, "plateau: epochs without improvement before a decay [10]",
                      whole_number(0, kMostSteps), {"plateau"}, Otherwise{d.plateau.patience}),
          of_schedule("--lr-factor", &S::factor, "plateau: factor of each decay [0.1]", fraction(false, false),
                      {"plateau"}, Otherwise{d.plateau.factor}),
          of_schedule("--lr-threshold", &S::threshold,
                      "plateau: relative change that counts as an improvement [0.0001]", number_of_at_least_0(),
                      {"plateau"}, Otherwise{d.plateau.threshold}),
          of_schedule("--lr-cooldown", &S::cooldown, "plateau: epochs after a decay that do not count [0]",
                      whole_number(0, kMostSteps), {"plateau"}, Otherwise{d.plateau.cooldown}),
          // Checkpoints of versions without the flag continue.
          of_schedule("--lr-eps", &S::eps, "plateau: changes of the rate up to this are not made [1e-08]",
                      number_of_at_least_0(), {"plateau"}, Compared{[d](const SettingContext& c) {
                        const double eps = c.options.schedule.eps.value_or(d.plateau.eps);
                        return eps == d.plateau.eps ? Json() : Json(eps);
                      }}),
          of_schedule(
              "--lr-metric", &S::metric,
              "plateau: what must improve: test loss, test accuracy, or training loss of the epoch's last batch",
              one_of({"loss", "accuracy", "last-batch"}), {"plateau"}),
          flag("--warmup-steps", kUsers, at(&Options::schedule, &S::warmup_steps), "Optimizer steps of linear warm-up",
               whole_number(0, kMostSteps), InJson{kTrainings}, Effect::rate),
          flag("--warmup-factor", kUsers, at(&Options::schedule, &S::warmup_factor),
               "Share of the learning rate at the first step of the warm-up [1/3]", fraction(false, true),
               SettingRow::Owner{"warmup-steps"}, InJson{kTrainings}, Effect::rate,
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
          flag("--checkpoint-dir", kRuns, at_c(&C::directory), "Save checkpoints in the folder DIR", Type{"DIR"},
               InJson{kTrain}, Meaning{"`--checkpoint-dir`"}, Effect::local, Ranks::given),
          flag("--checkpoint-every", kTrain, at_c(&C::every), "When to save: epoch or N (steps) [epoch]",
               Type{"epoch|N"}, Read{[](const SettingContext& c) {
                 const C& o = c.options.checkpoints;
                 return o.directory.empty() ? Json() : Json(o.every.value_or("epoch"));
               }},
               Meaning{"`--checkpoint-every`; null without `--checkpoint-dir`"}, Effect::local),
          flag("--keep-last", kTrain, at_c(&C::keep_last), "Keep the newest N checkpoints [all]",
               whole_number(1, kMostSteps), kNotInJson, Effect::local, Ranks::local),
          flag("--keep-best", kTrain, at_c(&C::keep_best),
               "Keep the checkpoint of the best epoch by test accuracy, as DIR/best", kNotInJson, Effect::local),
          flag("--resume", kTrain, at_c(&C::resume),
               "Continue from the newest checkpoint in DIR, or auto: from --checkpoint-dir if it has one, else from "
               "the start",
               Type{"DIR|auto"}, kNotInJson, Effect::local, Ranks::given),
      });
}

/// Of collectives, named as nccl-tests' flags, and of the lab and the lessons: nothing is recorded of them.
SettingTable other_settings() {
  using C = CollectiveOptions;
  const auto at_c = [](auto member) { return at(&Options::collectives, member); };
  const Values size = bytes(0, kMostCollectiveBytes);
  const SettingTable groups[] = {
      in_group("Options",
               {
                   flag("NAME", kBench, at_c(&C::names),
                        "Collectives to time (sendrecv is a ring, gpu0_star a reduce and a broadcast, tree_all_reduce "
                        "that of --exact) [all]",
                        one_of(collective_names()), SettingRow::List::repeated),
                   flag("NAME", kLab, at(&Options::lab, &LabOptions::names), "Bugs to show in full [a table of all]",
                        SettingRow::List::repeated),
                   flag("--out", kPage, at(&Options::page), "File of the page", Type{"FILE.html"}, Required{kPage}),
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
                   flag("-d,--datatype", kBench, at_c(&C::datatype), "Data type",
                        one_of({"float", "half", "bfloat16", "int32", "f32", "f16", "bf16", "i32"})),
                   flag("-o,--op", kBench, at_c(&C::reduction), "Reduction", one_of({"sum", "min", "max", "avg"})),
                   flag("-r,--root", kBench, at_c(&C::root), "Rank of the root", whole_number(0, 1 << 20)),
                   flag("--counts", kBench, at_c(&C::counts),
                        "Shares of the ranks in scatter and gather: 8,19,19,18 [equal]", whole_number(0, 1 << 30),
                        SettingRow::List::commas, Type{"N,N"}),
               }),
      in_group("Runs",
               {
                   flag("--a", kVerify, at(&Options::verify_a),
                        "Flags of vitrine train, a command that runs it, or FILE.jsonl of train --hashes", Type{"RUN"},
                        Required{kVerify}),
                   flag("--b", kVerify, at(&Options::verify_b), "The run to compare it with", Type{"RUN"},
                        Required{kVerify}),
               }),
      in_group("Lesson",
               {
                   flag("number", kLesson, at(&Options::lesson), "The lesson to run [list the lessons]", NoDefault{}),
                   flag("--answer", kLesson, at(&Options::answer), "Print the exercise and its answer"),
                   flag("--run", kLesson, at(&Options::run_answer), "With --answer: also run the answer's command"),
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
                              schedule_settings(), checkpoint_settings(), other_settings()}) {
      std::move(part.begin(), part.end(), std::back_inserter(all));
    }
    return all;
  }();
  return table;
}

}  // namespace vitrine::tools
