// SPDX-License-Identifier: Apache-2.0
#include "nn/weights_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "nn/layers/conv2d.h"
#include "nn/layers/flatten.h"
#include "nn/layers/linear.h"
#include "nn/layers/pool2d.h"
#include "nn/model.h"
#include "nn/resnet.h"
#include "runtime/error.h"
#include "tests/nn/file_fixture.h"
#include "tests/support/device_fixture.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tests/support/paths.h"

namespace vitrine::test {
namespace {

class WeightsFile : public FileTest {};

TEST_F(WeightsFile, EveryDtypeSurvivesARoundTrip) {
  std::map<std::string, HostTensor> tensors;
  uint64_t seed = 1;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i32, DType::u8}) {
    for (const Shape& shape : {Shape{}, Shape{7}, Shape{3, 0, 2}, Shape{2, 3, 1, 2, 2}}) {
      tensors[std::string(dtype_name(dtype)) + shape.str()] = tensor_of(shape, dtype, ++seed);
    }
  }
  write_safetensors(path(), tensors, {{"format", "pt"}, {"quote", "a \"b\" \n"}});
  const auto read = read_safetensors(path());
  ASSERT_EQ(read.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(read.at(name).shape, tensor.shape) << name;
    EXPECT_EQ(read.at(name).dtype, tensor.dtype) << name;
    EXPECT_EQ(read.at(name).data, tensor.data) << name;
  }
  write_safetensors(path(), {}, {});
  EXPECT_TRUE(read_safetensors(path()).empty());
}

TEST_F(WeightsFile, AFailedWriteKeepsTheOldFile) {
  write_safetensors(path(), {{"a", tensor_of({3}, DType::f32, 1)}}, {});
  const std::string before = content(path());
  HostTensor short_of_data = tensor_of({3}, DType::f32, 1);
  short_of_data.data.pop_back();
  EXPECT_THROW(write_safetensors(path(), {{"a", short_of_data}}, {}), DataError);
  EXPECT_THROW(write_safetensors(path(), {{"\xFF", tensor_of({1}, DType::u8, 1)}}, {}), DataError);
  EXPECT_EQ(content(path()), before);
  EXPECT_THROW(write_safetensors(path("absent/file"), {}, {}), DataError);
  std::filesystem::create_directory(folder_ / "directory");
  EXPECT_THROW(write_safetensors(path("directory"), {}, {}), DataError);          // fails at the rename
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 2);  // no temporary file remains
}

TEST_F(WeightsFile, EveryModelSurvivesARoundTrip) {
  for (const std::string name : {"small-cnn", "lenet5", "mlp"}) {
    const FlatLayout layout(make_model(name, {.image_size = 20}).net->parameters(), 64);
    std::vector<float> flat(static_cast<size_t>(layout.total_elements()));
    initialize(layout, 5, flat);
    save_parameters(path(), layout, flat, BufferLayout(), {}, {{"model", name}});
    std::vector<float> loaded(flat.size(), 0.0F);
    load_weights(path(), layout, loaded);
    EXPECT_EQ(loaded, flat) << name;
  }
}

/// A small residual network with buffers, on the host.
struct Residuals {
  Sequential net{resnet_parts({.blocks = {1, 1, 1, 1}, .width = 3, .small_images = true}, 1, 2)};
  FlatLayout layout{net.parameters(), 0};
  BufferLayout buffer_layout{net};
  std::vector<float> flat = random_floats(layout.total_elements(), 1);
  BufferValues buffers = buffer_layout.initial();

  Residuals() {
    int64_t number = int64_t{1} << 40;  // more than 32 bits
    for (int64_t& counter : buffers.counters) counter = ++number;
    for (const ParamSpec& spec : buffer_layout.saved().specs()) {
      const int i = static_cast<int>(&spec - buffer_layout.saved().specs().data());
      const std::vector<float> values = random_floats(spec.shape.numel(), static_cast<uint64_t>(i) + 2);
      std::copy(values.begin(), values.end(), buffers.values.begin() + buffer_layout.saved().offset(i));
    }
  }
  void save(const std::string& path) const { save_parameters(path, layout, flat, buffer_layout, buffers, {}); }
};

