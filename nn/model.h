// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/sequential.h"

namespace vitrine {

/// A network and what it takes: images (N, height, width, channels), and gives: logits (N, classes).
struct Model {
  std::string name;
  int64_t height = 0, width = 0, channels = 0, classes = 0;
  std::unique_ptr<Sequential> net;

  Shape input_shape(int64_t samples) const { return {samples, height, width, channels}; }
};

struct ModelOptions {
  int64_t image_size = 0;  // height and width; 0: what the model was made for (alexnet 227, others: given by the data)
  int64_t channels = 3;
  int64_t classes = 10;
  std::optional<float> dropout = std::nullopt;  // overrides the model's
};

/// "alexnet", "small-cnn", "lenet5", "mlp".
const std::vector<std::string>& model_names();

/// throws ConfigError naming the models there are; ShapeError when images are too small for it.
///   alexnet    torchvision's, its names and initialisation (Krizhevsky 2014)
///   small-cnn  features.0 conv 3x3 (-> 32, pad 1) ReLU, max pool 2, features.3 conv 3x3 (-> 64, pad 1) ReLU, max pool 2, classifier.0 Linear(-> 128)
///   ReLU,
///              classifier.2 Linear(-> classes)
///   lenet5     conv 5x5 (-> 6, pad 2) ReLU, max pool 2, conv 5x5 (-> 16) ReLU, max pool 2, Linear 120, 84, classes (LeCun et al. 1998, with ReLU)
///   mlp        Linear 256, 128, classes with ReLU
Model make_model(const std::string& name, const ModelOptions& options);

}  // namespace vitrine
