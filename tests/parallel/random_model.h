// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "nn/model.h"
#include "nn/parallel/engine.h"
#include "tests/support/test_devices.h"

/// Small models, random batches, and helpers of engine tests.
namespace vitrine::test {

/// Up to two convolution blocks, with ReLU before or after the pooling, and dropout, or a multi-layer perceptron with
/// dropout; images 8 to 12 pixels wide, 5 classes.
Model random_model(uint32_t seed);

/// A residual network with batch norm: 16x16 images, 4 to 32 channels, one block of each width, 5 classes.
Model tiny_resnet(bool bottleneck = false);

/// A test's layer between two Linear layers: flatten (4x4x1), fc1 (16 to 300), `planted` (300 to 300), fc2 (300 to 5).
Model planted_model(std::unique_ptr<Layer> planted);

/// A batch that owns its memory: u8 images (or f32 of the model's size) and labels, some of them ignored on request.
struct OwnedBatch {
  struct Memory {
    std::vector<uint8_t> bytes;
    std::vector<float> floats;
    std::vector<int32_t> labels;
    std::vector<int32_t> samples;  // as if drawn from a large data set
  };
  std::shared_ptr<Memory> memory = std::make_shared<Memory>();
  Shape image_shape, label_shape;
  /// Keeps the memory until the devices have read it.
  HostBatch view() const;
};
OwnedBatch random_batch(const Model& model, int64_t samples, uint32_t seed, double ignored, DType dtype = DType::u8);

/// SGD with momentum on u8 images of the model's size.
EngineConfig small_config(const Model& model, int64_t batch_size);

/// Devices of the kind that is tested (tests/support/test_devices.h).
DeviceGroupOptions test_group(int devices, bool check_order = true);

/// ||a - b|| / ||b||, in double; 0 when both are zero.
double relative_difference(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace vitrine::test
