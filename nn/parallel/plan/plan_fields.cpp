// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/libraries.h"
#include "nn/parallel/plan/plan.h"
#include "nn/parallel/reduce/shard.h"
#include "nn/parallel/settings.h"
#include "runtime/error.h"
#include "runtime/process_group/process_group.h"

namespace vitrine {
namespace {

std::string describe(const OptimizerConfig& o) {
  if (o.kind == OptimizerConfig::Kind::sgd) {
    return fmt::format("{} lr {} momentum {} nesterov {} weight decay {}", o.name(), o.learning_rate(), o.sgd.momentum,
                       o.sgd.nesterov, o.sgd.weight_decay);
  }
  const AdamConfig adam = o.adam_kernel();
  return fmt::format("{} lr {} betas {} {} eps {} weight decay {}", o.name(), adam.lr, adam.beta1, adam.beta2, adam.eps,
                     adam.weight_decay);
}

std::string describe(const ParameterGroup& g) {
  const char* kind = g.kind == ParameterGroup::Kind::norms    ? "norms"
                     : g.kind == ParameterGroup::Kind::biases ? "biases"
                                                              : g.pattern.c_str();
  return fmt::format("{} lr factor {} weight decay {}", kind, g.lr_factor ? fmt::format("{}", *g.lr_factor) : "-",
                     g.weight_decay ? fmt::format("{}", *g.weight_decay) : "-");
}

std::string describe(const LossScaling& s) {
  switch (s.kind) {
    case LossScaling::Kind::none:
      break;
    case LossScaling::Kind::fixed:
      return fmt::format("fixed {}", s.scale);
    case LossScaling::Kind::dynamic:
      return fmt::format("dynamic from {} to at least {}, growth {} every {} steps, backoff {}", s.scale, s.floor,
                         s.constants.growth_factor, s.constants.growth_interval, s.constants.backoff_factor);
  }
  return "none";
}

std::string describe(const Precision& p) {
  return fmt::format("{}, clipping norm {}, gradients in {}", dtype_name(p.compute), p.clip_norm,
                     dtype_name(p.reduce_dtype));
}

}  // namespace

AgreementFields exact_fields(const DeviceGroup& devices, const EngineConfig& config) {
  if (!config.exact()) return {{"exact mode", "off"}};
  const bool on_gpus = devices.target().backend == Backend::cuda;
  return {{"exact mode", "on"},
          {"leaves", std::to_string(config.scheme.split.leaves)},
          {"threads of a leaf", on_gpus ? "none" : std::to_string(config.leaf_threads)},
          {"leaves that share batch statistics", std::to_string(config.leaf_group())},
          {"workspace", config.workspace_bytes ? std::to_string(*config.workspace_bytes) : "planned"},
          {"Winograd's algorithm", devices.options().winograd ? "allowed" : "not allowed"},
          {"arithmetic of CPU devices", on_gpus ? "none" : cpu_arithmetic()},
          {"TF32", devices.options().tf32 ? "allowed" : "not allowed"}};
}

AgreementFields plan_fields(const Model& model, const FlatLayout& layout, const EngineConfig& config,
                            const Workload& workload) {
  AgreementFields fields;
  fields.emplace_back("model", model.name);
  fields.emplace_back("input of one sample", model.input_shape(1).str());
  fields.emplace_back("targets per sample", std::to_string(model.targets_per_sample));
  // One field for each layer and parameter, so that the first that differs is named.
  for (const Sequential::Part& part : model.net->parts())
    fields.emplace_back("layer " + part.name, part.layer->describe());
  for (int i = 0; i < layout.size(); ++i) {
    const ParamSpec& spec = layout.specs()[static_cast<size_t>(i)];
    fields.emplace_back("parameter " + spec.name, fmt::format("of shape {} at {}{}", spec.shape.str(), layout.offset(i),
                                                              spec.trained ? "" : ", frozen"));
  }
  std::vector<std::string> buckets;
  for (const Bucket& bucket : make_buckets(layout.trained(), config.first_bucket_bytes, config.bucket_bytes)) {
    buckets.push_back(fmt::format("{}-{}", bucket.begin, bucket.end));
  }
  fields.emplace_back("buckets", fmt::format("{}", fmt::join(buckets, " ")));
  fields.emplace_back("reducer", config.reducer ? "custom" : "built in");
  fields.emplace_back("training step", config.step ? "custom" : "built in");
  fields.emplace_back("split", config.scheme.split.str());
  fields.emplace_back("batch size", std::to_string(config.batch_size));
  fields.emplace_back("accumulation", std::to_string(config.accumulate));
  fields.emplace_back("recompute segments", std::to_string(config.recompute_segments));
  fields.emplace_back("recomputed parts",
                      config.recompute.empty() ? "none" : fmt::format("{}", fmt::join(config.recompute, ",")));
  fields.emplace_back("batch statistics", config.batch_statistics == BatchStatistics::exact ? "exact" : "local");
  fields.emplace_back("loss gradient", config.loss_gradient_in_place ? "in place" : "apart");
  fields.emplace_back("optimizer", describe(config.optimizer));
  for (const ParameterGroup& group : config.parameter_groups) fields.emplace_back("parameter group", describe(group));
  fields.emplace_back("decay of averages", fmt::format("{}", config.ema_decay));
  fields.emplace_back("precision", describe(config.precision));
  fields.emplace_back("purpose", config.forward_only ? "evaluation" : "training");
  fields.emplace_back("non-finite values", config.allow_non_finite ? "allowed" : "not allowed");
  fields.emplace_back("loss scaling", describe(config.precision.loss_scaling));
  fields.emplace_back("seed", std::to_string(config.seed));
  fields.emplace_back("label smoothing", fmt::format("{}", config.label_smoothing));
  fields.emplace_back("ignored index", std::to_string(config.ignore_index));
  fields.emplace_back("images",
                      fmt::format("{} {}x{}", dtype_name(config.image_dtype), config.image_height, config.image_width));
  fields.emplace_back("input packing", config.input_packing == InputPacking::automatic ? "automatic"
                                       : config.input_packing == InputPacking::on      ? "on"
                                                                                       : "off");
  fields.emplace_back("plans of convolutions and products",
                      config.autotune.enabled ? "timed" : "the libraries' choice");
  fields.emplace_back("images on the devices", std::to_string(config.resident_images.count));
  fields.emplace_back("normalization", fmt::format("mean {} std {}", fmt::join(config.normalization.mean, " "),
                                                   fmt::join(config.normalization.std, " ")));
  fields.emplace_back("augmentation", fmt::format("flip {} crop padding {} cutout {}", config.augmentation.flip,
                                                  config.augmentation.crop_padding, config.augmentation.cutout));
  fields.emplace_back("training batches", fmt::format("{}", fmt::join(workload.train_batches, " ")));
  fields.emplace_back("evaluation batches", fmt::format("{}", fmt::join(workload.evaluate_batches, " ")));
  return fields;
}

void agree_with_processes(const EngineSetup& setup) {
  const Scheme& scheme = setup.config.scheme;
  const auto refuse = [](const char* axis, const char* why) {
    return ConfigError({fmt::format("{}: with several processes {}; use ", axis, why),
                        propose(settings::kScheme, "ddp"), ", or one process with all devices"});
  };
  if (scheme.staging == Staging::device0)
    throw refuse("staging device0", "no device has the whole batch, each process loads its own part");
  if (scheme.loss_at == LossAt::gathered) throw refuse("loss gathered", "outputs are not gathered on one device");
  if (scheme.reduce == ReducerKind::gpu0) throw refuse("reduce gpu0", "every replica updates itself");
  AgreementFields fields = plan_fields(setup.model, setup.layout, setup.config, setup.workload);
  for (auto& field : exact_fields(setup.devices, setup.config)) fields.push_back(std::move(field));
  require_agreement(*setup.peers(), "what they train", fields);
}

}  // namespace vitrine
