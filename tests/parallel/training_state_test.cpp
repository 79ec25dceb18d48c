// SPDX-License-Identifier: Apache-2.0
// An engine that loads a state continues like the one that saved it.
#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "nn/parallel/state/training_checkpoint.h"
#include "runtime/error.h"
#include "tests/parallel/random_model.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tests/support/seeds.h"
#include "tests/support/temp_folder.h"

namespace vitrine::test {
namespace {

constexpr int64_t kSteps = 7;

/// Options of an engine, drawn at random.
EngineConfig random_config(std::mt19937& random, const Model& model) {
  EngineConfig config = small_config(model, 4 + static_cast<int64_t>(random() % 9));
  config.scheme = scheme_preset(scheme_names()[random() % scheme_names().size()]);
  if (config.scheme.split.kind == Split::Kind::gpu0) config.scheme.split.gpu0 = 2;
  config.accumulate = 1 + static_cast<int>(random() % 2);
  const char* const optimizers[] = {"sgd", "adam", "adamw"};
  const std::string optimizer = optimizers[random() % 3];
  const std::optional<double> momentum = optimizer == "sgd" && random() % 2 == 0 ? std::optional(0.9) : std::nullopt;
  config.optimizer = make_optimizer_config(optimizer, 0.01, momentum, momentum.has_value() && random() % 2 == 0, {});
  if (random() % 2 == 0) config.ema_decay = 0.9;
  const DType computes[] = {DType::f32, DType::f16, DType::bf16};
  config.precision.compute = computes[random() % 3];
  if (config.precision.compute == DType::f16) {
    config.precision.loss_scaling.kind = LossScaling::Kind::dynamic;
    config.precision.loss_scaling.scale = 128.0;
    config.precision.loss_scaling.constants.growth_interval = 3;  // the scale changes during the run
  }
  return config;
}

std::unique_ptr<Engine> make_engine(const Model& model, DeviceGroup& group, const EngineConfig& config) {
  return std::make_unique<Engine>(model, group, config, Workload{{config.batch_size}, {}});
}

/// Trains from the engine's step to `end`, with a learning rate that changes.
void train(Engine& engine, const Model& model, int64_t end) {
  while (engine.steps_issued() < end) {
    const auto step = static_cast<uint32_t>(engine.steps_issued());
    engine.set_learning_rate(0.01 / (1.0 + step));
    engine.train_step(random_batch(model, engine.config().batch_size, step, 0.1).view());
  }
  for (const StepResult& result : engine.take_step_results(true)) EXPECT_FALSE(result.diverged);
}

/// What must be equal to the last bit.
struct Outcome {
  std::vector<float> parameters, working;
  std::vector<std::vector<float>> states;
  int64_t step = 0, updates = 0;
  std::optional<std::pair<float, int32_t>> loss_scale;
  bool operator==(const Outcome&) const = default;
};

Outcome outcome_of(Engine& engine) {
  const TrainingState state = engine.checkpointer().state();
  Outcome outcome{engine.parameters().values(0),
                  engine.parameters().working_values(engine.devices().size() - 1),
                  {},
                  state.step,
                  state.updates,
                  state.loss_scale};
  for (const TrainingState::Flat& flat : state.flats)
    outcome.states.emplace_back(flat.values().begin(), flat.values().end());
  return outcome;
}

class Resuming : public ::testing::TestWithParam<uint32_t> {
 protected:
  /// The state after it has been written to files and read again.
  TrainingState through_files(Engine& from, Engine& to) const {
    const TrainingState saved = from.checkpointer().state();
    std::vector<float> scratch(static_cast<size_t>(
        checkpoint_scratch_elements(from.parameters().layout(), from.parameters().buffer_layout())));
    write_checkpoint(
        folder_.str(), "state",
        checkpoint_files(from.parameters().layout(), from.parameters().buffer_layout(), saved, scratch, {}), "{}");
    read_checkpoint(folder_.path("state"));
    TrainingState loaded = to.checkpointer().make_state();
    for (TrainingState::Flat& flat : loaded.flats) std::fill(flat.values().begin(), flat.values().end(), 7.0F);
    loaded.take_scalars(saved);
    read_checkpoint_files(folder_.path("state"), to.parameters().layout(), to.parameters().buffer_layout(), loaded);
    return loaded;
  }