TEST_F(WeightsFile, BuffersSurviveARoundTripUnderPyTorchsNames) {
  const Residuals model;
  model.save(path());
  const auto tensors = read_safetensors(path());
  EXPECT_EQ(tensors.at("layer2.0.downsample.1.running_var").shape, (Shape{6}));
  EXPECT_EQ(tensors.at("layer4.0.bn2.num_batches_tracked").dtype, DType::i64);
  EXPECT_EQ(tensors.at("layer4.0.bn2.num_batches_tracked").shape, Shape{});
  std::vector<float> flat(model.flat.size());
  BufferValues buffers;
  load_parameters(path(), model.layout, flat, model.buffer_layout, buffers);
  EXPECT_EQ(buffers.counters, model.buffers.counters);
  EXPECT_EQ(buffers.values, model.buffers.values);
}

TEST_F(WeightsFile, APartialLoadTakesWhatFitsAndSaysWhatDoesNot) {
  const Residuals model;
  model.save(path());
  const Sequential other_head(resnet_parts({.blocks = {1, 1, 1, 1}, .width = 3, .small_images = true}, 1, 5));
  const FlatLayout layout(other_head.parameters(), 0);
  std::vector<float> flat(static_cast<size_t>(layout.total_elements()), 7.0F);
  BufferValues buffers;
  const auto load = [&](const LoadOptions& options) {
    return load_parameters(path(), layout, flat, model.buffer_layout, buffers, options);
  };
  expect_mentions(error_of<DataError>([&] { load({}); }),
                  {"fc.weight has shape (2, 24) in the file, expected (5, 24)"});
  const LoadedWeights loaded = load({.partial = true});
  EXPECT_EQ(loaded.parameters, layout.size() - 2);
  EXPECT_EQ(loaded.buffers, model.buffer_layout.saved().size());
  EXPECT_EQ(loaded.not_loaded, (std::vector<std::string>{"fc.weight: shape (2, 24) in the file, expected (5, 24)",
                                                         "fc.bias: shape (2) in the file, expected (5)"}));
  EXPECT_TRUE(loaded.unused.empty());
  EXPECT_TRUE(loaded.prefixes.empty());
  EXPECT_EQ(buffers.values, model.buffers.values);
  for (int i = 0; i < layout.size(); ++i) {
    const ParamSpec& spec = layout.specs()[static_cast<size_t>(i)];
    const float first = flat[static_cast<size_t>(layout.offset(i))];
    const bool is_head = spec.name.starts_with("fc.");
    EXPECT_EQ(first, is_head ? 7.0F : model.flat[static_cast<size_t>(model.layout.offset(i))]) << spec.name;
  }
}

HostTensor zeros(int64_t count) {
  return {.shape = {count}, .dtype = DType::f32, .data = std::vector<std::byte>(4 * static_cast<size_t>(count))};
}

TEST_F(WeightsFile, PrefixesOfWrappersAreLeftOut) {
  const Residuals model;
  model.save(path());
  const auto saved = read_safetensors(path());
  for (const std::string prefix : {"module.", "_orig_mod.", "transformer.", "_orig_mod.module."}) {
    SCOPED_TRACE(prefix);
    std::map<std::string, HostTensor> prefixed{{prefix + "extra", tensor_of({2}, DType::f32, 1)}};
    for (const auto& [name, tensor] : saved) prefixed[prefix + name] = tensor;
    write_safetensors(path(), prefixed, {});
    std::vector<float> flat(model.flat.size());
    BufferValues buffers;
    const LoadedWeights loaded = load_parameters(path(), model.layout, flat, model.buffer_layout, buffers);
    EXPECT_EQ(loaded.parameters, model.layout.size());
    EXPECT_EQ(loaded.unused, std::vector<std::string>{prefix + "extra"});
    EXPECT_EQ(loaded.prefixes, std::set<std::string>{prefix});
    EXPECT_EQ(buffers.counters, model.buffers.counters);
    EXPECT_EQ(buffers.values, model.buffers.values);
  }
}

