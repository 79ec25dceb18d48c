// SPDX-License-Identifier: Apache-2.0
#include "nn/checkpoint.h"

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "nn/layers/conv2d.h"
#include "nn/layers/flatten.h"
#include "nn/layers/linear.h"
#include "nn/layers/pool2d.h"
#include "nn/model.h"
#include "runtime/error.h"
#include "tests/support/device_fixture.h"

namespace vitrine::test {
namespace {

namespace fs = std::filesystem;

// A folder of its own for each test, removed afterwards.
class Checkpoint : public ::testing::Test {
 protected:
  Checkpoint() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / (std::string("vitrine_") + info->name() + "_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  ~Checkpoint() override { fs::remove_all(folder_); }

  std::string path(const std::string& name = "file") const { return (folder_ / name).string(); }
  std::string write(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary) << bytes;
    return path();
  }
  // A file of this header and so many bytes of data.
  std::string write_file(const std::string& header, size_t data_bytes) const {
    const auto size = std::bit_cast<std::array<char, 8>>(static_cast<uint64_t>(header.size()));
    return write(std::string(size.data(), size.size()) + header + std::string(data_bytes, 'x'));
  }

  fs::path folder_;
};

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

HostTensor tensor_of(const Shape& shape, DType dtype, uint64_t seed) {
  const auto bytes = random_integers<uint8_t>(shape.numel() * size_of(dtype), seed, 0, 255);
  HostTensor tensor{shape, dtype, std::vector<std::byte>(bytes.size())};
  if (!bytes.empty()) std::memcpy(tensor.data.data(), bytes.data(), bytes.size());
  return tensor;
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const DataError& e) {
    return e.what();
  }
  return "";
}

void expect_mentions(const std::string& message, const std::vector<std::string>& words) {
  for (const std::string& word : words) EXPECT_NE(message.find(word), std::string::npos) << "'" << word << "' in: " << message;
}

TEST_F(Checkpoint, EveryDtypeSurvivesARoundTrip) {
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

TEST_F(Checkpoint, MalformedFilesAreRefusedWithTheReason) {
  struct Case {
    const char* header;
    size_t data_bytes;
    const char* reason;
  };
  const Case cases[] = {
      {"", 0, "not JSON"},
      {"{", 0, "not JSON"},
      {"[]", 0, "expected an object"},
      {"{\"a\": 1}", 0, "expected an object"},
      {R"({"a": {"shape": [1], "data_offsets": [0, 4]}})", 4, "no dtype"},
      {R"({"a": {"dtype": 5, "shape": [1], "data_offsets": [0, 4]}})", 4, "no dtype"},
      {R"({"a": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}})", 8, "I64"},
      {R"({"a": {"dtype": "F32", "data_offsets": [0, 4]}})", 4, "no list of shape"},
      {R"({"a": {"dtype": "F32", "shape": 1, "data_offsets": [0, 4]}})", 4, "no list of shape"},
      {R"({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}})", 4, "-1"},
      {R"({"a": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]}})", 4, "1.5"},
      {R"({"a": {"dtype": "F32", "shape": [1,1,1,1,1,1], "data_offsets": [0, 4]}})", 4, "6 dimensions"},
      {R"({"a": {"dtype": "F32", "shape": [1]}})", 4, "no list of data_offsets"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}})", 4, "data_offsets"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}})", 4, "rising"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", 3, "data_offsets"},
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}})", 4, "does not fit"},
      {R"({"a": {"dtype": "F32", "shape": [4611686018427387904, 4], "data_offsets": [0, 0]}})", 0, "does not fit"},
      {R"({"a": {"dtype": "F32", "shape": [18446744073709551615], "data_offsets": [0, 4]}})", 4, "whole numbers"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", 5, "follow the last"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})", 8, "hole"},
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}})", 12,
       "overlaps"},
      {R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", 4, "twice"},
      {R"({"a": {"dtype": "F32", "shape": [1], "shape": [1], "data_offsets": [0, 4]}})", 4, "twice"},
      {R"({"__metadata__": {"a": 1}})", 0, "__metadata__"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.header);
    const std::string file = write_file(c.header, c.data_bytes);
    expect_mentions(message_of([&] { read_safetensors(file); }), {file, "offset", c.reason});
  }
}

TEST_F(Checkpoint, TruncatedFilesAreRefusedAtEveryLength) {
  write_safetensors(path(), {{"a", tensor_of({3}, DType::f32, 1)}, {"b", tensor_of({5}, DType::u8, 2)}}, {});
  const std::string whole = content(path());
  for (size_t length = 0; length < whole.size(); ++length) {
    write(whole.substr(0, length));
    EXPECT_THROW(read_safetensors(path()), DataError) << length << " of " << whole.size() << " bytes";
  }
  write(std::string(8, '\xFF') + whole);
  expect_mentions(message_of([&] { read_safetensors(path()); }), {"offset 0", "18446744073709551615"});
  EXPECT_THROW(read_safetensors(path("absent")), DataError);
  EXPECT_THROW(read_safetensors(folder_.string()), DataError);
}

