// SPDX-License-Identifier: Apache-2.0
// A small model and its batches, which several examples train: a perceptron that classifies points of the plane.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <vitrine/nn/layers/linear.h>
#include <vitrine/nn/model.h>
#include <vitrine/runtime/host_batch.h>

constexpr int64_t kFeatures = 2;

/// Two linear layers with a ReLU between them. Inputs are (N, kFeatures) f32.
inline vitrine::Model make_perceptron(int64_t hidden_features, int64_t classes) {
  vitrine::LinearConfig hidden, output;
  hidden.in_features = kFeatures;
  hidden.out_features = output.in_features = hidden_features;
  hidden.relu = true;
  output.out_features = classes;
  std::vector<vitrine::Sequential::Part> parts;
  parts.push_back({"hidden", std::make_unique<vitrine::Linear>(hidden)});
  parts.push_back({"output", std::make_unique<vitrine::Linear>(output)});
  vitrine::Model model;
  model.name = "perceptron";
  model.sample_shape = {kFeatures};
  model.classes = classes;
  model.net = std::make_unique<vitrine::Sequential>(std::move(parts));
  return model;
}

/// Points and their labels.
struct Points {
  std::vector<float> coordinates;  // x, y, x, y, ...
  std::vector<int32_t> labels;

  void add(float x, float y, int32_t label) {
    coordinates.insert(coordinates.end(), {x, y});
    labels.push_back(label);
  }
};

/// A batch of all points. It owns them, because the engine keeps it until the devices have read it.
inline vitrine::HostBatch batch_of(Points points) {
  const auto owner = std::make_shared<Points>(std::move(points));
  const auto count = static_cast<int64_t>(owner->labels.size());
  const vitrine::DeviceId host = vitrine::DeviceId::host();
  vitrine::HostBatch batch;
  batch.images = vitrine::ConstView(owner->coordinates.data(), {count, kFeatures}, vitrine::DType::f32, host);
  batch.labels = vitrine::ConstView(owner->labels.data(), {count}, vitrine::DType::i32, host);
  batch.hold = owner;
  return batch;
}