TEST_F(WeightsFile, APrefixThatTheModelHasStays) {
  const FlatLayout layout({ParamSpec{"transformer.weight", Shape{2}, {}, {}}, ParamSpec{"head", Shape{3}, {}, {}}}, 0);
  std::vector<float> flat(static_cast<size_t>(layout.total_elements()));
  const auto load = [&](const std::map<std::string, HostTensor>& tensors) {
    write_safetensors(path(), tensors, {});
    return load_weights(path(), layout, flat);
  };
  EXPECT_TRUE(load({{"transformer.weight", zeros(2)}, {"head", zeros(3)}}).prefixes.empty());
  // Models of transformers with a head put the prefix before all other names.
  EXPECT_EQ(load({{"module.transformer.weight", zeros(2)}, {"head", zeros(3)}}).prefixes,
            std::set<std::string>{"module."});
  // A name as it stands comes first.
  const LoadedWeights both = load({{"transformer.weight", zeros(2)}, {"head", zeros(3)}, {"module.head", zeros(3)}});
  EXPECT_TRUE(both.prefixes.empty());
  EXPECT_EQ(both.unused, std::vector<std::string>{"module.head"});
  expect_mentions(error_of<DataError>([&] {
                    load({{"transformer.weight", zeros(2)}, {"_orig_mod.head", zeros(3)}, {"module.head", zeros(3)}});
                  }),
                  {"_orig_mod.head and module.head are both head without their prefixes"});
  expect_mentions(error_of<DataError>([&] {
                    load({{"model.transformer.weight", zeros(2)}, {"head", zeros(3)}});
                  }),
                  {"missing parameters: transformer.weight; unexpected parameters: model.transformer.weight"});
}

// torchvision's files from before PyTorch 0.4.1.
TEST_F(WeightsFile, MissingCountersAreZeroButMissingStatisticsAreRefused) {
  const Residuals model;
  model.save(path());
  auto tensors = read_safetensors(path());
  std::erase_if(tensors, [](const auto& entry) { return entry.first.ends_with("num_batches_tracked"); });
  write_safetensors(path(), tensors, {});
  std::vector<float> flat(model.flat.size());
  BufferValues buffers;
  load_parameters(path(), model.layout, flat, model.buffer_layout, buffers);
  EXPECT_EQ(buffers.counters, std::vector<int64_t>(model.buffers.counters.size()));
  EXPECT_EQ(buffers.values, model.buffers.values);
  tensors.erase("bn1.running_var");
  write_safetensors(path(), tensors, {});
  expect_mentions(
      error_of<DataError>([&] { load_parameters(path(), model.layout, flat, model.buffer_layout, buffers); }),
      {"missing", "bn1.running_var"});
}

TEST_F(WeightsFile, ACounterIsOneWholeNumberOfAnyDtype) {
  const Residuals model;
  model.save(path());
  auto tensors = read_safetensors(path());
  std::vector<float> flat(model.flat.size());
  BufferValues buffers;
  const auto load = [&](const auto& number, DType dtype, const Shape& shape) {
    const auto bytes = std::as_bytes(std::span(&number, 1));
    tensors["bn1.num_batches_tracked"] = {.shape = shape, .dtype = dtype, .data = {bytes.begin(), bytes.end()}};
    write_safetensors(path(), tensors, {});
    load_parameters(path(), model.layout, flat, model.buffer_layout, buffers);
    return buffers.counters.front();
  };
  ASSERT_EQ(model.buffer_layout.counters().front(), "bn1.num_batches_tracked");
  EXPECT_EQ(load(int32_t{1234}, DType::i32, {}), 1234);
  EXPECT_EQ(load(int64_t{1} << 40, DType::i64, {1}), int64_t{1} << 40);
  EXPECT_EQ(load(uint8_t{200}, DType::u8, {}), 200);
  EXPECT_EQ(load(1251.0F, DType::f32, {}), 1251);
  EXPECT_EQ(load(uint16_t{0x3F80}, DType::bf16, {}), 1);
  for (const float bad : {0.5F, -1.0F, std::numeric_limits<float>::infinity()}) {
    expect_mentions(error_of<DataError>([&] { load(bad, DType::f32, {}); }),
                    {"bn1.num_batches_tracked has the value", "expected one whole number"});
  }
  expect_mentions(error_of<DataError>([&] { load(int64_t{7}, DType::i32, {2}); }),
                  {"bn1.num_batches_tracked has shape (2), expected one whole number"});
}