TEST_F(Checkpoint, AFailedWriteLeavesTheOldFileAlone) {
  write_safetensors(path(), {{"a", tensor_of({3}, DType::f32, 1)}}, {});
  const std::string before = content(path());
  HostTensor short_of_data = tensor_of({3}, DType::f32, 1);
  short_of_data.data.pop_back();
  EXPECT_THROW(write_safetensors(path(), {{"a", short_of_data}}, {}), DataError);
  EXPECT_THROW(write_safetensors(path(), {{"\xFF", tensor_of({1}, DType::u8, 1)}}, {}), DataError);
  EXPECT_EQ(content(path()), before);
  EXPECT_THROW(write_safetensors(path("absent/file"), {}, {}), DataError);
  fs::create_directory(folder_ / "directory");
  EXPECT_THROW(write_safetensors(path("directory"), {}, {}), DataError);  // fails at the rename
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 2);       // no temporary file is left
}

TEST_F(Checkpoint, EveryModelSurvivesARoundTrip) {
  for (const std::string name : {"small-cnn", "lenet5", "mlp"}) {
    const FlatLayout layout(make_model(name, {.image_size = 20}).net->parameters(), 64);
    std::vector<float> flat(static_cast<size_t>(layout.total_elements()));
    initialize(layout, 5, flat);
    save_parameters(path(), layout, flat, {{"model", name}});
    std::vector<float> loaded(flat.size(), 0.0F);
    load_parameters(path(), layout, loaded);
    EXPECT_EQ(loaded, flat) << name;
  }
}

// The network that record_torch.py builds.
Sequential tiny_net() {
  std::vector<Sequential::Part> parts;
  parts.push_back({"features.0", std::make_unique<Conv2d>(Conv2dLayerConfig{
                                     .in_channels = 2, .out_channels = 3, .window = 3, .conv = {.stride = 1, .pad = 1, .relu = true}})});
  parts.push_back({"features.2", std::make_unique<MaxPool2d>(Pool2dConfig{2, 2, 0})});
  parts.push_back({"flatten", std::make_unique<Flatten>()});
  parts.push_back({"classifier.0", std::make_unique<Linear>(LinearConfig{
                                       .in_features = 18, .out_features = 4, .weight_layout = {CheckpointLayout::Kind::linear_chw, 2, 3, 3}})});
  return Sequential(std::move(parts));
}

TEST_F(Checkpoint, AFileThatPyTorchWroteGivesPyTorchsLogits) {
  std::ifstream file(VITRINE_TEST_DATA "/tiny.json");
  ASSERT_TRUE(file) << "tiny.json is missing; record_torch.py writes it";
  const nlohmann::json record = nlohmann::json::parse(file);
  const Sequential net = tiny_net();
  const FlatLayout layout(net.parameters(), 0);
  std::vector<float> flat(static_cast<size_t>(layout.total_elements()));
  load_parameters(VITRINE_TEST_DATA "/tiny.safetensors", layout, flat);

  TestDevice device;
  device.ctx().reserve_workspace(int64_t{16} << 20);
  const Tensor weights = device.tensor({layout.total_elements()}, flat);
  const Tensor images = device.tensor({2, 4, 6, 2}, record.at("images_nhwc").get<std::vector<float>>());
  Tensor logits;
  net.forward_from(device.ctx(), layout.views(weights), images, logits, {.training = false});
  expect_close(device.values(ConstView(logits)), record.at("logits").get<std::vector<float>>(), 1e-5, 1e-6, "logits");

  save_parameters(path(), layout, flat, {});
  const auto original = read_safetensors(VITRINE_TEST_DATA "/tiny.safetensors");
  const auto saved = read_safetensors(path());
  ASSERT_EQ(saved.size(), original.size());
  for (const auto& [name, tensor] : original) {
    EXPECT_EQ(saved.at(name).shape, tensor.shape) << name;
    EXPECT_EQ(saved.at(name).data, tensor.data) << name;
  }
}

TEST_F(Checkpoint, FilesOfAnotherModelAreRefusedWithAllNames) {
  const FlatLayout layout(tiny_net().parameters(), 0);
  std::vector<float> flat(static_cast<size_t>(layout.total_elements()), 2.0F);
  const std::vector<float> before = flat;
  const auto load = [&](std::map<std::string, HostTensor> tensors) {
    write_safetensors(path(), tensors, {});
    const std::string message = message_of([&] { load_parameters(path(), layout, flat); });
    EXPECT_EQ(flat, before);
    return message;
  };
  auto tensors = read_safetensors(VITRINE_TEST_DATA "/tiny.safetensors");
  auto renamed = tensors;
  renamed.erase("features.0.bias");
  renamed.erase("classifier.0.weight");
  renamed["fc.weight"] = tensors["classifier.0.weight"];
  expect_mentions(load(renamed), {"missing", "features.0.bias", "classifier.0.weight", "unexpected", "fc.weight"});
  auto reshaped = tensors;
  reshaped["features.0.weight"].shape = {3, 3, 3, 2};
  expect_mentions(load(reshaped), {"features.0.weight", "(3, 3, 3, 2)", "(3, 2, 3, 3)"});
  auto retyped = tensors;
  retyped["classifier.0.bias"] = tensor_of({4}, DType::f16, 1);
  expect_mentions(load(retyped), {"classifier.0.bias", "f16"});
  std::vector<float> too_short(3);
  EXPECT_THROW(load_parameters(path(), layout, too_short), ShapeError);
}

TEST_F(Checkpoint, NpyHasNumPysHeader) {
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
  EXPECT_EQ(std::memcmp(file.data() + 10 + header_bytes, values.data(), 24), 0);
  EXPECT_THROW(write_npy(path(), values, 2, 2), DataError);
}

}  // namespace
}  // namespace vitrine::test
