// SPDX-License-Identifier: Apache-2.0
#include <functional>

#include <gtest/gtest.h>

#include "nn/layers/dropout.h"
#include "nn/parallel/engine_setup.h"
#include "nn/parallel/plan/plan.h"
#include "nn/parallel/reduce/reducer.h"
#include "tests/parallel/random_model.h"

namespace vitrine::test {
namespace {

AgreementFields fields_of(const Model& model, const EngineConfig& config) {
  return plan_fields(model, FlatLayout(model.net->parameters(), kTailElements), config, {{config.batch_size}, {7}});
}

TEST(PlanFields, ContainWhatTrainingDependsOn) {
  using Change = std::function<void(EngineConfig&)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"rank 1 has split 1,2, where rank 0 has equal", [](EngineConfig& c) { c.scheme.split = parse_split("1,2"); }},
      {"rank 1 has batch size 13", [](EngineConfig& c) { c.batch_size = 13; }},
      {"rank 1 has accumulation 2", [](EngineConfig& c) { c.accumulate = 2; }},
      {"rank 1 has recompute segments 2, where rank 0 has 1", [](EngineConfig& c) { c.recompute_segments = 2; }},
      {"rank 1 has recomputed parts fc1, where rank 0 has none", [](EngineConfig& c) { c.recompute = {"fc1"}; }},
      {"rank 1 has loss gradient apart, where rank 0 has in place",
       [](EngineConfig& c) { c.loss_gradient_in_place = false; }},
      {"rank 1 has buckets", [](EngineConfig& c) { c.bucket_bytes = 512; }},
      {"rank 1 has optimizer sgd lr 0.06", [](EngineConfig& c) { c.optimizer.set_learning_rate(0.0625); }},
      {"rank 1 has precision f16", [](EngineConfig& c) { c.precision.compute = DType::f16; }},
      {"rank 1 has precision f32, clipping norm 2", [](EngineConfig& c) { c.precision.clip_norm = 2; }},
      {"rank 1 has precision f32, clipping norm 0, gradients in bf16",
       [](EngineConfig& c) { c.precision.reduce_dtype = DType::bf16; }},
      {"rank 1 has loss scaling fixed 65536, where rank 0 has none",
       [](EngineConfig& c) { c.precision.loss_scaling.kind = LossScaling::Kind::fixed; }},
      {"rank 1 has non-finite values allowed, where rank 0 has not allowed",
       [](EngineConfig& c) { c.allow_non_finite = true; }},
      {"rank 1 has purpose evaluation, where rank 0 has training", [](EngineConfig& c) { c.forward_only = true; }},
      {"rank 1 has reducer custom, where rank 0 has built in", [](EngineConfig& c) { c.reducer = make_reducer; }},
      {"rank 1 has training step custom, where rank 0 has built in", [](EngineConfig& c) { c.step = default_step; }},
      {"rank 1 has seed 8, where rank 0 has 7", [](EngineConfig& c) { c.seed = 8; }},
      {"rank 1 has ignored index 3", [](EngineConfig& c) { c.ignore_index = 3; }},
      {"rank 1 has images f32", [](EngineConfig& c) { c.image_dtype = DType::f32; }},
      {"rank 1 has images on the devices 9, where rank 0 has 0", [](EngineConfig& c) { c.resident_images.count = 9; }},
      {"rank 1 has input packing off", [](EngineConfig& c) { c.input_packing = InputPacking::off; }},
      {"rank 1 has normalization mean 0.5", [](EngineConfig& c) { c.normalization.mean[0] = 0.5F; }},
  };
  const Model model = random_model(3);
  const EngineConfig config = small_config(model, 12);
  EXPECT_EQ(describe_disagreement({fields_of(model, config), fields_of(random_model(3), config)}), "");
  for (const auto& [message, change] : changes) {
    EngineConfig changed = config;
    change(changed);
    const std::string found = describe_disagreement({fields_of(model, config), fields_of(model, changed)});
    EXPECT_NE(found.find(message), std::string::npos) << message << " is not in: " << found;
  }
}

TEST(PlanFields, ContainWhatDecidesTheBitsOfALeaf) {
  using Change = std::function<void(EngineConfig&, DeviceGroupOptions&)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"exact mode off, where rank 0 has on", [](EngineConfig& c, auto&) { c.scheme.split.leaves = 0; }},
      {"leaves 5, where rank 0 has 4", [](EngineConfig& c, auto&) { c.scheme.split.leaves = 5; }},
      {"threads of a leaf 2, where rank 0 has 1", [](EngineConfig& c, auto&) { c.leaf_threads = 2; }},
      {"leaves that share batch statistics 2, where rank 0 has 4",
       [](EngineConfig& c, auto&) { c.batch_norm_leaves = 2; }},
      {"workspace 65536, where rank 0 has planned", [](EngineConfig& c, auto&) { c.workspace_bytes = 65536; }},
      {"Winograd's algorithm allowed, where rank 0 has not allowed",
       [](EngineConfig&, DeviceGroupOptions& o) { o.winograd = true; }},
      {"TF32 allowed, where rank 0 has not allowed", [](EngineConfig&, DeviceGroupOptions& o) { o.tf32 = true; }},
  };
  EngineConfig config = small_config(random_model(3), 12);
  config.scheme.split.leaves = 4;
  config.workspace_bytes = std::nullopt;
  const auto fields = [](const EngineConfig& c, const DeviceGroupOptions& options) {
    return exact_fields(*DeviceGroup::planned(options), c);
  };
  const DeviceGroupOptions options{.devices = {DeviceId{Backend::cpu, 0}}};
  for (const auto& [message, change] : changes) {
    EngineConfig changed = config;
    DeviceGroupOptions with = options;
    change(changed, with);
    const std::string found = describe_disagreement({fields(config, options), fields(changed, with)});
    EXPECT_NE(found.find("rank 1 has " + message), std::string::npos) << message << " is not in: " << found;
  }
}

TEST(PlanFields, ContainLayersWithoutParameters) {
  const auto with_dropout = [](float p) { return planted_model(std::make_unique<Dropout>(p, 0)); };
  const Model half = with_dropout(0.5F), less = with_dropout(0.25F);
  const EngineConfig config = small_config(half, 12);
  EXPECT_EQ(describe_disagreement({fields_of(half, config), fields_of(less, config)}),
            "rank 1 has layer planted dropout(0.25), where rank 0 has dropout(0.5)");
}

}  // namespace
}  // namespace vitrine::test
