// SPDX-License-Identifier: Apache-2.0
// Bugs of averaging: the mean over a batch is not the mean of its parts' means, and one division is enough.
#include <array>
#include <functional>

#include <fmt/format.h>

#include "nn/parallel/engine.h"
#include "tools/program/learn/experiment.h"
#include "tools/program/learn/one_all_reduce.h"
#include "tools/program/learn/problem.h"

namespace vitrine::tools::lab {

namespace {

constexpr uint64_t kSeed = 1;

/// The factor of each target's loss on a device in a micro-batch.
using TargetWeight = std::function<double(size_t micro_batch, size_t device)>;

/// default_step() with the loss on device 0, with that factor.
TrainingStep step_with(const TargetWeight& weight) {
  return [weight](Engine& engine, const HostBatch& batch) {
    for (size_t k = 0; k < engine.micro_batches().size(); ++k) {
      const MicroBatch& micro_batch = engine.micro_batches()[k];
      engine.stage(batch, micro_batch);
      engine.forward();
      std::vector<float> weights;
      for (size_t device = 0; device < micro_batch.sizes.size(); ++device)
        weights.push_back(static_cast<float>(weight(k, device)));
      const Tensor logits = engine.outputs().gather(0);
      gathered_loss(engine, batch, micro_batch, weights, logits, logits);
      engine.backward_and_reduce(micro_batch.last);
    }
    finish_step(engine);
  };
}

}  // namespace

/// Two devices, which share 16 samples.
double measure_average_of_averages(size_t setting, bool planted) {
  constexpr std::array<std::array<int64_t, 2>, 3> kShards = {{{8, 8}, {12, 4}, {15, 1}}};
  constexpr int64_t kSamples = 16;
  const Model model = make_perceptron({8}, 16, 4);
  const HostBatch batch = batch_of(model, draw_samples(model, kSamples, kSeed));
  EngineConfig config = small_config(kSamples);
  const std::vector<float> expected = train(model, 1, config, batch).gradient;
  const auto& shard = kShards[setting];
  config.scheme.split = parse_split(fmt::format("{},{}", shard[0], shard[1]));
  config.step = step_with([&shard, planted](size_t, size_t device) {
    const double devices = 2, samples = kSamples;
    return planted ? 1 / (devices * static_cast<double>(shard[device])) : 1 / samples;
  });
  return relative_distance(train(model, 2, config, batch).gradient, expected);
}

/// Two micro-batches of 32 tokens on two devices; the second is padded.
double measure_micro_batch_means(size_t setting, bool planted) {
  constexpr std::array<int64_t, 3> kTokensOfSecond = {32, 16, 4};
  constexpr int64_t kSequences = 4, kTokens = 16;
  constexpr double kMicroBatches = 2, kNominal = kSequences * kTokens;
  const Model model = make_perceptron({kTokens, 8}, 16, 6);
  EngineConfig config = small_config(kSequences);
  Samples samples = draw_samples(model, kSequences, kSeed);
  // The second micro-batch consists of sequences 2 and 3.
  const int64_t length = kTokensOfSecond[setting] / 2;
  for (int64_t sequence = 2; sequence < kSequences; ++sequence) {
    for (int64_t token = length; token < kTokens; ++token)
      samples.labels[static_cast<size_t>(sequence * kTokens + token)] = config.ignore_index;
  }
  const std::array<double, 2> valid = {2 * kTokens, static_cast<double>(kTokensOfSecond[setting])};
  const HostBatch batch = batch_of(model, std::move(samples));
  const std::vector<float> expected = train(model, 1, config, batch).gradient;
  config.accumulate = 2;
  config.step = step_with([valid, planted](size_t micro_batch, size_t) {
    const double all = valid[0] + valid[1];
    const double weight = planted ? 1 / (kMicroBatches * valid[micro_batch]) : 1 / all;
    return weight * all / kNominal;  // the update multiplies by nominal / valid targets of the step
  });
  return relative_distance(train(model, 2, config, batch).gradient, expected);
}

/// 24 samples on two, three and four devices. Each device's loss is divided by the samples of the whole batch.
double measure_divided_twice(size_t setting, bool planted) {
  constexpr int64_t kSamples = 24;
  const Model model = make_perceptron({8}, 16, 4);
  const HostBatch batch = batch_of(model, draw_samples(model, kSamples, kSeed));
  EngineConfig config = small_config(kSamples);
  const std::vector<float> expected = train(model, 1, config, batch).gradient;
  const ReduceOp op = planted ? ReduceOp::average : ReduceOp::sum;
  config.reducer = [op](const ReducerContext& replica) { return std::make_unique<OneAllReduce>(replica, op); };
  return relative_distance(train(model, 2 + static_cast<int>(setting), config, batch).gradient, expected);
}

}  // namespace vitrine::tools::lab