/// A safetensors file with one F32 parameter "weight" (2) and another tensor.
std::string with_other_tensor(const std::string& name, const std::string& description) {
  return R"({"weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, ")" + name + "\": " + description + "}";
}

TEST_F(WeightsFile, TensorsThatNoParameterNeedsAreListedAndMayBeAnything) {
  const FlatLayout layout({ParamSpec{"weight", Shape{2}, {}, {}}}, 0);
  std::vector<float> flat(static_cast<size_t>(layout.total_elements()));
  struct Case {
    const char *name, *description, *unused;
  };
  for (const Case& c :
       {Case{"scaled_fp8", R"({"dtype": "F8_E4M3", "shape": [0], "data_offsets": [8, 8]})",
             "scaled_fp8: dtype F8_E4M3"},
        {"mask", R"({"dtype": "BOOL", "shape": [8], "data_offsets": [8, 16]})", "mask: dtype BOOL"},
        {"total_ops", R"({"dtype": "F64", "shape": [1], "data_offsets": [8, 16]})", "total_ops: dtype F64"},
        {"index", R"({"dtype": "I16", "shape": [4], "data_offsets": [8, 16]})", "index: dtype I16"},
        {"deep", R"({"dtype": "F32", "shape": [1,1,1,1,1,2], "data_offsets": [8, 16]})",
         "deep: more than 5 dimensions"},
        {"n_averaged", R"({"dtype": "I64", "shape": [], "data_offsets": [8, 16]})", "n_averaged"},
        {"", R"({"dtype": "F32", "shape": [2], "data_offsets": [8, 16]})", "''"}}) {
    SCOPED_TRACE(c.unused);
    const std::string header = with_other_tensor(c.name, c.description);
    const LoadedWeights loaded = load_weights(write_file(header, header.find("8, 8]") == std::string::npos ? 16 : 8),
                                              layout, flat, {.allow_non_finite = true});
    EXPECT_EQ(loaded.parameters, 1);
    EXPECT_EQ(loaded.unused, std::vector<std::string>{c.unused});
  }
  // Of an empty name, too, a message shows something.
  const FlatLayout other({ParamSpec{"bias", Shape{2}, {}, {}}}, 0);
  expect_mentions(error_of<DataError>([&] { load_weights(path(), other, flat); }),
                  {"missing parameters: bias; unexpected parameters: '' weight; no name fits"});
}

