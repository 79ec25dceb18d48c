// SPDX-License-Identifier: Apache-2.0
#include "tools/program/flags/options.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include <fmt/ranges.h>
#include <sys/stat.h>

#include "nn/parameter_store.h"
#include "nn/segments.h"
#include "runtime/comm/communicator.h"
#include "runtime/device.h"
#include "runtime/error.h"
#include "runtime/text.h"
#include "tools/program/flags/setting.h"
#include "tools/program/text/log_file.h"
#include "tools/program/text/output_file.h"

namespace vitrine::tools {
namespace {

LossScaling parse_loss_scale(const std::string& text) {
  LossScaling scaling;
  if (text == "none") return scaling;
  scaling.kind = LossScaling::Kind::dynamic;
  if (text == "dynamic") return scaling;
  scaling.kind = LossScaling::Kind::fixed;
  scaling.scale = parse_number<double>(text).value_or(0.0);
  // Neither it nor its reciprocal may leave the range of f32.
  if (scaling.scale >= 0x1p-126 && scaling.scale <= 0x1p126) return scaling;
  throw ConfigError(
      fmt::format("--loss-scale {}: it must be none, dynamic or a number from 1e-37 to 1e37, such as 1024", text));
}

LossScaling resolve_loss_scaling(const Options& o) {
  return parse_loss_scale(o.loss_scale.value_or(o.precision == "fp16" ? "dynamic" : "none"));
}

int output_ordinal(const std::string& name, const std::vector<DeviceId>& devices) {
  const std::vector<DeviceId> wanted = parse_device_list(name, 0);
  const auto found = wanted.size() == 1 ? std::find(devices.begin(), devices.end(), wanted.front()) : devices.end();
  if (found == devices.end()) {
    throw ConfigError(fmt::format("--output-device {}: it is not one of the devices of this run; use one of {}", name,
                                  fmt::join(device_names(devices), ", ")));
  }
  return static_cast<int>(found - devices.begin());
}

void check_training(const Options& o) {
  if (o.confusion && !o.evaluate) {
    throw ConfigError(
        "--confusion counts predictions on the test set, but --no-eval leaves out its evaluation; leave one of them "
        "out");
  }
  if (o.epochs && o.steps) throw ConfigError("--epochs and --steps both say how long to train; give one of them");
  if (!o.choices.batch_size && o.accumulate > o.batch_size) {
    throw ConfigError(fmt::format(
        "--accumulate {}: a batch of {} samples has no more than {} micro-batches; lower it, or raise --batch-size",
        o.accumulate, o.batch_size, o.batch_size));
  }
  if (o.trace_level == "off" && (!o.trace.empty() || !o.report.empty())) {
    throw ConfigError(fmt::format("{} needs timings, but --trace-level is off; use phase or operation",
                                  o.trace.empty() ? "--report" : "--trace"));
  }
  if (!o.record_steps.empty()) {
    parse_step_range(o.record_steps);
    if (!o.records())
      throw ConfigError(
          "--record-steps: nothing is recorded; add --report, --trace or --memory-history, or leave it out");
  }
  if (o.update_in_backward && !o.hashes.empty())
    throw ConfigError(
        "--hashes needs the gradients of a step, which --update-in-backward frees; leave one of them out");
  parse_recompute(o.recompute);
  resolve_optimizer(o);
  check_recipe(o.recipe, o.host_preprocess());
  if (o.images_on_device() && o.host_preprocess()) {
    throw ConfigError(
        "--data-on-device on keeps stored images on the devices, but --preprocess host converts them before they get "
        "there; leave one of the two out");
  }
  const auto precisions = o.command == Options::Command::compare
                              ? resolve_compare_precisions(o)
                              : std::vector{std::pair(std::string(), resolve_precision(o))};
  if (o.winograd && std::all_of(precisions.begin(), precisions.end(), [](const auto& p) { return p.second.mixed(); }))
    throw ConfigError("--winograd is for convolutions of f32; leave it out, or use --precision fp32");
}

/// Two outputs must not name one file: the later would overwrite the earlier.
void check_files(const Options& o) {
  std::map<std::string, std::string_view> taken;
  std::map<std::pair<dev_t, ino_t>, std::string_view> inodes;  // of hard links
  for (const auto& [option, path] : {std::pair{"--save", o.save},
                                     {"--ema", o.recipe.ema && !o.save.empty() ? averages_path(o.save) : ""},
                                     {"--report", o.report},
                                     {"--trace", o.trace},
                                     {"--memory-history", o.memory_history},
                                     {"--log", o.log},
                                     {"--hashes", o.hashes},
                                     {"--prove", o.prove}}) {
    std::error_code error;
    // Pipes and /dev/stdout accept several outputs; a name that cannot be resolved is compared as given.
    if (path.empty() || (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)))
      continue;
    std::filesystem::path name = std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
    if (error) name = path;
    std::string_view earlier = taken.emplace(name.string(), option).first->second;
    struct stat status {};
    if (earlier == option && stat(path.c_str(), &status) == 0)
      earlier = inodes.emplace(std::pair{status.st_dev, status.st_ino}, option).first->second;
    if (earlier != option)
      throw ConfigError(
          fmt::format("{} and {} name one file, {}; the later would overwrite the earlier", earlier, option, path));
  }
}

void check_choices(const Options& o) {
  if (o.choices.mode) {
    if (o.choices.any())
      throw ConfigError("--mode auto: it chooses for a given batch and split; give the other settings values");
    if (o.gpu0_batch_size || o.staging || o.loss_at || o.reduce || o.shard || o.output_device) {
      throw ConfigError(
          "--mode auto: it chooses what --gpu0-bsz, --staging, --loss-at, --reduce, --shard and --output-device are "
          "for; leave these out");
    }
  }
  if (o.choices.batch_size && o.choices.accumulate) {
    throw ConfigError(
        "--batch-size max with --accumulate auto: in micro-batches of a few samples any batch fits; give one of them a "
        "number");
  }
  if ((o.choices.recompute || !o.recompute.empty()) && (o.choices.recompute_segments || o.recompute_segments != "1")) {
    throw ConfigError("--recompute and --recompute-segments: both say what is recomputed; give one of them");
  }
  if (o.choices.recompute && (o.choices.batch_size || o.choices.accumulate || o.choices.split)) {
    throw ConfigError(fmt::format(
        "--recompute auto with {}: it chooses for a given batch; give a value, or use --recompute-segments auto",
        o.choices.batch_size   ? "--batch-size max"
        : o.choices.accumulate ? "--accumulate auto"
                               : "--split auto"));
  }
  if (o.balance == "time" && !o.choices.split)
    throw ConfigError("--balance time: it says how --split auto shares the batch; add --split auto");
  if (o.balance == "time" && o.command == Options::Command::plan) {
    throw ConfigError(
        "--balance time: a plan measures no time; give --split the weights that vitrine train finds, or leave "
        "--balance out");
  }
}

/// Refuses, by the option's name, what needs one process that holds all devices.
void check_for_several_processes(const Options& o, const Scheme& scheme) {
  if (o.balance == "time") {
    throw ConfigError(
        "--balance time: it measures devices of one process, but several were started; find the weights in one process "
        "that has all devices, and give them with --split, or use one process");
  }
  const bool host = scheme.staging == Staging::host, parallel = scheme.loss_at == LossAt::parallel,
             allreduce = scheme.reduce == ReducerKind::allreduce;
  if (host && parallel && allreduce) return;
  const std::string option = o.mode_name() != "ddp" ? (o.gpu0_batch_size ? "--gpu0-bsz" : "--mode " + o.mode_name())
                             : !host                ? "--staging device0"
                             : !parallel            ? "--loss-at gathered"
                                                    : "--reduce device0";
  throw ConfigError(
      fmt::format("{}: it needs a single process, because device 0 holds the whole batch, its outputs or the only "
                  "update; but several were started; use --mode ddp, or one process with all devices in --devices",
                  option));
}

/// The devices of --devices, which is given.
std::vector<DeviceId> listed_devices(const Options& o, int cuda_device_count) {
  return with_prefix<ConfigError>("--devices: ", [&] { return parse_device_list(o.devices, cuda_device_count); });
}

/// Refuses too many CPU devices before any is created.
void check_cpu_devices(const Options& o) {
  if (o.devices.empty() || o.devices.find("cuda") != std::string::npos) return;
  const size_t count = listed_devices(o, 0).size();
  if (count <= kMostCpuDevices) return;
  throw ConfigError(fmt::format(
      "--devices {}: {} CPU devices, but a process has at most {}; use fewer, or start several processes with mpirun",
      o.devices, count, kMostCpuDevices));
}

}  // namespace

