// SPDX-License-Identifier: Apache-2.0
// Named models, precisions and the schemes of one GPU: steps that are replayed as CUDA graphs compute the bits of
// issued ones. Left out under sanitizers, where it takes minutes.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/parallel/graph_training.h"

namespace vitrine::test {
namespace {

/// A model in a size that suits the stand-ins.
struct Small {
  const char* name;
  int64_t image_size, samples;
  // Null: all. One for models with many parameters, of which a step takes seconds: together these cover every precision
  // and most schemes.
  const char *precision, *scheme;
};
constexpr Small kModels[] = {{"alexnet", 63, 2, "f32", "ddp"},
                             {"vgg16", 32, 2, "f32", "gpu0 reduction"},
                             {"resnet18", 32, 4, "bf16", "criterion"},
                             {"resnet50", 32, 4, "f16", "recomputation"},
                             {"resnet18-cifar", 8, 4, "tf32", "accumulation"},
                             {"small-cnn", 12, 4, nullptr, nullptr},
                             {"lenet5", 16, 4, nullptr, nullptr},
                             {"mlp", 8, 4, nullptr, nullptr},
                             {"wide-head", 5, 4, nullptr, "dp"}};

struct Arithmetic {
  const char* name;
  DType dtype;
  bool tf32;
};
constexpr Arithmetic kPrecisions[] = {
    {"f32", DType::f32, false}, {"tf32", DType::f32, true}, {"f16", DType::f16, false}, {"bf16", DType::bf16, false}};

using Change = void (*)(EngineConfig& config);
struct Way {
  const char* name;
  Change change;
};
const Way kSchemes[] = {
    {"ddp", [](EngineConfig&) {}},
    {"dp", [](EngineConfig& config) { config.scheme = scheme_preset("dp"); }},
    {"balanced",
     [](EngineConfig& config) {
       config.scheme = scheme_preset("balanced");
       config.scheme.split.gpu0 = config.batch_size;
     }},
    {"criterion", [](EngineConfig& config) { config.scheme = scheme_preset("criterion"); }},
    {"gpu0 reduction", [](EngineConfig& config) { config.scheme.reduce = ReducerKind::gpu0; }},
    {"accumulation", [](EngineConfig& config) { config.accumulate = 2; }},
    {"update in backward",
     [](EngineConfig& config) {
       config.precision.loss_scaling.kind = LossScaling::Kind::none;
       config.update_in_backward = true;
     }},
    {"recomputation", [](EngineConfig& config) { config.recompute_segments = 2; }},
};

Model make_small(const Small& small) {
  ModelOptions options{.image_size = small.image_size};
  if (std::string(small.name) == "wide-head") options.channels = 32, options.classes = 300;
  return make_model(small.name, options);
}

/// Positions in kModels and kPrecisions.
using Case = std::pair<size_t, size_t>;
std::vector<Case> cases() {
  std::vector<Case> all;
  for (size_t m = 0; m < std::size(kModels); ++m) {
    for (size_t p = 0; p < std::size(kPrecisions); ++p) {
      if (kModels[m].precision == nullptr || std::string(kModels[m].precision) == kPrecisions[p].name)
        all.emplace_back(m, p);
    }
  }
  return all;
}

class CudaGraphOf : public ::testing::TestWithParam<Case> {};

TEST_P(CudaGraphOf, ReplaysTheBits) {
  const Small& small = kModels[GetParam().first];
  const Arithmetic& precision = kPrecisions[GetParam().second];
  if ((precision.tf32 || precision.dtype == DType::bf16) && !has_bf16())
    GTEST_SKIP() << "the GPU has neither TF32 nor bf16";
  const Model model = make_small(small);
  DeviceGroupOptions options = test_group(1, false);
  options.memory_bytes = {int64_t{3} << 30};
  options.tf32 = precision.tf32;
  // The first two steps are issued, the next two captured and launched, and the last one is replayed.
  const Course course{.steps = 5, .short_step = -1, .evaluation_step = 2, .learning_rate = 1e-3};
  for (const Way& scheme : kSchemes) {
    if (small.scheme != nullptr && std::string(small.scheme) != scheme.name) continue;
    SCOPED_TRACE(scheme.name);
    EngineConfig config = with(small_config(model, small.samples), precision.dtype, "adamw");
    if (small.precision != nullptr)
      config.optimizer =
          make_optimizer_config("sgd", 0.05, {}, false, {});  // without momentum: the least memory and time
    config.image_dtype = model.channels == 3 ? DType::u8 : DType::f32;
    config.workspace_bytes = int64_t{32} << 20;
    config.precision.loss_scaling.scale = 8;
    scheme.change(config);
    EXPECT_EQ(expect_same_bits(model, config, options, course), 0) << "steps were skipped";
  }
}

INSTANTIATE_TEST_SUITE_P(NamedModels, CudaGraphOf, ::testing::ValuesIn(cases()), [](const auto& param) {
  std::string name = std::string(kModels[param.param.first].name) + "_" + kPrecisions[param.param.second].name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(CudaGraphOfNamedModels, CoversAll) {
  std::vector<std::string> names;
  for (const Small& small : kModels) names.emplace_back(small.name);
  std::vector<std::string> of_images = model_names();
  std::erase_if(of_images, [](const std::string& name) { return model_sequence_length(name) > 0; });
  EXPECT_EQ(names, of_images);
}

}  // namespace
}  // namespace vitrine::test
