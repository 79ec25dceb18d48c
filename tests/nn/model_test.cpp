// SPDX-License-Identifier: Apache-2.0
#include "nn/model.h"

#include <cmath>

#include <gtest/gtest.h>

#include "nn/parameter_store.h"
#include "runtime/error.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine {
namespace {

std::vector<std::string> names_and_shapes(const Model& model) {
  std::vector<std::string> all;
  for (const ParamSpec& spec : model.net->parameters()) all.push_back(spec.name + " " + spec.shape.str());
  return all;
}

int64_t parameter_count(const Model& model) { return FlatLayout(model.net->parameters(), 0).parameter_count(); }

// torchvision.models.alexnet(num_classes=10).named_parameters(), convolution weights as (K, R, S, C).
TEST(Models, AlexNetHasTorchvisionsParameters) {
  const Model model = make_model("alexnet", {});
  EXPECT_EQ(names_and_shapes(model),
            (std::vector<std::string>{
                "features.0.weight (64, 11, 11, 3)", "features.0.bias (64)", "features.3.weight (192, 5, 5, 64)",
                "features.3.bias (192)", "features.6.weight (384, 3, 3, 192)", "features.6.bias (384)",
                "features.8.weight (256, 3, 3, 384)", "features.8.bias (256)", "features.10.weight (256, 3, 3, 256)",
                "features.10.bias (256)", "classifier.1.weight (4096, 9216)", "classifier.1.bias (4096)",
                "classifier.4.weight (4096, 4096)", "classifier.4.bias (4096)", "classifier.6.weight (10, 4096)",
                "classifier.6.bias (10)"}));
  EXPECT_EQ(parameter_count(model), 57'044'810);
  EXPECT_EQ(parameter_count(make_model("alexnet", {.classes = 1000})), 61'100'840);
  EXPECT_EQ(model.input_shape(2), (Shape{2, 227, 227, 3}));
}

// transformers.GPT2LMHeadModel(GPT2Config()).named_parameters(), Conv1D's weights as those of a Linear.
TEST(Models, Gpt2HasTransformersParameters) {
  const Model model = make_model("gpt2", {.sequence_length = 64});
  const std::vector<std::string> all = names_and_shapes(model);
  ASSERT_EQ(all.size(), 2 + 12 * 12 + 2U);
  EXPECT_EQ((std::vector<std::string>{all.begin(), all.begin() + 14}),
            (std::vector<std::string>{"wte.weight (50257, 768)", "wpe.weight (1024, 768)", "h.0.ln_1.weight (768)",
                                      "h.0.ln_1.bias (768)", "h.0.attn.c_attn.weight (2304, 768)",
                                      "h.0.attn.c_attn.bias (2304)", "h.0.attn.c_proj.weight (768, 768)",
                                      "h.0.attn.c_proj.bias (768)", "h.0.ln_2.weight (768)", "h.0.ln_2.bias (768)",
                                      "h.0.mlp.c_fc.weight (3072, 768)", "h.0.mlp.c_fc.bias (3072)",
                                      "h.0.mlp.c_proj.weight (768, 3072)", "h.0.mlp.c_proj.bias (768)"}));
  EXPECT_EQ(all.back(), "ln_f.bias (768)");
  EXPECT_EQ(parameter_count(model), 124'439'808);
  EXPECT_EQ(parameter_count(make_model("gpt2-medium", {})), 354'823'168);
  EXPECT_EQ(parameter_count(make_model("gpt2-large", {})), 774'030'080);
  EXPECT_EQ(parameter_count(make_model("gpt2-xl", {})), 1'557'611'200);
  EXPECT_EQ(model.input_shape(2), (Shape{2, 64}));
  EXPECT_EQ(model.logits_shape(2), (Shape{128, 50257}));
  EXPECT_EQ(model.sample_dtype(), DType::i32);
  for (const ParamSpec& spec : model.net->parameters()) {
    if (spec.shape.rank() == 1) continue;
    const bool ends_branch = spec.name.find("c_proj") != std::string::npos;
    EXPECT_EQ(spec.init.kind, Init::Kind::normal);
    EXPECT_FLOAT_EQ(spec.init.bound, ends_branch ? 0.02F / std::sqrt(24.0F) : 0.02F) << spec.name;
  }
}

TEST(Models, RefuseSequencesThatTheyDoNotTake) {
  expect_contains(error_of<ConfigError>([] { make_model("gpt2", {.sequence_length = 1025}); }),
                  ": gpt2 takes sequences of 2 to 1024 tokens");
  expect_contains(error_of<ConfigError>([] { make_model("mlp", {.image_size = 8, .sequence_length = 5}); }),
                  "mlp takes no tokens");
  expect_contains(error_of<ConfigError>([] { make_model("nano-gpt", {.image_size = 8}); }), "nano-gpt takes tokens");
}

// torchvision.models.vgg16(): names, counts and initialization.
TEST(Models, Vgg16HasTorchvisionsParameters) {
  const Model model = make_model("vgg16", {.classes = 1000});
  EXPECT_EQ(parameter_count(model), 138'357'544);
  EXPECT_EQ(model.input_shape(1), (Shape{1, 224, 224, 3}));
  std::vector<std::string> weights;
  for (const ParamSpec& spec : model.net->parameters()) {
    if (!spec.name.ends_with(".weight")) {
      EXPECT_EQ(spec.init.kind, Init::Kind::zeros) << spec.name;
      continue;
    }
    weights.push_back(spec.name.substr(0, spec.name.size() - 7));
    EXPECT_EQ(spec.init.kind, Init::Kind::normal) << spec.name;
    EXPECT_FLOAT_EQ(spec.init.bound,
                    spec.shape.rank() == 2 ? 0.01F : std::sqrt(2.0F / static_cast<float>(9 * spec.shape[0])))
        << spec.name;
  }
  EXPECT_EQ(weights, (std::vector<std::string>{"features.0", "features.2", "features.5", "features.7", "features.10",
                                               "features.12", "features.14", "features.17", "features.19",
                                               "features.21", "features.24", "features.26", "features.28",
                                               "classifier.0", "classifier.3", "classifier.6"}));
}

// torchvision.models.resnet18() and resnet50(): names, order, counts and initialization.
TEST(Models, ResNetsAreTorchvisions) {
  const Model resnet18 = make_model("resnet18", {.classes = 1000});
  EXPECT_EQ(parameter_count(resnet18), 11'689'512);
  EXPECT_EQ(resnet18.input_shape(1), (Shape{1, 224, 224, 3}));
  const std::vector<std::string> names = names_and_shapes(resnet18);
  ASSERT_EQ(names.size(), 62U);
  EXPECT_EQ((std::vector<std::string>{names.begin(), names.begin() + 6}),
            (std::vector<std::string>{"conv1.weight (64, 7, 7, 3)", "bn1.weight (64)", "bn1.bias (64)",
                                      "layer1.0.conv1.weight (64, 3, 3, 64)", "layer1.0.bn1.weight (64)",
                                      "layer1.0.bn1.bias (64)"}));
  EXPECT_EQ(names[21], "layer2.0.downsample.0.weight (128, 1, 1, 64)");
  EXPECT_EQ(names[60], "fc.weight (1000, 512)");
  std::vector<std::string> buffers;
  for (const BufferSpec& spec : resnet18.net->buffers()) {
    if (spec.saved) buffers.push_back(spec.name);
  }
  EXPECT_EQ(buffers.size() + resnet18.net->counters().size(), 60U);
  EXPECT_EQ(buffers[0], "bn1.running_mean");
  EXPECT_EQ(buffers.back(), "layer4.1.bn2.running_var");
  EXPECT_EQ(resnet18.net->counters().front(), "bn1.num_batches_tracked");
  for (const ParamSpec& spec : resnet18.net->parameters()) {
    if (spec.shape.rank() == 4) {
      EXPECT_EQ(spec.init.kind, Init::Kind::normal) << spec.name;
      EXPECT_FLOAT_EQ(spec.init.bound,
                      std::sqrt(2.0F / static_cast<float>(spec.shape[0] * spec.shape[1] * spec.shape[2])))
          << spec.name;
    } else if (!spec.name.starts_with("fc.")) {
      EXPECT_EQ(spec.init.kind, spec.name.ends_with("weight") ? Init::Kind::ones : Init::Kind::zeros) << spec.name;
    }
  }
  const Model resnet50 = make_model("resnet50", {.classes = 1000});
  EXPECT_EQ(parameter_count(resnet50), 25'557'032);
  EXPECT_EQ(resnet50.net->parameters().size(), 161U);
  EXPECT_EQ(resnet50.net->output_shape(resnet50.input_shape(2)), (Shape{2, 1000}));
  const Model cifar = make_model("resnet18-cifar", {.image_size = 32});
  EXPECT_EQ(parameter_count(cifar), 11'173'962);
  EXPECT_EQ(names_and_shapes(cifar)[0], "conv1.weight (64, 3, 3, 3)");
  EXPECT_EQ(names_and_shapes(cifar)[21], "layer2.0.downsample.0.weight (128, 1, 1, 64)");
}

TEST(Models, WideHeadHasATargetAtEveryPosition) {
  const Model model = make_model("wide-head", {});
  EXPECT_EQ(names_and_shapes(model), (std::vector<std::string>{"encoder.weight (512, 512)", "encoder.bias (512)",
                                                               "decoder.weight (40000, 512)", "decoder.bias (40000)"}));
  EXPECT_EQ(model.input_shape(2), (Shape{2, 250, 1, 512}));
  EXPECT_EQ(model.label_shape(2), (Shape{2, 250}));
  EXPECT_EQ(model.logits_shape(32).numel() * 4, 1'280'000'000);
}

TEST(Models, OtherModelsHaveTheirNamesAndCounts) {
  const Model small_cnn = make_model("small-cnn", {.image_size = 32});
  EXPECT_EQ(names_and_shapes(small_cnn),
            (std::vector<std::string>{"features.0.weight (32, 3, 3, 3)", "features.0.bias (32)",
                                      "features.3.weight (64, 3, 3, 32)", "features.3.bias (64)",
                                      "classifier.0.weight (128, 4096)", "classifier.0.bias (128)",
                                      "classifier.2.weight (10, 128)", "classifier.2.bias (10)"}));
  const Model lenet5 = make_model("lenet5", {.image_size = 28, .channels = 1});
  EXPECT_EQ(parameter_count(lenet5), 61'706);
  EXPECT_EQ(names_and_shapes(lenet5)[4], "fc1.weight (120, 400)");
  const Model mlp = make_model("mlp", {.image_size = 28, .channels = 1, .classes = 5});
  EXPECT_EQ(names_and_shapes(mlp),
            (std::vector<std::string>{"classifier.0.weight (256, 784)", "classifier.0.bias (256)",
                                      "classifier.2.weight (128, 256)", "classifier.2.bias (128)",
                                      "classifier.4.weight (5, 128)", "classifier.4.bias (5)"}));
}

TEST(Models, ReturnLogitsForEveryClass) {
  for (const std::string& name : model_names()) {
    if (model_sequence_length(name) > 0) continue;
    for (const int64_t size : {64, 96}) {
      const Model model = make_model(name, {.image_size = size, .channels = 2, .classes = 7});
      const Shape input = model.input_shape(3);
      EXPECT_EQ(model.net->output_shape(input).numel(), model.logits_shape(3).numel()) << name;
      EXPECT_EQ(model.logits_shape(3), (Shape{name == "wide-head" ? 3 * size : 3, 7}));
    }
  }
}

TEST(Models, TheFirstLinearStoresTheLayoutOfTheFlattenedImage) {
  for (const std::string& name : model_names()) {
    if (model_sequence_length(name) > 0) continue;
    int flattened = 0;
    for (const ParamSpec& spec : make_model(name, {.image_size = 64}).net->parameters()) {
      if (spec.layout.kind != CheckpointLayout::Kind::linear_chw) continue;
      ++flattened;
      EXPECT_EQ(spec.layout.h * spec.layout.w * spec.layout.c, spec.shape[1]) << name;
    }
    EXPECT_EQ(flattened, name == "wide-head" ? 0 : 1) << name;
  }
}

TEST(Models, DropoutCanBeOverridden) {
  const auto describe = [](std::optional<float> p) { return make_model("alexnet", {.dropout = p}).net->describe(); };
  expect_contains(describe({}), "dropout(0.5)");
  expect_contains(describe(0.25F), "dropout(0.25)");
  EXPECT_NO_THROW(make_model("small-cnn", {.image_size = 32, .dropout = 0.0F}));
  EXPECT_THROW(make_model("small-cnn", {.image_size = 32, .dropout = 0.5F}), ConfigError);
}

TEST(Models, RefuseInvalidOptions) {
  EXPECT_THROW(make_model("resnet", {}), ConfigError);
  EXPECT_THROW(make_model("small-cnn", {}), ConfigError);
  EXPECT_THROW(make_model("mlp", {.image_size = 8, .classes = 0}), ConfigError);
  expect_contains(error_of<ShapeError>([&] { make_model("alexnet", {.image_size = 32}); }), "alexnet");
}

}  // namespace
}  // namespace vitrine
