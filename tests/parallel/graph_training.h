// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/parallel/random_model.h"

/// Training on one GPU whose steps are issued, or replayed as CUDA graphs.
namespace vitrine::test {

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// The configuration in another precision, f16 with dynamic loss scaling, and with an optimizer: "sgd" (momentum and
/// weight decay), "adam", "adamw".
inline EngineConfig with(EngineConfig config, DType dtype, const std::string& optimizer) {
  config.optimizer = optimizer == "sgd" ? make_optimizer_config("sgd", 0.05, 0.9, false, 1e-3)
                                        : make_optimizer_config(optimizer, 0.05, {}, false, {});
  compute_in(config, dtype);
  return config;
}

/// The steps of a training.
struct Course {
  int steps = 10;
  int short_step = 4;       // has one sample less than the others; -1: none
  int evaluation_step = 5;  // is followed by an evaluation; -1: none
  double learning_rate = 0.05;

  /// Micro-batches that are replayed or captured: two steps of the full size are issued, and the short one.
  int64_t launches(const EngineConfig& config) const {
    return int64_t{steps - 2 - (short_step >= 0 ? 1 : 0)} * config.accumulate;
  }
};

struct Training {
  std::vector<float> parameters;
  std::vector<double> losses, norms;
  std::vector<int> votes;
  int64_t launches = 0;
  int skipped = 0;
};

/// Images for the devices to hold.
inline ResidentImages random_images(const Model& model, int64_t count) {
  return {count, [images = random_batch(model, count, 99, 0.0)](int64_t first, const View& to) {
            const int64_t bytes = to.bytes() / to.shape[0];
            std::memcpy(to.data, images.memory->bytes.data() + first * bytes, static_cast<size_t>(to.bytes()));
          }};
}

/// A batch of a step. In all but step 7 it takes its images from the device, if that holds some.
inline HostBatch batch_of(const Model& model, const EngineConfig& config, int64_t samples, int step) {
  OwnedBatch owned = random_batch(model, samples, static_cast<uint32_t>(step), 0.1, config.image_dtype);
  if (config.resident_images.count > 0) {
    for (int32_t& sample : owned.memory->samples) sample %= static_cast<int32_t>(config.resident_images.count);
  }
  HostBatch batch = owned.view();
  batch.epoch = step / 2;
  if (config.resident_images.count > 0 && step != 7) batch.images = {};
  return batch;
}

/// Trains with another learning rate and other data in each step.
inline Training train(const Model& model, EngineConfig config, bool cuda_graph, const DeviceGroupOptions& options,
                      const Course& course) {
  DeviceGroup group(options);
  config.cuda_graph = cuda_graph;
  Workload workload{{config.batch_size}, {}};
  if (course.short_step >= 0) workload.train_batches.push_back(config.batch_size - 1);
  if (course.evaluation_step >= 0) workload.evaluate_batches.push_back(2);
  Engine engine(model, group, config, workload);
  Training result;
  for (int step = 0; step < course.steps; ++step) {
    engine.set_learning_rate(course.learning_rate / (step + 1));
    if (step == 6) engine.set_momentum(0.5);
    const int64_t samples = step == course.short_step ? config.batch_size - 1 : config.batch_size;
    if (step == 8) engine.vote_to_stop();
    engine.train_step(batch_of(model, config, samples, step));
    if (step == course.evaluation_step) engine.evaluate(random_batch(model, 2, 77, 0.0, config.image_dtype).view());
  }
  for (const StepResult& step : engine.take_step_results(true)) {
    result.losses.push_back(step.loss_sum);
    result.norms.push_back(step.gradient_norm);
    result.votes.push_back(step.stop_votes);
    result.skipped += step.skipped ? 1 : 0;
  }
  engine.finish();
  result.parameters = engine.parameters().values();
  result.launches = engine.graph_counts().launched;
  return result;
}

/// Trains with and without graphs. Returns how many steps were skipped.
inline int expect_same_bits(const Model& model, const EngineConfig& config,
                            const DeviceGroupOptions& options = test_group(1, false), const Course& course = {}) {
  const Training issued = train(model, config, false, options, course),
                 replayed = train(model, config, true, options, course);
  EXPECT_EQ(issued.launches, 0);
  EXPECT_EQ(replayed.launches, course.launches(config));
  EXPECT_EQ(std::ssize(replayed.losses), course.steps);
  EXPECT_TRUE(same_bits(replayed.parameters, issued.parameters));
  EXPECT_TRUE(same_bits(replayed.losses, issued.losses));
  EXPECT_TRUE(same_bits(replayed.norms, issued.norms));
  EXPECT_EQ(replayed.votes, issued.votes);
  EXPECT_EQ(replayed.votes.back(), course.steps > 8 ? 1 : 0);
  return issued.skipped;
}

}  // namespace vitrine::test