void check_combinations(const Options& o) {
  check_cpu_devices(o);
  if (o.eval_every > 0 && !o.evaluate) throw ConfigError("--eval-every contradicts --no-eval; leave one of them out");
  if (o.gpu0_batch_size && (o.split || o.choices.split))
    throw ConfigError("--gpu0-bsz and --split both give the split; leave one of them out");
  if (o.gpu0_batch_size && !o.choices.batch_size && *o.gpu0_batch_size > o.batch_size)
    throw ConfigError(fmt::format("--gpu0-bsz {}: it is more than --batch-size {}", *o.gpu0_batch_size, o.batch_size));
  if (o.split) parse_split(*o.split);
  if (o.command == Options::Command::train || o.command == Options::Command::plan) {
    check_choices(o);
    check_files(o);
    if (!o.log.empty()) LogFile::check_path(o.log);
    check_checkpoint_options(o.checkpoints, o.init_weights, o.evaluate && !o.steps);
    if (o.gpu0_batch_size && o.mode && *o.mode != "balanced") {
      throw ConfigError(
          fmt::format("--gpu0-bsz {0} means --mode balanced --split gpu0={0}, but --mode is {1}; leave --mode out, or "
                      "use --split gpu0={0} to give that share under {1}",
                      *o.gpu0_batch_size, *o.mode));
    }
  }
  if (o.command == Options::Command::compare && o.steps == 1)
    throw ConfigError("--steps 1: the first step is not timed; compare needs 2 or more");
  if ((kTrainings & only(o.command)) != 0) check_training(o);
}

