// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <random>
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

/// A convolution of 3x3 that keeps the size of the images.
std::unique_ptr<Layer> conv(int64_t in, int64_t out, bool relu);
std::unique_ptr<Layer> linear(int64_t in, int64_t out, bool relu = false);

/// Of square images.
Model image_model(const char* name, int64_t size, int64_t channels, int64_t classes,
                  std::vector<Sequential::Part> parts);

/// A GPT of two blocks, 16 wide, with dropout: sequences of 6 tokens of 11.
Model tiny_gpt();

/// A test's layer between two Linear layers: flatten (4x4x1), fc1 (16 to 300), `planted` (300 to 300), fc2 (300 to 5).
Model planted_model(std::unique_ptr<Layer> planted);

/// A batch that owns its memory: u8 images (or f32 of the model's size, or tokens) and labels, some of them ignored on
/// request.
struct OwnedBatch {
  struct Memory {
    std::vector<uint8_t> bytes;
    std::vector<float> floats;
    std::vector<int32_t> tokens;
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

/// f16 with dynamic loss scaling.
void compute_in(EngineConfig& config, DType dtype);

/// Devices that only plan.
DeviceGroupOptions meta_group(int devices, int64_t memory_bytes = int64_t{1} << 42);

/// Devices of the kind that is tested (tests/support/test_devices.h).
DeviceGroupOptions test_group(int devices, bool check_order = true);

struct TrainingCase {
  std::vector<int64_t> batches = {};  // samples of each step
  uint32_t seed = 0;                  // of the first batch
  double ignored = 0.0;               // share of the labels
  int64_t evaluated = 0;              // samples of an evaluation at the end
  bool first_gradients = false;       // kept
  bool waits = false;                 // for each step
  bool check_order = true;
  std::function<void(Engine&)> look = [](Engine&) {};  // at the trained engine
};

/// Everything that must have the same bits where two ways of training equal each other.
struct OutcomeBits {
  std::vector<float> weights, working, averages, buffers, first_gradients, logits;
  std::vector<int64_t> counters;
  std::vector<double> losses;
  double test_loss = 0;
  bool operator==(const OutcomeBits&) const = default;
};
struct TrainingOutcome : OutcomeBits {
  std::vector<StepResult> steps;
};

/// Trains on random batches, of which none may be skipped; expects equal replicas and exactly the planned memory.
TrainingOutcome train(const Model& model, int devices, const EngineConfig& config, const TrainingCase& training);

/// ||a - b|| / ||b||, in double; 0 when both are zero.
double relative_difference(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace vitrine::test
