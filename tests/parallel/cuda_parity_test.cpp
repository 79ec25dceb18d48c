// SPDX-License-Identifier: Apache-2.0
// GPUs and CPU devices agree: from the same weights, each step gives the same loss and the same gradients.
#include <cmath>

#include <gtest/gtest.h>

#include "tests/parallel/random_model.h"
#include "tests/parallel/rounding_agreement.h"

namespace vitrine::test {
namespace {

constexpr double kTolerance = 1e-4;

DeviceGroupOptions options_for(Backend backend, int devices) {
  DeviceGroupOptions options = test_group(devices);
  for (int i = 0; backend == Backend::cpu && i < devices; ++i)
    options.devices[static_cast<size_t>(i)] = {Backend::cpu, i};
  return options;
}

/// Runs `steps` steps of both engines; before each step the GPUs get the CPU's weights.
void expect_parity(const Model& model, const EngineConfig& config, int devices, uint32_t steps,
                   const std::string& what) {
  DeviceGroup cpus(options_for(Backend::cpu, devices)), gpus(options_for(Backend::cuda, devices));
  const Workload workload{{config.batch_size}, {}};
  Engine cpu(model, cpus, config, workload), gpu(model, gpus, config, workload);
  Agreement agreement(kTolerance);
  for (uint32_t step = 0; step < steps; ++step) {
    agreement.begin_case(what + ", step " + std::to_string(step));
    const OwnedBatch batch = random_batch(model, config.batch_size, 1000 + step, 0.1);
    gpu.parameters().set(cpu.parameters().values());
    cpu.train_step(batch.view());
    gpu.train_step(batch.view());
    const StepResult expected = cpu.take_step_results(true).at(0), actual = gpu.take_step_results(true).at(0);
    ASSERT_EQ(actual.valid, expected.valid) << what << ", step " << step;
    ASSERT_NEAR(actual.loss_sum, expected.loss_sum, kTolerance * std::abs(expected.loss_sum))
        << what << ", step " << step;
    for (int d = 0; d < devices; ++d) {
      agreement.expect(gpu.parameters().gradients(d), cpu.parameters().gradients(d), Agreement::Effect::one_step,
                       "gradients of device " + std::to_string(d));
    }
    // Gradients that once differed stay in the optimizer's state.
    const double tolerance = agreement.flipped() ? 0.05 : kTolerance;
    ASSERT_LT(relative_difference(gpu.parameters().values(), cpu.parameters().values()), tolerance)
        << what << ", step " << step;
    if (::testing::Test::HasFailure()) return;
  }
  cpu.finish();
  gpu.finish();
  for (int d = 0; d < devices; ++d) {
    const int64_t counters = ExecContext::kCounters * size_of(DType::i32);  // of blocks, on GPUs only
    EXPECT_EQ(gpus[d].pool().statistics().peak_bytes - counters, cpus[d].pool().statistics().peak_bytes)
        << what << ": otherwise the plan is the same on every backend";
  }
}

TEST(CudaParity, FiftyStepsOfOneDevice) {
  const Model model = random_model(21);
  EngineConfig config = small_config(model, 12);
  config.optimizer = make_optimizer_config("adamw", 3e-3, {}, false, {});
  expect_parity(model, config, 1, 50, "one device");
}

class CudaParityOf : public ::testing::TestWithParam<const char*> {};

TEST_P(CudaParityOf, SchemesAndSplits) {
  uint32_t seed = 30;
  for (const int devices : {2, 3, 8}) {
    for (const char* split : {"equal", "weights"}) {
      const Model model = random_model(++seed);
      EngineConfig config = small_config(model, 17);
      config.scheme = scheme_preset(GetParam());
      config.accumulate = 1 + static_cast<int>(seed % 2);
      if (std::string(split) == "weights") {
        config.scheme.split = Split{};
        config.scheme.split.kind = Split::Kind::weights;
        for (int d = 0; d < devices; ++d) config.scheme.split.weights.push_back(d % 3);
      }
      if (config.scheme.split.kind == Split::Kind::gpu0) config.scheme.split.gpu0 = 2;
      expect_parity(model, config, devices, 6,
                    std::to_string(devices) + " devices, split " + config.scheme.split.str());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, CudaParityOf,
                         ::testing::Values("dp", "balanced", "criterion", "ddp", "zero1", "zero2", "zero3"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace vitrine::test