TEST_F(WeightsFile, AParameterOfAnotherDtypeIsRefusedWithWhatHelps) {
  const FlatLayout layout({ParamSpec{"weight", Shape{2}, {}, {}}}, 0);
  std::vector<float> flat(static_cast<size_t>(layout.total_elements()));
  const auto refusal_of = [&](const char* dtype, const char* shape, int bytes) {
    write_file(std::string(R"({"weight": {"dtype": ")") + dtype + R"(", "shape": )" + shape +
                   R"(, "data_offsets": [0, )" + std::to_string(bytes) + "]}}",
               static_cast<size_t>(bytes));
    return error_of<DataError>([&] { load_weights(path(), layout, flat); });
  };
  const std::string expected = " in the file, expected shape (2) of f32, f16 or bf16";
  expect_mentions(refusal_of("F64", "[2]", 16),
                  {"weight has dtype F64" + expected + "; convert the file with docs/examples/convert_weights.py"});
  const std::string of_integers = refusal_of("I16", "[2]", 4);
  expect_mentions(of_integers, {"weight has dtype I16" + expected});
  expect_lacks(of_integers, "convert");
  expect_mentions(refusal_of("F32", "[1,1,1,1,1,2]", 8), {"weight has more than 5 dimensions" + expected});
  expect_mentions(refusal_of("U8", "[2]", 2), {"weight has dtype u8 in the file, expected f32, f16 or bf16"});
}

TEST_F(WeightsFile, ValuesOf16BitsAreWidenedExactly) {
  const FlatLayout layout({ParamSpec{"weight", Shape{4}, {}, {}}}, 0);
  std::vector<float> flat(static_cast<size_t>(layout.total_elements()));
  const auto load = [&](DType dtype, const std::vector<uint16_t>& bits) {
    const auto bytes = std::as_bytes(std::span(bits));
    write_safetensors(path(), {{"weight", {.shape = {4}, .dtype = dtype, .data = {bytes.begin(), bytes.end()}}}}, {});
    load_weights(path(), layout, flat);
    return std::vector<float>(flat.begin(), flat.begin() + 4);
  };
  // One, the largest finite value, minus two, and the smallest denormal.
  EXPECT_EQ(load(DType::bf16, {0x3F80, 0x7F7F, 0xC000, 0x0001}),
            (std::vector<float>{1.0F, 0x1.FEp127F, -2.0F, 0x1p-133F}));
  EXPECT_EQ(load(DType::f16, {0x3C00, 0x7BFF, 0xC000, 0x0001}), (std::vector<float>{1.0F, 65504.0F, -2.0F, 0x1p-24F}));
  expect_mentions(error_of<DataError>([&] {
                    load(DType::bf16, {0x3F80, 0x7F80, 0, 0});
                  }),
                  {"weight is inf at index (1); 1 of its 4 values"});
}

TEST_F(WeightsFile, OnlyAPartialLoadLeavesParametersOutAndItRefusesWhatFitsNothing) {
  const FlatLayout layout({ParamSpec{"a.weight", Shape{2}, {}, {}}, ParamSpec{"b.weight", Shape{3}, {}, {}}}, 0);
  const HostTensor bytes = tensor_of({2}, DType::u8, 1);
  struct Case {
    std::map<std::string, HostTensor> tensors;
    const char *refusal, *partial_refusal;  // the latter is empty where a partial load succeeds
  };
  const Case cases[] = {
      {{{"module.a.weight", zeros(2)}}, "missing parameters: b.weight", ""},
      {{{"a.weight", zeros(2)}}, "missing parameters: b.weight", ""},
      {{{"a.weight", zeros(2)}, {"b.weight", zeros(5)}}, "b.weight has shape (5) in the file, expected (3)", ""},
      {{{"a.weight", zeros(5)}, {"b.weight", zeros(3)}}, "a.weight has shape (5)", "a.weight has shape (5)"},
      {{{"a.weight", bytes}, {"b.weight", zeros(3)}}, "a.weight has dtype u8", "a.weight has dtype u8"},
      {{{"b.weight", zeros(5)}}, "missing parameters: a.weight", "missing parameters: a.weight"},
      {{{"c.weight", zeros(2)}}, "no name fits: the weights are another model's", "no name fits"},
      {{}, "missing parameters: a.weight b.weight", "missing parameters: a.weight b.weight"},
  };
  std::vector<float> flat(static_cast<size_t>(layout.total_elements()));
  for (const Case& c : cases) {
    SCOPED_TRACE(c.refusal);
    write_safetensors(path(), c.tensors, {});
    expect_mentions(error_of<DataError>([&] { load_weights(path(), layout, flat); }), {c.refusal});
    const auto load = [&] { return load_weights(path(), layout, flat, {.partial = true}); };
    if (*c.partial_refusal != '\0') {
      expect_mentions(error_of<DataError>(load), {c.partial_refusal});
    } else {
      const LoadedWeights loaded = load();
      EXPECT_EQ(loaded.parameters, 1);
      ASSERT_EQ(loaded.not_loaded.size(), 1U);
      expect_contains(loaded.not_loaded[0], "b.weight: ");
    }
  }
}

// Readers that map a file, such as safetensors' own, need it.
TEST_F(WeightsFile, TensorsAreAlignedToTheirElements) {
  write_safetensors(
      path(),
      {{"a", tensor_of({3}, DType::u8, 1)}, {"b", tensor_of({1}, DType::f32, 2)}, {"c", tensor_of({}, DType::i64, 3)}},
      {});
  const std::string text = content(path());
  expect_contains(text, R"("c":{"data_offsets":[0,8])", R"("b":{"data_offsets":[8,12])",
                  R"("a":{"data_offsets":[12,15])");
  EXPECT_EQ(read_safetensors(path()).at("b").data, tensor_of({1}, DType::f32, 2).data);
}

// The network that record_torch.py builds.
Sequential tiny_net() {
  std::vector<Sequential::Part> parts;
  parts.push_back(
      {"features.0",
       std::make_unique<Conv2d>(Conv2dLayerConfig{
           .in_channels = 2, .out_channels = 3, .window = 3, .conv = {.stride = 1, .pad = 1, .relu = true}})});
  parts.push_back({"features.2", std::make_unique<MaxPool2d>(Pool2dConfig{2, 2, 0})});
  parts.push_back({"flatten", std::make_unique<Flatten>()});
  parts.push_back(
      {"classifier.0",
       std::make_unique<Linear>(LinearConfig{
           .in_features = 18, .out_features = 4, .weight_layout = {CheckpointLayout::Kind::linear_chw, 2, 3, 3}})});
  return Sequential(std::move(parts));
}

TEST_F(WeightsFile, AFileOfPyTorchGivesPyTorchsLogits) {
  std::ifstream file(test::source_path("tests/nn/data/tiny.json"));
  ASSERT_TRUE(file) << "tiny.json is missing; record_torch.py writes it";
  const nlohmann::json record = nlohmann::json::parse(file);
  const Sequential net = tiny_net();
  const FlatLayout layout(net.parameters(), 0);
  std::vector<float> flat(static_cast<size_t>(layout.total_elements()));
  load_weights(test::source_path("tests/nn/data/tiny.safetensors"), layout, flat);

  TestDevice device;
  device.ctx().reserve_workspace(int64_t{16} << 20);
  const Tensor weights = device.tensor({layout.total_elements()}, flat);
  const Tensor images = device.tensor({2, 4, 6, 2}, record.at("images_nhwc").get<std::vector<float>>());
  Tensor logits;
  net.forward_from(device.ctx(), layout.views(weights), images, logits, {.training = false});
  expect_close(device.values(ConstView(logits)), record.at("logits").get<std::vector<float>>(), 1e-5, 1e-6, "logits");

  save_parameters(path(), layout, flat, BufferLayout(), {}, {});
  const auto original = read_safetensors(test::source_path("tests/nn/data/tiny.safetensors"));
  const auto saved = read_safetensors(path());
  ASSERT_EQ(saved.size(), original.size());
  for (const auto& [name, tensor] : original) {
    EXPECT_EQ(saved.at(name).shape, tensor.shape) << name;
    EXPECT_EQ(saved.at(name).data, tensor.data) << name;
  }
}

TEST_F(WeightsFile, FilesOfAnotherModelAreRefusedWithAllNames) {
  const FlatLayout layout(tiny_net().parameters(), 0);
  std::vector<float> flat(static_cast<size_t>(layout.total_elements()), 2.0F);
  const std::vector<float> before = flat;
  const auto load = [&](std::map<std::string, HostTensor> tensors) {
    write_safetensors(path(), tensors, {});
    const std::string message = error_of<DataError>([&] { load_weights(path(), layout, flat); });
    EXPECT_EQ(flat, before);
    return message;
  };
  auto tensors = read_safetensors(test::source_path("tests/nn/data/tiny.safetensors"));
  auto renamed = tensors;
  renamed.erase("features.0.bias");
  renamed.erase("classifier.0.weight");
  renamed["fc.weight"] = tensors["classifier.0.weight"];
  expect_mentions(load(renamed), {"missing", "features.0.bias", "classifier.0.weight", "unexpected", "fc.weight"});
  auto reshaped = tensors;
  reshaped["features.0.weight"].shape = {3, 3, 3, 2};
  expect_mentions(load(reshaped), {"features.0.weight", "(3, 3, 3, 2)", "(3, 2, 3, 3)"});
  auto retyped = tensors;
  retyped["classifier.0.bias"] = tensor_of({4}, DType::i32, 1);
  expect_mentions(load(retyped), {"classifier.0.bias", "i32", "f16"});
  std::vector<float> too_short(3);
  EXPECT_THROW(load_weights(path(), layout, too_short), ShapeError);
}

TEST_F(WeightsFile, WeightsThatAreNotFiniteAreRefusedByNameAndIndex) {
  const FlatLayout layout(tiny_net().parameters(), 0);
  std::vector<float> flat(static_cast<size_t>(layout.total_elements()), 2.0F);
  auto tensors = read_safetensors(test::source_path("tests/nn/data/tiny.safetensors"));
  const auto set = [&](const std::string& name, size_t element, float value) {
    std::memcpy(tensors.at(name).data.data() + element * sizeof(float), &value, sizeof value);
  };
  set("classifier.0.bias", 3, -std::numeric_limits<float>::infinity());
  write_safetensors(path(), tensors, {});
  expect_mentions(error_of<DataError>([&] { load_weights(path(), layout, flat); }),
                  {"classifier.0.bias is -inf at index (3)", "1 of its 4 values"});
  // (2, 1, 0, 2) of (3, 2, 3, 3), in the file's order.
  set("features.0.weight", ((2 * 2 + 1) * 3 + 0) * 3 + 2, std::numeric_limits<float>::quiet_NaN());
  set("features.0.weight", 53, std::numeric_limits<float>::infinity());
  write_safetensors(path(), tensors, {});
  expect_mentions(error_of<DataError>([&] { load_weights(path(), layout, flat); }),
                  {path(), "features.0.weight is nan at index (2, 1, 0, 2)", "2 of its 54 values"});
  EXPECT_EQ(flat, std::vector<float>(flat.size(), 2.0F));
  load_weights(path(), layout, flat, {.allow_non_finite = true});
  EXPECT_EQ(std::count_if(flat.begin(), flat.end(), [](float v) { return !std::isfinite(v); }), 3);
}

TEST_F(WeightsFile, ThousandsOfUnexpectedNamesMakeAShortMessage) {
  const FlatLayout layout(tiny_net().parameters(), 0);
  std::vector<float> flat(static_cast<size_t>(layout.total_elements()));
  std::map<std::string, HostTensor> tensors;
  for (int i = 0; i < 5000; ++i) tensors[std::string(300, 'x') + std::to_string(i)] = tensor_of({1}, DType::u8, 1);
  write_safetensors(path(), tensors, {});
  const std::string message = error_of<DataError>([&] { load_weights(path(), layout, flat); });
  expect_mentions(message, {"missing parameters: features.0.weight", "unexpected parameters:", "and 4992 more"});
  EXPECT_LT(message.size(), 2048U);
}

TEST_F(WeightsFile, NpyFilesHaveNumPysHeader) {
  const std::vector<float> values = random_floats(6, 1);
  write_npy(path(), values, 2, 3);
  const std::string file = content(path());
  ASSERT_EQ(file.size() % 64, 24U);
  EXPECT_EQ(file.substr(0, 8), std::string("\x93NUMPY\x01\0", 8));
  const size_t header_bytes = static_cast<unsigned char>(file[8]) + 256U * static_cast<unsigned char>(file[9]);
  ASSERT_EQ(10 + header_bytes + 24, file.size());
  const std::string header = file.substr(10, header_bytes);
  EXPECT_EQ(header.substr(0, header.find('}') + 1), "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }");
  EXPECT_EQ(header.back(), '\n');
  EXPECT_EQ(file.substr(10 + header_bytes), std::string(reinterpret_cast<const char*>(values.data()), 24));
  EXPECT_THROW(write_npy(path(), values, 2, 2), DataError);
}

}  // namespace
}  // namespace vitrine::test
