// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "nn/model.h"
#include "nn/parallel/engine_config.h"
#include "nn/parallel/scheme.h"
#include "runtime/device.h"
#include "runtime/host_batch.h"

/// Small problems on which the experiments of the lab plant their bugs, and the training that they compare.
namespace vitrine::tools::lab {

/// `count` CPU devices of one thread each, with the order checker.
DeviceGroupOptions cpu_devices(int count);

/// A batch of at most that many samples, plain gradient descent, inputs used as they are.
EngineConfig small_config(int64_t batch_size);

/// A model with one target for each sample.
Model make_small_model(const char* name, const Shape& sample, int64_t classes, std::vector<Sequential::Part> parts);
/// Two linear layers with a ReLU between them, for samples of shape (..., features); one target for each row of
/// `features` values.
Model make_perceptron(const Shape& sample, int64_t hidden, int64_t classes);

struct Samples {
  std::vector<float> inputs;
  std::vector<int32_t> labels;  // one for each target
};

/// Standard normal inputs and uniform labels.
Samples draw_samples(const Model& model, int64_t count, uint64_t seed);

/// A batch of all samples, which it owns.
HostBatch batch_of(const Model& model, Samples samples);

/// Copies the labels of a micro-batch to a device and computes the loss of its gathered outputs there, part by part;
/// the sums are added to the totals of device 0.
///   weights   the factor of each target's loss in each part, whose samples are those of a device
///   gradient  may be the logits
void gathered_loss(Engine& engine, const HostBatch& batch, const MicroBatch& micro_batch,
                   const std::vector<float>& weights, const Tensor& logits, const Tensor& gradient);
/// Parameters of device 0 before and after training, and the mean gradient of the last step, without the loss scale.
struct Trained {
  std::vector<float> start, end, gradient;
};

/// Takes `steps` steps, all on the same batch of config.batch_size samples, on that many CPU devices.
Trained train(const Model& model, int devices, const EngineConfig& config, const HostBatch& batch, int steps = 1);

/// The end of a step: what default_step() does after the last micro-batch, without clipping.
void finish_step(Engine& engine);

/// ||x - reference|| / ||reference - origin||, in double; an empty origin is 0.
double relative_distance(std::span<const float> x, std::span<const float> reference,
                         std::span<const float> origin = {});

}  // namespace vitrine::tools::lab
