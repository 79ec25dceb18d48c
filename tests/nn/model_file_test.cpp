// SPDX-License-Identifier: Apache-2.0
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "nn/gpt.h"
#include "nn/model.h"
#include "runtime/error.h"
#include "tests/data/temp_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

class ModelFile : public testing::Test {
 protected:
  Model read(const std::string& text) const {
    const std::string path = folder_.str() + "/net.json";
    std::ofstream(path) << text;
    return read_model_file(path);
  }
  /// A file with these layers, for images of 3 channels and 8x8 pixels.
  Model read_layers(const std::string& layers) const {
    return read(fmt::format(R"({{"input": [3, 8, 8], "layers": [{}]}})", layers));
  }
  std::string refusal(const std::string& text) const {
    return error_of<DataError>([&] { read(text); });
  }
  std::string refusal_of_layers(const std::string& layers) const {
    return refusal(fmt::format(R"({{"input": [3, 8, 8], "layers": [{}]}})", layers));
  }
  std::string path(const std::string& name) const { return folder_.str() + "/" + name; }

 private:
  TempFolder folder_;
};

constexpr const char* kEnd = R"(, {"type": "Flatten"}, {"type": "Linear", "out_features": 5})";

TEST_F(ModelFile, HasNamesShapesAndDefaultsOfPyTorch) {
  const Model model = read(R"({"name": "mini", "input": [1, 12, 10], "layers": [
      {"name": "features.0", "type": "Conv2d", "out_channels": 4, "kernel_size": [3, 3], "stride": 1, "padding": [1, 1], "in_channels": 1,
       "dilation": [1, 1], "groups": 1, "padding_mode": "zeros", "output_padding": [0, 0]},
      {"type": "AvgPool2d", "kernel_size": 2, "divisor_override": null}, {"type": "AdaptiveAvgPool2d", "output_size": [3, 2]},
      {"type": "GELU"}, {"type": "Dropout"}, {"type": "Flatten", "start_dim": 1, "end_dim": -1},
      {"type": "Linear", "out_features": 7, "bias": false}]})");
  EXPECT_EQ(model.name, "mini");
  EXPECT_EQ(model.input_shape(2), (Shape{2, 12, 10, 1}));
  EXPECT_EQ(model.classes, 7);
  EXPECT_EQ(model.net->describe(),
            "sequential(features.0: conv2d(1 -> 4, 3x3, stride 1, pad 1), 1: avg_pool2d(2x2, stride 2, pad 0), 2: "
            "adaptive_avg_pool2d(3x2), 3: gelu, "
            "4: dropout(0.5), 5: flatten, 6: linear(24 -> 7, no bias))");
  const auto parameters = model.net->parameters();
  ASSERT_EQ(parameters.size(), 3U);
  EXPECT_EQ(parameters[0].name, "features.0.weight");
  EXPECT_EQ(parameters[2].name, "6.weight");
  EXPECT_EQ(parameters[2].layout.kind, CheckpointLayout::Kind::linear_chw);
  EXPECT_EQ(read_layers(R"({"type": "Flatten"}, {"type": "Linear", "out_features": 5})").name, "net")
      << "the name of the file";
}

TEST_F(ModelFile, OfTokensIsAGptOfAnySize) {
  const Model model = read(R"({"name": "gpt", "input": [6], "layers": [
      {"name": "wte", "type": "Embedding", "num_embeddings": 11, "embedding_dim": 16, "std": 0.02},
      {"name": "wpe", "type": "Positions", "num_embeddings": 8, "std": 0.02},
      {"name": "drop", "type": "Dropout", "p": 0.1},
      {"name": "h.0", "type": "Sequential", "layers": [
        {"name": "", "type": "Residual", "layers": [
          {"name": "ln_1", "type": "LayerNorm"}, {"name": "attn.c_attn", "type": "Conv1D", "nf": 48},
          {"name": "attn", "type": "CausalSelfAttention", "num_heads": 2},
          {"name": "attn.c_proj", "type": "Conv1D", "nf": 16, "std": 0.0141421},
          {"name": "attn.resid_dropout", "type": "Dropout", "p": 0.1}]},
        {"name": "", "type": "Residual", "layers": [
          {"name": "ln_2", "type": "LayerNorm", "eps": 1e-5}, {"name": "mlp.c_fc", "type": "Conv1D", "nf": 64, "nx": 16},
          {"name": "mlp.act", "type": "GELU", "approximate": "tanh"},
          {"name": "mlp.c_proj", "type": "Conv1D", "nf": 16, "std": 0.0141421},
          {"name": "mlp.dropout", "type": "Dropout", "p": 0.1}]}]},
      {"name": "ln_f", "type": "LayerNorm"},
      {"name": "lm_head", "type": "Linear", "out_features": 11, "bias": false, "shared_weight": "wte.weight"}]})");
  EXPECT_EQ(model.sample_dtype(), DType::i32);
  EXPECT_EQ(model.logits_shape(2), (Shape{12, 11}));
  const Sequential expected(
      gpt_parts({.layers = 1, .width = 16, .heads = 2, .positions = 8, .vocabulary = 11, .dropout = 0.1F}));
  EXPECT_EQ(model.net->describe(), expected.describe());
  const std::vector<ParamSpec> specs = model.net->parameters(), wanted = expected.parameters();
  ASSERT_EQ(specs.size(), wanted.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(specs[i].name, wanted[i].name);
    EXPECT_EQ(specs[i].layout.kind, wanted[i].layout.kind);
    EXPECT_EQ(specs[i].init.kind, wanted[i].init.kind);
    EXPECT_NEAR(specs[i].init.bound, wanted[i].init.bound, 1e-7);
  }
}

