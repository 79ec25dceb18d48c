// SPDX-License-Identifier: Apache-2.0
// Gradients that are checked while they are reduced.
#include "nn/parallel/reduce/gradient_squares.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "nn/layers/flatten.h"
#include "runtime/error.h"
#include "tests/parallel/planted_layer.h"
#include "tests/parallel/random_model.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tests/support/seeds.h"

namespace vitrine::test {
namespace {

constexpr int64_t kBatch = 6;

/// 16 to 70,000 to 16 to 5: both wide layers are large enough to be squared on their own.
Model wide_model(const ReturnsInfinity::Trigger& trigger) {
  std::vector<Sequential::Part> parts;
  parts.push_back({"flatten", std::make_unique<Flatten>()});
  parts.push_back({"fc1", linear(16, 70000)});
  parts.push_back({"fc2", linear(70000, 16)});
  parts.push_back({"planted", std::make_unique<ReturnsInfinity>(trigger)});
  parts.push_back({"fc3", linear(16, 5)});
  return image_model("wide", 4, 1, 5, std::move(parts));
}

EngineConfig config_of(const Model& model) {
  EngineConfig config = small_config(model, kBatch);
  config.bucket_bytes = int64_t{4} << 20;  // fc2 is in another bucket than fc1
  return config;
}

/// The scheme's reducer, which shows what it has squared to the test, and to the engine only on request.
class Watched final : public Reducer {
 public:
  Watched(const ReducerContext& replica, bool shows, SquaredElements& seen)
      : reducer_(make_reducer(replica)), shows_(shows), seen_(seen) {}
  bool updates() const override { return reducer_->updates(); }
  void begin_step(int64_t step) override { reducer_->begin_step(step); }
  void add(int64_t finished_elements) override { reducer_->add(finished_elements); }
  void finish() override { reducer_->finish(); }
  void distribute() override { reducer_->distribute(); }
  void reset() override { reducer_->reset(); }
  SquaredElements squared() const override {
    seen_ = reducer_->squared();
    return shows_ ? seen_ : SquaredElements{};
  }
  View error() const override { return reducer_->error(); }

 private:
  std::unique_ptr<Reducer> reducer_;
  bool shows_;
  SquaredElements& seen_;
};

const TrainingCase kTraining{.batches = {kBatch, kBatch, kBatch}};

std::vector<double> norms(const TrainingOutcome& trained) {
  std::vector<double> all;
  for (const StepResult& step : trained.steps) all.push_back(step.gradient_norm);
  return all;
}

class GradientSquaresTest : public ::testing::TestWithParam<int> {
 protected:
  ReturnsInfinity::Trigger trigger;
  const Model model = wide_model(trigger);
};
INSTANTIATE_TEST_SUITE_P(Devices, GradientSquaresTest,
                         ::testing::ValuesIn(kSeedStep == 1 ? std::vector{1, 2, 3} : std::vector{2}));

TEST_P(GradientSquaresTest, TheStepIsThatOfACheckAfterTheReduction) {
  EngineConfig config = config_of(model);
  // Every replica has its own: GPUs issue from a thread each.
  std::vector<SquaredElements> seen(3);
  const auto watched = [&seen](bool shows) {
    return [&seen, shows](const ReducerContext& replica) {
      return std::make_unique<Watched>(replica, shows, seen[static_cast<size_t>(replica.rank)]);
    };
  };
  config.reducer = watched(false);
  const TrainingOutcome expected = train(model, GetParam(), config, kTraining);
  config.reducer = watched(true);
  const TrainingOutcome result = train(model, GetParam(), config, kTraining);
  EXPECT_EQ(result.weights, expected.weights);
  for (size_t step = 0; step < 3; ++step) {
    const double norm = expected.steps.at(step).gradient_norm;
    EXPECT_GT(norm, 0.0);
    EXPECT_NEAR(result.steps.at(step).gradient_norm, norm, 1e-6 * norm) << "step " << step;
  }
  const FlatLayout layout(model.net->parameters(), 1);
  const int64_t all = layout.parameter_elements(), fc2 = layout.offset(1);  // of fc1's bias: fc3 and fc2 lie before it
  for (int rank = 0; rank < GetParam(); ++rank) {
    const int64_t squared = seen[static_cast<size_t>(rank)].elements;
    EXPECT_EQ(squared, test_backend() == Backend::cuda ? fc2 : GetParam() == 1 ? 0 : all) << "rank " << rank;
  }
}

TEST_P(GradientSquaresTest, TwoRunsHaveTheSameBits) {
  EngineConfig config = config_of(model);
  config.precision.clip_norm = 0.01;
  const TrainingOutcome first = train(model, GetParam(), config, kTraining),
                        second = train(model, GetParam(), config, kTraining);
  EXPECT_EQ(norms(first), norms(second));
  EXPECT_EQ(first.weights, second.weights);
  TrainingCase unordered = kTraining;
  unordered.check_order = false;
  const TrainingOutcome unchecked = train(model, GetParam(), config, unordered);
  EXPECT_EQ(norms(unchecked), norms(first));
  EXPECT_EQ(unchecked.weights, first.weights);
}

TEST_P(GradientSquaresTest, ANonFiniteGradientStopsAllDevicesAndIsNamed) {
  DeviceGroup group(test_group(GetParam()));
  Engine engine(model, group, config_of(model), {{kBatch}, {}});
  const OwnedBatch batch = random_batch(model, kBatch, 1, 0);
  engine.train_step(batch.view());
  engine.take_step_results(true);
  const std::vector<float> before = engine.parameters().values();
  trigger = {true, GetParam() - 1};
  engine.train_step(batch.view());
  trigger.armed = false;
  engine.train_step(batch.view());  // in flight when the divergence is found
  expect_contains(error_of<DivergedError>([&] { engine.take_step_results(true); }),
                  "the gradient of step 2 is not finite, first in the gradient of fc2.bias");
  for (int device = 0; device < GetParam(); ++device)
    EXPECT_EQ(engine.parameters().values(device), before) << "device " << device;
  engine.train_step(batch.view());
  EXPECT_NO_THROW(engine.take_step_results(true));
}

TEST_P(GradientSquaresTest, OnlyTheSumOverMicroBatchesIsChecked) {
  EngineConfig config = config_of(model);
  config.scheme.reduce = ReducerKind::gpu0;  // checks after the reduction
  config.accumulate = 2;
  const TrainingOutcome expected = train(model, GetParam(), config, kTraining);
  config.scheme.reduce = ReducerKind::allreduce;
  const TrainingOutcome result = train(model, GetParam(), config, kTraining);
  for (size_t step = 0; step < 3; ++step) {
    const double norm = expected.steps.at(step).gradient_norm;
    EXPECT_NEAR(result.steps.at(step).gradient_norm, norm, 1e-5 * norm);
  }
}

}  // namespace
}  // namespace vitrine::test
