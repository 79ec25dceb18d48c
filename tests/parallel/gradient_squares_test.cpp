// SPDX-License-Identifier: Apache-2.0
// Gradients that are checked while they are reduced.
#include "nn/parallel/reduce/gradient_squares.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "nn/layers/flatten.h"
#include "nn/layers/linear.h"
#include "runtime/error.h"
#include "tests/parallel/planted_layer.h"
#include "tests/parallel/random_model.h"
#include "tests/support/seeds.h"

namespace vitrine::test {
namespace {

constexpr int64_t kBatch = 6, kSteps = 3;

/// 16 to 70,000 to 16 to 5: both wide layers are large enough to be squared on their own.
Model wide_model(const ReturnsInfinity::Trigger& trigger) {
  Model model;
  model.name = "wide";
  model.height = model.width = 4;
  model.channels = 1;
  model.classes = 5;
  const auto linear = [](int64_t from, int64_t to) {
    LinearConfig config;
    config.in_features = from;
    config.out_features = to;
    return std::make_unique<Linear>(config);
  };
  std::vector<Sequential::Part> parts;
  parts.push_back({"flatten", std::make_unique<Flatten>()});
  parts.push_back({"fc1", linear(16, 70000)});
  parts.push_back({"fc2", linear(70000, 16)});
  parts.push_back({"planted", std::make_unique<ReturnsInfinity>(trigger)});
  parts.push_back({"fc3", linear(16, 5)});
  model.net = std::make_unique<Sequential>(std::move(parts));
  return model;
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

struct Result {
  std::vector<float> weights, norms;
};

Result train(const Model& model, int devices, const EngineConfig& config, bool check_order = true) {
  DeviceGroup group(test_group(devices, check_order));
  Engine engine(model, group, config, {{kBatch}, {}});
  for (uint32_t step = 0; step < kSteps; ++step) engine.train_step(random_batch(model, kBatch, step, 0).view());
  Result result;
  for (const StepResult& step : engine.take_step_results(true))
    result.norms.push_back(static_cast<float>(step.gradient_norm));
  engine.parameters().verify();
  engine.finish();  // asserts that the plan was met to the byte
  result.weights = engine.parameters().values();
  return result;
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
  const Result expected = train(model, GetParam(), config);
  config.reducer = watched(true);
  const Result result = train(model, GetParam(), config);
  EXPECT_EQ(result.weights, expected.weights);
  ASSERT_EQ(result.norms.size(), expected.norms.size());
  for (size_t step = 0; step < result.norms.size(); ++step) {
    EXPECT_GT(result.norms[step], 0.0F);
    EXPECT_NEAR(result.norms[step], expected.norms[step], 1e-6F * expected.norms[step]) << "step " << step;
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
  const Result first = train(model, GetParam(), config), second = train(model, GetParam(), config);
  EXPECT_EQ(first.norms, second.norms);
  EXPECT_EQ(first.weights, second.weights);
  const Result unchecked = train(model, GetParam(), config, false);
  EXPECT_EQ(unchecked.norms, first.norms);
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
  std::string message;
  try {
    engine.take_step_results(true);
  } catch (const DivergedError& error) {
    message = error.what();
  }
  EXPECT_NE(message.find("the gradient of step 2 is not finite, first in the gradient of fc2.bias"), std::string::npos)
      << message;
  for (int device = 0; device < GetParam(); ++device)
    EXPECT_EQ(engine.parameters().values(device), before) << "device " << device;
  engine.train_step(batch.view());
  EXPECT_NO_THROW(engine.take_step_results(true));
}

TEST_P(GradientSquaresTest, OnlyTheSumOverMicroBatchesIsChecked) {
  EngineConfig config = config_of(model);
  config.scheme.reduce = Reduce::gpu0;  // checks after the reduction
  config.accumulate = 2;
  const Result expected = train(model, GetParam(), config);
  config.scheme.reduce = Reduce::allreduce;
  const Result result = train(model, GetParam(), config);
  for (size_t step = 0; step < result.norms.size(); ++step)
    EXPECT_NEAR(result.norms[step], expected.norms[step], 1e-5F * expected.norms[step]);
}

}  // namespace
}  // namespace vitrine::test