std::vector<std::string> device_names(const std::vector<DeviceId>& devices) {
  std::vector<std::string> names;
  for (const DeviceId& device : devices) names.push_back(device.str());
  return names;
}

std::vector<DeviceId> resolve_devices(const Options& options, int cuda_device_count) {
  if (!options.devices.empty()) return listed_devices(options, cuda_device_count);
  if (cuda_device_count == 0) return {DeviceId{Backend::cpu, 0}};
  // A launcher may let each process see its own GPUs only. Whether two use the same one, their PCI addresses tell.
  return {DeviceId{Backend::cuda, options.local_rank.value_or(0) % cuda_device_count}};
}

void check_autotune(const Options& o, const std::vector<DeviceId>& devices) {
  if (!o.autotune || devices.front().backend == Backend::cuda) return;
  throw ConfigError("--autotune has nothing to time on CPU devices; leave it out, or use cuda devices");
}

Scheme resolve_scheme(const Options& o, const std::vector<DeviceId>& devices, std::optional<int> world_size) {
  Scheme scheme = scheme_preset(o.mode_name());
  if (o.gpu0_batch_size) scheme.split.gpu0 = *o.gpu0_batch_size;
  if (o.split) scheme.split = parse_split(*o.split);
  if (o.choices.split) scheme.split = Split{};  // where the search starts
  if (o.staging) scheme.staging = *o.staging == "host" ? Staging::host : Staging::device0;
  if (o.loss_at) scheme.loss_at = *o.loss_at == "gathered" ? LossAt::gathered : LossAt::parallel;
  if (o.reduce) scheme.reduce = *o.reduce == "device0" ? ReducerKind::gpu0 : ReducerKind::allreduce;
  if (o.shard) {
    const auto& names = sharding_names();
    scheme.shard = static_cast<Sharding>(std::find(names.begin(), names.end(), *o.shard) - names.begin());
  }
  if (o.output_device) {
    if (scheme.loss_at != LossAt::gathered) {
      throw ConfigError(
          fmt::format("--output-device {}: outputs are gathered nowhere, because the loss is taken on each device; add "
                      "--loss-at gathered, or leave it out",
                      *o.output_device));
    }
    scheme.output_device = output_ordinal(*o.output_device, devices);
  }
  if (world_size && *world_size > static_cast<int>(devices.size())) check_for_several_processes(o, scheme);
  if (o.exact) scheme.split.leaves = o.leaves;
  const int64_t batch_size = o.choices.batch_size ? std::max(o.batch_size, scheme.split.gpu0) : o.batch_size;
  validate_split(scheme.split, batch_size, world_size.value_or(static_cast<int>(devices.size())));
  return scheme;
}

