// SPDX-License-Identifier: Apache-2.0
// Blocks lie where the plan says, and the plan leaves hardly any gaps.
#include <algorithm>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "nn/parallel/plan/memory_plan.h"
#include "nn/segments.h"
#include "tests/parallel/random_model.h"

namespace vitrine::test {
namespace {

/// The settings that change which blocks a step has.
struct Variant {
  const char* name;
  DType compute;
  int accumulate, segments;
  bool loss_gradient_in_place;
};
constexpr Variant kVariants[] = {{"f32", DType::f32, 1, 1, true},
                                 {"f16", DType::f16, 1, 1, false},
                                 {"bf16 in micro-batches", DType::bf16, 3, 1, true},
                                 {"recomputed", DType::f32, 1, 3, true},
                                 {"recomputed in micro-batches", DType::f16, 2, 4, false}};

EngineConfig config_of(const Model& model, const char* mode, int64_t batch, const Variant& variant) {
  EngineConfig config = small_config(model, batch);
  config.scheme = scheme_preset(mode);
  if (config.scheme.split.kind == Split::Kind::gpu0) config.scheme.split.gpu0 = batch / 5;
  config.accumulate = variant.accumulate;
  config.recompute_segments = std::min(variant.segments, most_segments(*model.net, model.input_shape(1)));
  if (model.targets_per_sample > 1) config.image_dtype = model.sample_dtype();  // sequences, not pictures
  config.loss_gradient_in_place = variant.loss_gradient_in_place;
  compute_in(config, variant.compute);
  config.workspace_bytes = int64_t{64} << 20;  // enough for 16-bit convolutions of resnet18
  return config;
}

class PlacementOfModels : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(PlacementOfModels, GapsTakeLessThanOnePercent) {
  const auto& [name, mode] = GetParam();
  const Model model = make_model(name, {model_image_size(name) > 0 ? 0 : 32});
  const DeviceGroup group(meta_group(3));
  for (const Variant& variant : kVariants) {
    for (const int64_t batch : {12, 60}) {
      const Workload workload{{batch, 7}, {20}};
      for (const DevicePlan& plan : plan_memory(model, group, config_of(model, mode, batch, variant), workload)) {
        const int64_t bound = allocated_bytes(plan.peak_by_category);
        EXPECT_GE(plan.peak_bytes, bound) << variant.name << ", " << batch;
        EXPECT_LE(static_cast<double>(plan.peak_bytes), 1.01 * static_cast<double>(bound))
            << variant.name << ", " << batch;
        EXPECT_LE(plan.peak_bytes, plan.unplaced_peak_bytes) << variant.name << ", " << batch;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PlacementOfModels,
                         ::testing::Combine(::testing::Values("small-cnn", "lenet5", "mlp", "alexnet", "resnet18",
                                                              "wide-head"),
                                            ::testing::Values("dp", "balanced", "criterion", "ddp")),
                         [](const auto& param) {
                           std::string name = std::string(std::get<0>(param.param)) + "_" + std::get<1>(param.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class PlacedRun : public ::testing::TestWithParam<const char*> {};

TEST_P(PlacedRun, EveryBlockLiesWhereItIsPlannedInAnyOrderOfTheBatches) {
  for (const Variant& variant : kVariants) {
    for (int m = 0; m < 3; ++m) {
      const Model model = m < 2 ? random_model(static_cast<uint32_t>(5 + m)) : tiny_resnet();
      const int64_t batch = 12;
      DeviceGroup group(test_group(3));  // checks the order of the streams too
      Engine engine(model, group, config_of(model, GetParam(), batch, variant), {{batch, 7}, {20}});
      const auto train = [&](int64_t samples) { engine.train_step(random_batch(model, samples, 1, 0.1).view()); };
      engine.evaluate(random_batch(model, 20, 2, 0).view());
      for (const int64_t samples : {7, 12, 12, 7, 12}) train(samples);
      engine.evaluate(random_batch(model, 20, 2, 0).view());
      train(12);
      engine.finish();  // compares the peak with the plan
      for (int d = 0; d < group.size(); ++d) {
        EXPECT_EQ(group[d].pool().statistics().unplaced_blocks, 0)
            << variant.name << ", model " << m << ", device " << d;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schemes, PlacedRun, ::testing::Values("dp", "balanced", "criterion", "ddp"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace vitrine::test