 private:
  const TempFolder folder_;
};

TEST_P(Resuming, ContinuesWithTheSameBitsFromAnyStep) {
  std::mt19937 random(GetParam());
  const Model model = random_model(GetParam());
  if (GetParam() % 2 == 0) model.net->freeze({model.net->parameters().front().name, "*.bias"});
  const EngineConfig config = random_config(random, model);
  const int devices = 1 + static_cast<int>(random() % 3);
  DeviceGroup group(test_group(devices)), other_group(test_group(devices));
  Outcome whole;
  {
    const auto engine = make_engine(model, group, config);
    train(*engine, model, kSteps);
    whole = outcome_of(*engine);
    engine->finish();
  }
  const int64_t stop = static_cast<int64_t>(random() % (kSteps + 1));
  const auto first = make_engine(model, group, config);
  train(*first, model, stop);
  const auto second = make_engine(model, other_group, config);
  train(*second, model, static_cast<int64_t>(random() % 3));  // whatever it did before is forgotten
  second->checkpointer().load_state(through_files(*first, *second));
  EXPECT_EQ(second->steps_issued(), stop);
  train(*second, model, kSteps);
  EXPECT_TRUE(outcome_of(*second) == whole) << "continued at step " << stop;
  second->finish();  // asserts that the plan was met to the byte
  // The engine that was saved is not disturbed.
  train(*first, model, kSteps);
  EXPECT_TRUE(outcome_of(*first) == whole);
}

TEST_P(Resuming, ContinuesOnOtherDevicesUpToRounding) {
  std::mt19937 random(GetParam() + 1000);
  const Model model = random_model(GetParam());
  EngineConfig config = random_config(random, model);
  config.precision = Precision();
  config.optimizer = make_optimizer_config("sgd", 0.01, 0.9, false, {});
  DeviceGroup group(test_group(2));
  const auto engine = make_engine(model, group, config);
  train(*engine, model, 3);
  for (const int devices : {1, 3, 4}) {
    DeviceGroup others(test_group(devices));
    EngineConfig other = config;
    other.scheme = scheme_preset(scheme_names()[random() % scheme_names().size()]);
    if (other.scheme.split.kind == Split::Kind::gpu0) other.scheme.split.gpu0 = devices == 1 ? config.batch_size : 1;
    other.accumulate = 1;
    const auto continued = make_engine(model, others, other);
    const TrainingState state = through_files(*engine, *continued);
    continued->checkpointer().load_state(state);
    train(*continued, model, kSteps);
    // The engine itself continues on its own devices.
    DeviceGroup same(test_group(2));
    const auto reference = make_engine(model, same, config);
    reference->checkpointer().load_state(state);
    train(*reference, model, kSteps);
    EXPECT_LT(relative_difference(continued->parameters().values(), reference->parameters().values()), 1e-5)
        << devices << " devices";
    continued->finish();
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Resuming, ::testing::Range(0U, 12U, kSeedStep));

TEST(TrainingState, TakesThePlannedMemory) {
  const Model model = random_model(1);
  DeviceGroup group(test_group(1));
  for (const auto& [optimizer, names] : std::vector<std::pair<OptimizerConfig, std::vector<std::string>>>{
           {make_optimizer_config("sgd", {}, {}, false, {}), {"parameters"}},
           {make_optimizer_config("sgd", {}, 0.9, false, {}), {"parameters", "momentum_buffer"}},
           {make_optimizer_config("adamw", {}, {}, false, {}), {"parameters", "exp_avg", "exp_avg_sq"}}}) {
    EngineConfig config = small_config(model, 4);
    config.optimizer = optimizer;
    const auto engine = make_engine(model, group, config);
    const TrainingState state = engine->checkpointer().state();
    const auto planned =
        training_state_bytes(engine->parameters().layout(), engine->parameters().buffer_layout(), config);
    ASSERT_EQ(state.flats.size(), names.size());
    ASSERT_EQ(planned.size(), names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      EXPECT_EQ(state.flats[i].name, names[i]);
      EXPECT_EQ(planned[i].first, names[i]);
      EXPECT_EQ(planned[i].second, state.flats[i].memory.bytes());
    }
  }
}

TEST(TrainingState, OfAnotherOptimizerOrModelIsRefused) {
  const auto state_of = [](const Model& model, const EngineConfig& config) {
    DeviceGroup group(test_group(1));
    return make_engine(model, group, config)->checkpointer().state();
  };
  const Model model = random_model(1), another = random_model(2);
  const EngineConfig config = small_config(model, 4);
  EngineConfig adam = config, evaluates = config;
  adam.optimizer = make_optimizer_config("adam", {}, {}, false, {});
  evaluates.forward_only = true;
  {
    DeviceGroup group(test_group(1));
    const auto engine = make_engine(model, group, config);
    for (const TrainingState& state : {state_of(model, adam), state_of(another, small_config(another, 4))}) {
      expect_contains(error_of<ConfigError>([&] { engine->checkpointer().load_state(state); }),
                      "expected parameters of");
    }
  }
  DeviceGroup group(test_group(1));
  Engine forward_only(model, group, evaluates, {{}, {4}});
  EXPECT_THROW(forward_only.checkpointer().state(), ConfigError);
}

}  // namespace
}  // namespace vitrine::test
