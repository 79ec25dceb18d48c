// SPDX-License-Identifier: Apache-2.0
// The engine's parts, put together by hand.
#include "nn/parallel/data_parallel.h"

#include <array>
#include <limits>

#include <gtest/gtest.h>

#include "kernels/cross_entropy.h"
#include "runtime/copy.h"
#include "tests/parallel/random_model.h"

namespace vitrine::test {
namespace {

constexpr int64_t kSamples = 10;

std::vector<float> start_weights(const DataParallel& parts) {
  std::vector<float> start(static_cast<size_t>(parts.layout().parameter_elements()), 0.0F);
  initialize(parts.layout(), 7, start);
  return start;
}

DataParallel::Capacity capacity(int devices) { return {std::vector<int64_t>(static_cast<size_t>(devices), kSamples), kSamples, 0}; }

/// One step with the scheme's own loss.
std::vector<float> reference_weights(const Model& model, const OwnedBatch& batch) {
  DeviceGroup group(test_group(1));
  DataParallel parts(model, group, small_config(model, kSamples), capacity(1));
  parts.set_parameters(start_weights(parts));
  parts.begin_step(0);
  parts.scatter(batch.view(), std::vector<int64_t>{kSamples}, 0);
  parts.forward(true);
  parts.loss();
  parts.backward(true);
  parts.reduce();
  parts.unscale();
  parts.update();
  parts.update_loss_scale();
  parts.broadcast();
  return parts.parameters(0);
}

TEST(DataParallelParts, ALossOfOnesOwnOnAnyOutputDevice) {
  const Model model = random_model(9);
  const OwnedBatch batch = random_batch(model, kSamples, 3, 0);
  const std::vector<float> expected = reference_weights(model, batch);
  for (int device = 0; device < 3; ++device) {
    DeviceGroup group(test_group(3));
    const EngineConfig config = small_config(model, kSamples);
    DataParallel parts(model, group, config, capacity(3));
    parts.set_parameters(start_weights(parts));
    parts.begin_step(0);
    parts.scatter(batch.view(), std::vector<int64_t>{5, 0, 5}, 0);
    parts.forward(true);
    EXPECT_EQ(parts.outputs()[0].shape(), (Shape{5, 5}));
    EXPECT_FALSE(parts.outputs()[1]);
    {
      const Tensor logits = parts.gather(device);
      ASSERT_EQ(logits.shape(), (Shape{kSamples, 5}));
      ExecContext& ctx = group[device].compute();
      const Tensor labels = ctx.allocate({kSamples}, DType::i32, Category::staging, "labels");
      copy(ctx, batch.view().labels, labels);
      // The totals travel with device 0's reduction; here they are made on the device that has the loss.
      const Tensor totals = ctx.allocate({LossTotals::kCount}, DType::f32, Category::staging, "totals");
      zero(ctx, totals);
      softmax_cross_entropy(ctx, {-100, 1.0F / kSamples}, logits, labels, {}, logits, totals);
      parts.add_totals(totals, device);
      parts.set_output_gradients(logits, device);
    }
    parts.backward(true);
    parts.reduce();
    parts.unscale();
    parts.update();
    parts.update_loss_scale();
    for (int d = 0; d < 3; ++d) EXPECT_LT(relative_difference(parts.parameters(d), expected), 1e-6) << "output device " << device;
  }
}

TEST(DataParallelParts, AScopeWithoutReductionKeepsGradientsApart) {
  const Model model = random_model(9);
  const OwnedBatch batch = random_batch(model, kSamples, 3, 0);
  DeviceGroup group(test_group(2));
  DataParallel parts(model, group, small_config(model, kSamples), capacity(2));
  parts.set_parameters(start_weights(parts));
  const auto pass = [&](bool last) {
    parts.scatter(batch.view(), std::vector<int64_t>{6, 4}, 0);
    parts.forward(true);
    parts.loss();
    parts.backward(last);
  };
  parts.begin_step(0);
  {
    const DataParallel::NoReductionScope scope(parts);
    pass(true);
    parts.reduce();
    EXPECT_NE(parts.gradients(0), parts.gradients(1));
  }
  const std::vector<float> apart0 = parts.gradients(0), apart1 = parts.gradients(1);
  pass(true);  // adds to what is there, then reduces both passes
  parts.reduce();
  const std::vector<float> sum = parts.gradients(0);
  EXPECT_EQ(parts.gradients(1), sum);
  std::vector<float> expected(sum.size());
  for (size_t i = 0; i < sum.size(); ++i) expected[i] = 2 * (apart0[i] + apart1[i]);
  EXPECT_LT(relative_difference(sum, expected), 1e-5);
}

TEST(DataParallelParts, WhatIsNotFiniteIsWatchedForInTrainingOnly) {
  const Model model = random_model(9);
  const OwnedBatch batch = random_batch(model, kSamples, 3, 0);
  const std::vector<int64_t> sizes = {6, 4};
  DeviceGroup group(test_group(2));
  DataParallel parts(model, group, small_config(model, kSamples), {sizes, kSamples, 6});
  const auto count = static_cast<size_t>(parts.layout().parameter_elements());
  parts.set_parameters(std::vector<float>(count, std::numeric_limits<float>::infinity()));
  const auto found = [&] {
    std::array<int32_t, 2> numbers{};
    parts.read_non_finite(View{numbers.data(), {2}, DType::i32, DeviceId::host()});
    group.synchronize();
    return numbers;
  };
  parts.watch_for_non_finite(true);
  parts.begin_step(0);
  parts.evaluate(batch.view(), sizes);
  EXPECT_EQ(found(), (std::array<int32_t, 2>{-1, -1}));
  parts.scatter(batch.view(), sizes, 0);
  parts.forward(true);
  for (const int32_t number : found()) EXPECT_EQ(parts.describe_non_finite(number), "parameter " + parts.layout().specs()[0].name);
  // Finite parameters whose products are not.
  parts.set_parameters(std::vector<float>(count, 3e38F));
  parts.begin_step(1);
  parts.scatter(batch.view(), sizes, 0);
  parts.forward(true);
  for (const int32_t number : found()) EXPECT_EQ(parts.describe_non_finite(number).rfind("the output of ", 0), 0U) << number;
}

}  // namespace
}  // namespace vitrine::test