TEST_F(ModelFile, MergesARectifierIntoTheLayerBeforeOrTheMaximumAfterIt) {
  const Model model =
      read_layers(R"({"type": "Conv2d", "out_channels": 4, "kernel_size": 3}, {"type": "ReLU", "inplace": true},
      {"type": "MaxPool2d", "kernel_size": 2}, {"type": "Conv2d", "out_channels": 4, "kernel_size": 1}, {"type": "ReLU"}, {"type": "BatchNorm2d"},
      {"type": "ReLU"}, {"type": "MaxPool2d", "kernel_size": 2}, {"type": "ReLU"}, {"type": "Flatten"}, {"type": "Linear", "out_features": 3},
      {"type": "ReLU"}, {"type": "Linear", "out_features": 2})");
  EXPECT_EQ(model.net->describe(),
            "sequential(0: conv2d(3 -> 4, 3x3, stride 1, pad 0), 2: max_pool2d(2x2, stride 2, pad 0) + relu, 3: "
            "conv2d(4 -> 4, 1x1, stride 1, pad 0) + "
            "relu, 5: batch_norm2d(4, eps 1e-05, momentum 0.1) + relu, 7: max_pool2d(2x2, stride 2, pad 0), 8: relu, "
            "9: flatten, 10: linear(4 -> 3) + "
            "relu, 12: linear(3 -> 2))");
}

// Without a Linear, whose weight would be permuted, the elements themselves are.
TEST_F(ModelFile, FlattensChannelsFirstWhereNoLinearFollows) {
  const auto flattens = [&](const std::string& end) {
    const Model model =
        read_layers(R"({"type": "Conv2d", "out_channels": 2, "kernel_size": 3}, {"type": "Flatten"})" + end);
    std::string found;
    for (const Sequential::Part& part : model.net->parts()) {
      if (part.layer->describe().starts_with("flatten")) found += part.layer->describe() + ";";
    }
    return found;
  };
  EXPECT_EQ(flattens(""), "flatten(channels first);");
  EXPECT_EQ(flattens(R"(, {"type": "GELU"}, {"type": "Dropout"}, {"type": "Flatten"}, {"type": "ReLU"})"),
            "flatten(channels first);flatten;");
  EXPECT_EQ(flattens(R"(, {"type": "ReLU"}, {"type": "Linear", "out_features": 3}, {"type": "Flatten"})"),
            "flatten;flatten;");
}