std::vector<std::string> names_in(const char* option, const std::string& text) {
  const std::vector<std::string> names = split_text(text, ',');
  for (auto name = names.begin(); name != names.end(); ++name) {
    if (std::find(names.begin(), name, *name) != name)
      throw ConfigError(fmt::format("{} {}: {} appears twice; name each once", option, text, *name));
  }
  return names;
}

std::vector<std::pair<std::string, Scheme>> resolve_compare_schemes(const Options& o,
                                                                    const std::vector<DeviceId>& devices,
                                                                    std::vector<std::string>& notes) {
  const int device_count = static_cast<int>(devices.size());
  const Split given = parse_split(o.split.value_or("equal"));
  std::vector<std::pair<std::string, Scheme>> schemes;
  const std::vector<std::string> names = names_in("--modes", o.modes);
  if (given.kind == Split::Kind::gpu0 && std::ranges::count(names, "balanced") == 0)
    throw ConfigError(
        fmt::format("--split {}: only balanced takes the share of device 0 alone; add it to --modes, or "
                    "give weights for all devices",
                    given.str()));
  for (const std::string& name : names) {
    Scheme scheme = scheme_preset(name);
    const bool takes_share = scheme.split.kind == Split::Kind::gpu0;
    if (takes_share) {
      if (o.gpu0_batch_size) {
        scheme.split.gpu0 = *o.gpu0_batch_size;
      } else if (given.kind == Split::Kind::gpu0) {
        scheme.split = given;
      } else {
        const int64_t samples = device_count == 1 ? o.batch_size : o.batch_size / device_count / 2;
        scheme.split.gpu0 = samples;
        if (device_count == 1) {
          notes.push_back(fmt::format("{}: there is one device, which gets all samples", name));
        } else {
          notes.push_back(
              fmt::format("{}: device 0 gets {} of {} samples, half of an equal share; choose with --gpu0-bsz N", name,
                          samples, o.batch_size));
        }
      }
    } else if (given.kind != Split::Kind::gpu0) {
      scheme.split = given;
    }
    if (o.exact) scheme.split.leaves = o.leaves;
    validate_split(scheme.split, o.batch_size, device_count);
    schemes.emplace_back(name, scheme);
  }
  return schemes;
}

std::vector<std::pair<std::string, Precision>> resolve_compare_precisions(const Options& o) {
  if (o.precisions.empty()) return {{"", resolve_precision(o)}};
  if (o.precision != "fp32" || o.loss_scale) {
    throw ConfigError(
        "--precisions names each precision with its loss scale (fp16:1024); leave out --precision and --loss-scale");
  }
  std::vector<std::pair<std::string, Precision>> precisions;
  bool any_dynamic = false;
  for (const std::string& item : names_in("--precisions", o.precisions)) {
    const size_t colon = std::min(item.find(':'), item.size());
    Options one = o;
    one.precision = item.substr(0, colon);
    if (colon < item.size()) one.loss_scale = item.substr(colon + 1);
    if (one.precision != "fp32" && one.precision != "fp16" && one.precision != "bf16") {
      throw ConfigError(fmt::format(
          "--precisions {}: '{}' is not fp32, fp16 or bf16, with an optional loss scale after a colon (fp16:none)",
          o.precisions, item));
    }
    const bool dynamic = resolve_loss_scaling(one).kind == LossScaling::Kind::dynamic;
    any_dynamic = any_dynamic || dynamic;
    if (!dynamic) one.loss_scale_growth_interval.reset();
    precisions.emplace_back(item, resolve_precision(one));
  }
  if (o.loss_scale_growth_interval && !any_dynamic) {
    throw ConfigError(fmt::format(
        "--loss-scale-growth-interval: no loss scale of --precisions {} changes; add fp16:dynamic, or leave it out",
        o.precisions));
  }
  return precisions;
}

int resolve_recompute_segments(const Options& o, const Model& model) {
  return o.recompute_segments == "sqrt" ? square_root_segments(*model.net, model.input_shape(1))
                                        : parse_number<int>(o.recompute_segments).value();
}

std::vector<std::string> parse_recompute(const std::string& text) {
  if (text.empty()) return {};
  std::vector<std::string> names = split_text(text, ',');
  if (std::find(names.begin(), names.end(), "") == names.end()) return names;
  throw ConfigError(
      fmt::format("--recompute {}: a name is empty; give parts as PART,FIRST-LAST, without spaces", text));
}

