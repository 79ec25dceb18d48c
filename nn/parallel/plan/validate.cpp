// SPDX-License-Identifier: Apache-2.0
// What a configuration must fulfil before it can be planned.
#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "nn/parallel/plan/plan.h"
#include "nn/parallel/settings.h"
#include "runtime/comm/communicator.h"
#include "runtime/error.h"
#include "runtime/gpu_features.h"
#include "runtime/gpu_info.h"
#include "runtime/leaf_tree.h"

namespace vitrine {
namespace {

void check_storage(const char* what, DType dtype) {
  if (dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16) return;
  throw DtypeError(fmt::format("engine: {} is {}, expected f32, f16 or bf16", what, dtype_name(dtype)));
}

void validate_precision(const Precision& precision, const DeviceGroup& devices) {
  check_storage("the precision", precision.compute);
  check_storage("the dtype of the reduction", precision.reduce_dtype);
  if (!(precision.clip_norm >= 0.0))
    throw ConfigError(fmt::format("engine: the clipping norm is {}, expected a number >= 0", precision.clip_norm));
  if (precision.compute != DType::bf16 && precision.reduce_dtype != DType::bf16) return;
  const std::vector<DeviceId>& ids = devices.options().devices;
  if (ids.front().backend != Backend::cuda) return;
  const GpuReport report = query_gpus(false);
  for (const DeviceId& id : ids) {
    for (const GpuInfo& gpu : report.gpus) {
      if (gpu.index != id.index || gpu.has_bf16()) continue;
      throw UnsupportedError(
          fmt::format("bf16: {} ({}, compute capability {}.{}) has no bf16; that needs 8.0 or later. Use fp16",
                      id.str(), gpu.name, gpu.compute_major, gpu.compute_minor));
    }
  }
}

void validate_resident_images(const EngineConfig& config) {
  const ResidentImages& resident = config.resident_images;
  if (resident.count < 0 || resident.count > INT32_MAX) {
    throw ConfigError(fmt::format("engine: resident_images has {} images, expected 0 to 2^31 - 1", resident.count));
  }
  if (resident.count == 0) return;
  if (!resident.read)
    throw ConfigError("engine: resident_images has images but no function that reads them; set ResidentImages::read");
  if (config.forward_only)
    throw ConfigError("engine: resident_images are for training, but forward_only is set; leave them out");
  if (config.image_dtype != DType::u8) {
    throw ConfigError(
        fmt::format("engine: resident_images are u8, but image_dtype is {}; set it to DType::u8, or leave them out",
                    dtype_name(config.image_dtype)));
  }
}

void validate_sharding(const EngineConfig& config) {
  const char* const why = sharding_obstacle(config);
  if (config.scheme.shard == Sharding::none || why == nullptr) return;
  throw ConfigError({given(settings::kShard, sharding_name(config.scheme.shard)), fmt::format(": {}, or use ", why),
                     propose(settings::kShard, "none")});
}

void validate_update_in_backward(const EngineConfig& config, int world_size) {
  const char* const why = update_in_backward_obstacle(config, world_size);
  if (config.update_in_backward && why != nullptr)
    throw ConfigError({settings::kUpdateInBackward, fmt::format(": {}; leave one of them out", why)});
}

/// What exact mode cannot promise is refused.
void validate_exact(const Model& model, const DeviceGroup& devices, const EngineConfig& config) {
  const int64_t leaves = config.scheme.split.leaves, group = config.leaf_group();
  const auto refuse = [&](const Reason& why) { throw ConfigError(Reason("exact mode: ") + why); };
  constexpr int kMostLeaves = TreeOrder::kMostNodes;
  if (leaves > kMostLeaves)
    refuse({given(settings::kLeaves, std::to_string(leaves)), fmt::format(": expected at most {}", kMostLeaves)});
  if (config.accumulate > leaves) {
    refuse({given(settings::kAccumulate, std::to_string(config.accumulate)),
            fmt::format(": a micro-batch has whole leaves, of which there are {}; use at most as many micro-batches",
                        leaves)});
  }
  if (config.precision.reduce_dtype != DType::f32) {
    refuse(Reason(fmt::format("gradients are reduced in f32, but the dtype of the reduction is {}; use f32",
                              dtype_name(config.precision.reduce_dtype))));
  }
  if (config.reducer)
    refuse(Reason("it has its own reduction, but EngineConfig::reducer replaces it; leave one of them out"));
  if (config.autotune.enabled)
    refuse(Reason("timed plans differ from search to search, and so do their sums; leave out autotune"));
  for (int i = 0; i < devices.size(); ++i) {
    const int count = devices[i].thread_count();
    if (devices[i].id().backend != Backend::cpu || count == config.leaf_threads) continue;
    refuse({given(settings::kLeafThreads, std::to_string(config.leaf_threads)),
            fmt::format(": {} has {} threads; give each CPU device as many threads as a leaf has", devices[i].name(),
                        count)});
  }
  if (model.net->buffers().empty()) return;
  if (config.batch_statistics == BatchStatistics::local)
    refuse(Reason("batch statistics of each device depend on the devices; use those of the whole micro-batch"));
  if (leaves % config.accumulate != 0) {
    int64_t divisor = config.accumulate;
    while (leaves % divisor != 0) --divisor;
    refuse({given(settings::kAccumulate, std::to_string(config.accumulate)),
            fmt::format(": with batch norm all micro-batches have equally many leaves, of which there are {}; use ",
                        leaves),
            propose(settings::kAccumulate, divisor)});
  }
  if (const int64_t own = leaves / config.accumulate; own % group != 0) {
    refuse({given(settings::kBatchNormLeaves, std::to_string(group)),
            fmt::format(": a micro-batch of {} leaves must hold whole groups of leaves that share batch statistics; "
                        "use ",
                        own),
            propose(settings::kBatchNormLeaves, std::gcd(own, group))});
  }
  const bool recomputes = config.recompute_segments > 1 || !config.recompute.empty();
  if (recomputes && leaves / config.accumulate > group)
    refuse(Reason("recomputation needs one group of batch norm's leaves in each micro-batch; accumulate more"));
}

}  // namespace

const char* sharding_obstacle(const EngineConfig& config) {
  if (config.scheme.reduce != ReducerKind::allreduce)
    return "device 0 makes the only update and needs all of the optimizer's states; reduce by all-reduce";
  if (config.reducer) return "EngineConfig::reducer replaces the reduction to the owners; leave one of them out";
  if (config.precision.reduce_dtype != DType::f32) return "gradients are reduced to their owners in f32; use f32";
  return nullptr;
}

const char* update_in_backward_obstacle(const EngineConfig& config, int world_size) {
  if (config.exact()) return "exact mode keeps sums of whole gradients";
  if (config.accumulate > 1) return "gradients are accumulated over micro-batches";
  if (config.precision.clip_norm > 0.0) return "clipping needs the norm of the gradient before any update";
  if (config.precision.loss_scaling.active()) return "loss scaling skips steps whose gradient is not finite";
  if (config.precision.reduce_dtype != DType::f32) return "gradients are reduced in 16 bits, but buckets are f32";
  if (config.reducer) return "EngineConfig::reducer replaces the reduction that updates";
  if (config.scheme.reduce == ReducerKind::gpu0 && world_size > 1)
    return "device 0 makes the only update, after the reduction of all gradients";
  return nullptr;
}

void validate(const Model& model, const DeviceGroup& devices, const EngineConfig& config, const Workload& workload) {
  if (config.batch_size < 1)
    throw ConfigError(fmt::format("batch size: expected a positive number, got {}", config.batch_size));
  if (config.accumulate < 1)
    throw ConfigError(
        fmt::format("accumulate: expected a positive number of micro-batches, got {}", config.accumulate));
  if (config.accumulate > config.batch_size) {
    throw ConfigError(fmt::format("accumulate: expected at most {} micro-batches, one per sample of the batch, got {}",
                                  config.batch_size, config.accumulate));
  }
  validate_split(config.scheme.split, config.batch_size, devices.world_size());
  if (model.net == nullptr) throw ConfigError("engine: the model has no network");
  if (model.takes_images() && std::min({model.height, model.width, model.channels}) < 1) {
    throw ConfigError(
        fmt::format("engine: model {} has no input: images are {}x{} with {} channels, and sample_shape is not set; "
                    "set it to {{F}} "
                    "for vectors of F numbers, or set height, width and channels",
                    model.name, model.height, model.width, model.channels));
  }
  if (model.classes < 1) {
    throw ConfigError(fmt::format("engine: model {} has {} classes; set Model::classes to the logits of each target",
                                  model.name, model.classes));
  }
  if (config.image_dtype == DType::u8 && model.takes_images() && (config.image_height < 1 || config.image_width < 1)) {
    throw ConfigError(
        "engine: u8 images need image_height and image_width; set them to the size of the data set's images");
  }
  if (model.takes_images() && config.image_dtype != DType::u8 && config.image_dtype != DType::f32) {
    throw DtypeError(fmt::format("engine: image_dtype is {}, expected u8 or f32", dtype_name(config.image_dtype)));
  }
  for (const int64_t samples : workload.train_batches) {
    if (samples < 1 || samples > config.batch_size) {
      throw ConfigError(fmt::format("workload: expected training batches of 1 to {} samples, the batch size, got {}",
                                    config.batch_size, samples));
    }
  }
  if (config.forward_only && !workload.train_batches.empty()) {
    throw ConfigError(
        "engine: forward_only is set and the workload has training batches; leave train_batches empty, or construct an "
        "engine that trains");
  }
  if (!model.takes_images() && config.image_dtype != model.sample_dtype()) {
    throw ConfigError(fmt::format(
        "engine: model {} takes samples of shape {}, which are not images, but image_dtype is {}; set it to DType::{}",
        model.name, model.sample_shape.str(), dtype_name(config.image_dtype), dtype_name(model.sample_dtype())));
  }
  const Shape input = model.input_shape(1);
  if (const Shape output = model.net->output_shape(input); output.numel() != model.logits_shape(1).numel()) {
    throw ShapeError(fmt::format(
        "engine: model {} returns {} for one sample, expected as many elements as {}: {} targets of {} classes",
        model.name, output.str(), model.logits_shape(1).str(), model.targets_per_sample, model.classes));
  }
  if (config.reducer && config.scheme.reduce != ReducerKind::allreduce) {
    throw ConfigError(
        "engine: EngineConfig::reducer replaces the reduction of the scheme, which is gpu0; set scheme.reduce to "
        "ReducerKind::allreduce");
  }
  if (const double lr = config.optimizer.learning_rate(); !(lr >= 0.0 && lr <= std::numeric_limits<float>::max()))
    throw ConfigError(fmt::format("engine: the optimizer's learning rate is {}, expected a number from 0", lr));
  if (!(config.ema_decay >= 0.0 && config.ema_decay < 1.0)) {
    throw ConfigError(fmt::format("engine: ema_decay is {}, expected a number from 0 to 1, below 1", config.ema_decay));
  }
  if (config.augmentation.any() && config.image_dtype != DType::u8) {
    throw ConfigError(
        fmt::format("engine: augmentation changes u8 images on the device, but image_dtype is {}; set it to DType::u8, "
                    "or augmentation to {{}}",
                    dtype_name(config.image_dtype)));
  }
  if (!(config.label_smoothing >= 0.0F && config.label_smoothing <= 1.0F)) {
    throw ConfigError(
        fmt::format("engine: label_smoothing is {}, expected a number from 0 to 1", config.label_smoothing));
  }
  validate_resident_images(config);
  if (config.autotune.enabled && devices.target().backend != Backend::cuda) {
    throw ConfigError(
        "engine: EngineConfig::autotune times plans on GPUs, so it has nothing to time on CPU devices; leave it out");
  }
  if (config.autotune.enabled && !(config.autotune.most_seconds > 0.0)) {
    throw ConfigError(
        fmt::format("engine: Autotune::most_seconds is {}, expected a number above 0", config.autotune.most_seconds));
  }
  validate_precision(config.precision, devices);
  validate_sharding(config);
  validate_update_in_backward(config, devices.world_size());
  if (config.exact()) validate_exact(model, devices, config);
}

}  // namespace vitrine
