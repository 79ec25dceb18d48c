// SPDX-License-Identifier: Apache-2.0
#include "nn/model.h"

#include <gtest/gtest.h>

#include "nn/parameter_store.h"
#include "runtime/error.h"

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
                "features.0.weight (64, 11, 11, 3)", "features.0.bias (64)", "features.3.weight (192, 5, 5, 64)", "features.3.bias (192)",
                "features.6.weight (384, 3, 3, 192)", "features.6.bias (384)", "features.8.weight (256, 3, 3, 384)", "features.8.bias (256)",
                "features.10.weight (256, 3, 3, 256)", "features.10.bias (256)", "classifier.1.weight (4096, 9216)", "classifier.1.bias (4096)",
                "classifier.4.weight (4096, 4096)", "classifier.4.bias (4096)", "classifier.6.weight (10, 4096)", "classifier.6.bias (10)"}));
  EXPECT_EQ(parameter_count(model), 57'044'810);
  EXPECT_EQ(parameter_count(make_model("alexnet", {.classes = 1000})), 61'100'840);
  EXPECT_EQ(model.input_shape(2), (Shape{2, 227, 227, 3}));
}

TEST(Models, TheOthersHaveTheirNamesAndCounts) {
  const Model small_cnn = make_model("small-cnn", {.image_size = 32});
  EXPECT_EQ(names_and_shapes(small_cnn),
            (std::vector<std::string>{"features.0.weight (32, 3, 3, 3)", "features.0.bias (32)", "features.3.weight (64, 3, 3, 32)",
                                      "features.3.bias (64)", "classifier.0.weight (128, 4096)", "classifier.0.bias (128)",
                                      "classifier.2.weight (10, 128)", "classifier.2.bias (10)"}));
  const Model lenet5 = make_model("lenet5", {.image_size = 28, .channels = 1});
  EXPECT_EQ(parameter_count(lenet5), 61'706);
  EXPECT_EQ(names_and_shapes(lenet5)[4], "fc1.weight (120, 400)");
  const Model mlp = make_model("mlp", {.image_size = 28, .channels = 1, .classes = 5});
  EXPECT_EQ(names_and_shapes(mlp),
            (std::vector<std::string>{"classifier.0.weight (256, 784)", "classifier.0.bias (256)", "classifier.2.weight (128, 256)",
                                      "classifier.2.bias (128)", "classifier.4.weight (5, 128)", "classifier.4.bias (5)"}));
}

TEST(Models, GiveLogitsForEveryClass) {
  for (const std::string& name : model_names()) {
    for (const int64_t size : {64, 96}) {
      const Model model = make_model(name, {.image_size = size, .channels = 2, .classes = 7});
      const Shape input = model.input_shape(3);
      EXPECT_EQ(model.net->output_shapes({&input, 1})[0], (Shape{3, 7})) << name;
    }
  }
}

TEST(Models, TheFirstLinearKnowsTheImageItFlattens) {
  for (const std::string& name : model_names()) {
    int flattened = 0;
    for (const ParamSpec& spec : make_model(name, {.image_size = 64}).net->parameters()) {
      if (spec.layout.kind != CheckpointLayout::Kind::linear_chw) continue;
      ++flattened;
      EXPECT_EQ(spec.layout.h * spec.layout.w * spec.layout.c, spec.shape[1]) << name;
    }
    EXPECT_EQ(flattened, 1) << name;
  }
}

TEST(Models, DropoutIsOverridden) {
  const auto describe = [](std::optional<float> p) { return make_model("alexnet", {.dropout = p}).net->describe(); };
  EXPECT_NE(describe({}).find("dropout(0.5)"), std::string::npos);
  EXPECT_NE(describe(0.25F).find("dropout(0.25)"), std::string::npos);
  EXPECT_NO_THROW(make_model("small-cnn", {.image_size = 32, .dropout = 0.0F}));
  EXPECT_THROW(make_model("small-cnn", {.image_size = 32, .dropout = 0.5F}), ConfigError);
}

TEST(Models, RefuseWhatCannotBe) {
  EXPECT_THROW(make_model("resnet", {}), ConfigError);
  EXPECT_THROW(make_model("small-cnn", {}), ConfigError);
  EXPECT_THROW(make_model("mlp", {.image_size = 8, .classes = 0}), ConfigError);
  try {
    make_model("alexnet", {.image_size = 32});
    FAIL() << "32x32 is too small for alexnet";
  } catch (const ShapeError& e) {
    EXPECT_NE(std::string(e.what()).find("alexnet"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace vitrine