static std::pair<double, double> parse_betas(const std::string& text) {
  const size_t comma = text.find(',');
  constexpr double kNone = -1.0;
  const double first = parse_number<double>(text.substr(0, comma)).value_or(kNone);
  const double second =
      comma == std::string::npos ? kNone : parse_number<double>(text.substr(comma + 1)).value_or(kNone);
  const auto fits = [](double beta) { return beta >= 0.0 && beta < 1.0; };
  if (fits(first) && fits(second)) return {first, second};
  throw ConfigError(
      fmt::format("--adam-betas {}: expected two numbers from 0 to below 1, as 0.9,0.999", printable(text)));
}

OptimizerConfig resolve_optimizer(const Options& o) {
  OptimizerConfig config = make_optimizer_config(o.optimizer, o.lr, o.momentum, o.nesterov, o.weight_decay);
  const bool is_sgd = config.kind == OptimizerConfig::Kind::sgd;
  if (is_sgd && (!o.adam_betas.empty() || o.adam_eps)) {
    throw ConfigError(fmt::format("{}: sgd has none; use --optimizer adam or adamw, or leave it out",
                                  o.adam_eps ? "--adam-eps" : "--adam-betas"));
  }
  AdamConfig constants = is_sgd ? AdamConfig() : config.adam_kernel();
  if (!o.adam_betas.empty()) std::tie(constants.beta1, constants.beta2) = parse_betas(o.adam_betas);
  if (o.adam_eps) constants.eps = *o.adam_eps;
  config.adam.beta1 = config.adamw.beta1 = constants.beta1;
  config.adam.beta2 = config.adamw.beta2 = constants.beta2;
  config.adam.eps = config.adamw.eps = constants.eps;
  return config;
}

Precision resolve_precision(const Options& o) {
  Precision precision;
  precision.compute = o.precision == "fp16" ? DType::f16 : o.precision == "bf16" ? DType::bf16 : DType::f32;
  precision.loss_scaling = resolve_loss_scaling(o);
  if (o.loss_scale_growth_interval) {
    if (precision.loss_scaling.kind != LossScaling::Kind::dynamic) {
      throw ConfigError(
          "--loss-scale-growth-interval: the loss scale does not change; add --loss-scale dynamic, or leave it out");
    }
    precision.loss_scaling.constants.growth_interval = *o.loss_scale_growth_interval;
  }
  precision.clip_norm = o.clip_norm.value_or(0.0);
  precision.reduce_dtype = o.reduce_dtype == "f16" ? DType::f16 : o.reduce_dtype == "bf16" ? DType::bf16 : DType::f32;
  return precision;
}

TraceLevel resolve_trace_level(const Options& o) {
  if (o.trace_level == "off") return TraceLevel::off;
  return o.trace_level == "operation" ? TraceLevel::operation : TraceLevel::phase;
}

StepRange parse_step_range(const std::string& text) {
  const std::vector<std::string> ends = split_text(text, '-');
  const std::optional<int64_t> first = parse_number<int64_t>(ends.front()), last = parse_number<int64_t>(ends.back());
  if (ends.size() > 2 || !first || !last || *first < 1 || *last < *first) {
    throw ConfigError(
        fmt::format("--record-steps {}: it must be a step or a range of steps, counted from 1, such as 2-4", text));
  }
  return {*first - 1, *last - 1};
}

const char* staging_name(Staging staging) { return staging == Staging::host ? "host" : "device0"; }
const char* loss_at_name(LossAt loss_at) { return loss_at == LossAt::gathered ? "gathered" : "parallel"; }
const char* precision_name(DType compute) {
  return compute == DType::f16 ? "fp16" : compute == DType::bf16 ? "bf16" : "fp32";
}

std::string loss_scale_name(const LossScaling& scaling) {
  if (scaling.kind == LossScaling::Kind::none) return "none";
  return scaling.kind == LossScaling::Kind::dynamic ? "dynamic" : fmt::format("{}", scaling.scale);
}

const char* reduce_name(ReducerKind reduce) { return reduce == ReducerKind::gpu0 ? "device0" : "allreduce"; }

std::string describe_axes(const Scheme& scheme) {
  return fmt::format("staging {}, loss {}, reduce {}{}", staging_name(scheme.staging), loss_at_name(scheme.loss_at),
                     reduce_name(scheme.reduce),
                     scheme.shard == Sharding::none ? "" : fmt::format(", shard {}", sharding_name(scheme.shard)));
}

}  // namespace vitrine::tools
