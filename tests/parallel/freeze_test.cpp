// SPDX-License-Identifier: Apache-2.0
// Frozen parameters: no gradients, no optimizer states, and the same training of the others.
#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "nn/parallel/plan/memory_plan.h"
#include "tests/parallel/random_model.h"

namespace vitrine::test::freeze_test {
namespace {

constexpr int64_t kBatch = 12;

/// Exact names of the parameters before the last `trained` ones, and of one that is far behind: *.bias of the last.
std::vector<std::string> names_to_freeze(const Model& model, size_t trained) {
  const std::vector<ParamSpec> specs = model.net->parameters();
  std::vector<std::string> names{specs.back().name};
  for (size_t i = 0; i + trained < specs.size(); ++i) names.push_back(specs[i].name);
  return names;
}

std::map<std::string, std::vector<float>> by_name(const FlatLayout& layout, const std::vector<float>& flat) {
  std::map<std::string, std::vector<float>> values;
  for (int i = 0; i < layout.size(); ++i) {
    const ParamSpec& spec = layout.specs()[static_cast<size_t>(i)];
    const auto begin = flat.begin() + layout.offset(i);
    values[spec.name] = {begin, begin + spec.shape.numel()};
  }
  return values;
}

struct Outcome {
  std::map<std::string, std::vector<float>> parameters, averages;
};

Outcome run(const Model& model, const EngineConfig& config) {
  Outcome outcome;
  train(model, 2, config, {.batches = {kBatch, kBatch, kBatch}, .seed = 70, .look = [&](Engine& engine) {
                             const FlatLayout& layout = engine.parameters().layout();
                             outcome = {by_name(layout, engine.parameters().values()),
                                        by_name(layout, engine.parameters().averages().values())};
                           }});
  return outcome;
}

/// A group without learning rate and weight decay trains the others to the same bits, if norms are not clipped.
EngineConfig standing_still(EngineConfig config, const std::vector<std::string>& names) {
  for (const std::string& name : names)
    config.parameter_groups.push_back({.pattern = name, .lr_factor = 0.0, .weight_decay = 0.0});
  return config;
}

TEST(Frozen, OtherParametersTrainAsIfTheFrozenOnesHadNoLearningRate) {
  for (const bool residual : {false, true}) {
    const Model reference = residual ? tiny_resnet() : random_model(3);
    const std::vector<std::string> names = names_to_freeze(reference, residual ? 9 : 3);
    const Model model = residual ? tiny_resnet() : random_model(3);
    model.net->freeze(names);
    for (const std::string& scheme : scheme_names()) {
      for (const DType compute : {DType::f32, DType::bf16}) {
        SCOPED_TRACE((residual ? "residual " : "plain ") + scheme + " " + dtype_name(compute));
        EngineConfig config = small_config(model, kBatch);
        config.scheme = scheme_preset(scheme);
        if (scheme == "balanced") config.scheme.split.gpu0 = 0;  // device 0 has no samples
        config.precision.compute = compute;
        config.accumulate = scheme == "ddp" ? 2 : 1;
        config.ema_decay = 0.75;
        config.bucket_bytes = config.first_bucket_bytes = 4096;
        const Outcome frozen = run(model, config);
        const Outcome expected = run(reference, standing_still(config, names));
        EXPECT_EQ(frozen.parameters, expected.parameters);
        for (const auto& [name, values] : expected.averages) {
          if (std::find(names.begin(), names.end(), name) == names.end()) {
            EXPECT_EQ(frozen.averages.at(name), values);
          }
        }
        EXPECT_EQ(frozen.averages.at(names.back()), frozen.parameters.at(names.back()));
      }
    }
  }
}

TEST(Frozen, PlansHoldNoGradientsAndStatesOfThem) {
  const Model all = make_model("alexnet", {.image_size = 63, .classes = 10});
  const Model head = make_model("alexnet", {.image_size = 63, .classes = 10});
  head.net->freeze({"features.*"});
  const auto bytes = [](const Model& model, Category category) {
    EngineConfig config = small_config(model, 4);
    config.optimizer = make_optimizer_config("adamw", {}, {}, false, {});
    DeviceGroup group(meta_group(1));
    return plan_memory(model, group, config, {{4}, {}})[0].peak_by_category[static_cast<size_t>(category)];
  };
  const FlatLayout layout(head.net->parameters(), 0);
  const int64_t frozen = (layout.parameter_elements() - layout.trained_elements()) * size_of(DType::f32);
  EXPECT_GT(frozen, 0);
  EXPECT_EQ(bytes(all, Category::parameters), bytes(head, Category::parameters));
  EXPECT_EQ(bytes(all, Category::gradients) - bytes(head, Category::gradients), frozen);
  EXPECT_EQ(bytes(all, Category::optimizer) - bytes(head, Category::optimizer), 2 * frozen);
  EXPECT_LT(bytes(head, Category::activations), bytes(all, Category::activations));
}

}  // namespace
}  // namespace vitrine::test::freeze_test