TEST_F(ModelFile, RefusesWhatItDoesNotHaveByName) {
  const auto expect = [&](const std::string& layers, const std::string& part) {
    const std::string text = refusal_of_layers(layers + kEnd);
    expect_contains(text, part, "net.json: layer 0 (");
  };
  expect(R"({"type": "LSTM", "hidden_size": 3})",
         "layer type 'LSTM' is not supported; supported types are AdaptiveAvgPool2d, AvgPool2d");
  expect(R"({"type": "Conv2d", "out_channels": 4, "kernel_size": 3, "groups": 3})",
         "groups is 3, but only 1 is supported");
  expect(R"({"type": "Conv2d", "out_channels": 4, "kernel_size": 3, "dilation": [1, 2]})",
         "dilation is [1,2], but only 1");
  expect(R"({"type": "Conv2d", "out_channels": 4, "kernel_size": [3, 5]})",
         "kernel_size is [3,5], but windows, strides and padding are square");
  expect(R"({"type": "Conv2d", "out_channels": 4, "kernel_size": 3, "padding": "same"})",
         "padding is \"same\", expected an integer from 0");
  expect(R"({"type": "Conv2d", "out_channels": 4})", "kernel_size is missing");
  expect(R"({"type": "Conv2d", "out_channels": 0, "kernel_size": 3})", "out_channels is 0");
  expect(R"({"type": "Conv2d", "out_channels": 1e3, "kernel_size": 3})", "out_channels is 1000.0");
  expect(R"({"type": "Conv2d", "out_channels": 18446744073709551615, "kernel_size": 3})",
         "out_channels is 18446744073709551615");
  expect(R"({"type": "Conv2d", "out_channels": 4, "kernel_size": 3, "in_channels": 4})",
         "in_channels is 4, but its input has 3");
  expect(R"({"type": "Conv2d", "out_channels": 4, "kernel_size": 3, "kernal": 3})", "unknown setting 'kernal'");
  expect(R"({"type": "Conv2d", "out_channels": 4, "kernel_size": 9})", "(1, 8, 8, 3)");
  expect(R"({"type": "Conv2d", "out_channels": 16777216, "kernel_size": 16777216})", "its weight has");
  expect(R"({"type": "Conv2d", "out_channels": 16777216, "kernel_size": 1, "padding": 16777216})",
         "has more elements than 64 bits can count");
  expect(R"({"type": "BatchNorm2d", "affine": false})", "affine is false");
  expect(R"({"type": "BatchNorm2d", "eps": 0})", "eps is 0");
  expect(R"({"type": "BatchNorm2d", "momentum": null})", "momentum is null, expected a number from 0 to 1");
  expect(R"({"type": "MaxPool2d", "kernel_size": 2, "ceil_mode": true})", "ceil_mode is true");
  expect(R"({"type": "MaxPool2d", "kernel_size": 2, "padding": 2})", "pad");
  expect(R"({"type": "GELU", "approximate": "sigmoid"})", "approximate is \"sigmoid\"");
  expect(R"({"type": "Dropout", "p": 1})", "p is 1");
  expect(R"({"type": "Linear", "out_features": 4})", "Linear needs a Flatten before it");
  expect(R"({"type": "Flatten", "start_dim": 0})", "start_dim is 0");
}

TEST_F(ModelFile, RefusesFilesThatAreNoModel) {
  const auto expect = [&](const std::string& text, const std::string& part) {
    const std::string message = refusal(text);
    expect_contains(message, part);
    EXPECT_LT(message.size(), 2000U);
  };
  expect("", "it is not JSON: line 1, column 1: found the end, expected a value");
  expect("[]", "expected an object with the keys 'input' and 'layers'");
  expect(R"({"input": [3, 8, 8]})", "'layers' is missing");
  expect(R"({"input": [3, 8, 8], "layers": []})", "layers must be a list of 1 to 10000 layers");
  expect(R"({"input": [3, 8, 8], "layers": [{}]})", "layer 0 has no type");
  expect(R"({"input": [3, 8, 8], "layers": [[]], "version": 3})", "'version' is unknown");
  expect(R"({"input": [5, 8, 8], "layers": []})", "input is [5,8,8]");
  expect(R"({"input": [3, 8], "layers": []})", "input is [3,8]");
  expect(R"({"input": [3, 8, -1], "layers": []})", "input is [3,8,-1]");
  expect(R"({"input": [3, 8, 8], "layers": [{"type": "Flatten"}]})", "no layer has parameters");
  expect(R"({"input": [3, 8, 8], "layers": [{"type": "Conv2d", "out_channels": 4, "kernel_size": 3}]})",
         "the output has shape (1, 6, 6, 4)");
  expect(R"({"input": [3, 8, 8], "name": "a/b", "layers": [{"type": "Flatten"}]})", "name is \"a/b\"");
  expect(R"({"input": [3, 8, 8], "layers": [{"type": "Flatten", "name": "\u001b[31m"}]})", "layer 0: name is");
  expect(
      R"({"input": [3, 8, 8], "layers": [{"type": "Flatten", "name": "a"}, {"type": "Linear", "out_features": 2, "name": "a"}]})",
      "a");
  expect(R"({"input": [3, 8, 8], "input": [1, 8, 8], "layers": []})", "an object has the key 'input' twice");
  expect(R"({"input": [3, 8, 8], "layers": [{"type": "Flatten", "type": "ReLU"}]})", "has the key 'type' twice");
  expect(std::string(100'000, '['), "net.json");
  expect("{\"input\": \"" + std::string(100'000, 'x') + "\", \"layers\": []}", "xxx...");
  EXPECT_THROW(read_model_file(path("absent.json")), DataError);
  EXPECT_THROW(read_model_file("/"), DataError);
}

}  // namespace
}  // namespace vitrine::test
