// SPDX-License-Identifier: Apache-2.0
// docs/examples/one_file.cpp, which shares no code with the engine, as an oracle of the engine.
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "nn/weights_file.h"
#include "tests/parallel/random_model.h"
#include "tests/parallel/rounding_agreement.h"
#include "tests/support/child_process.h"
#include "tests/support/expect_contains.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

namespace vitrine::test {
namespace {

constexpr int64_t kBatch = 13;  // leaves of one and of two samples
constexpr int kSteps = 20;

class OneFile : public ::testing::TestWithParam<const char*> {
 protected:
  std::string path(const std::string& name) const { return folder_.path(name); }

  static ChildResult run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), test::program_path("example_one_file"));
    return ChildProcess(arguments).wait();
  }

 private:
  TempFolder folder_;
};

/// The line of the output that begins with `start`.
std::string line_of(const std::string& output, const std::string& start) {
  const size_t begin = output.find(start);
  return begin == std::string::npos ? "" : output.substr(begin, output.find('\n', begin) - begin);
}

void write_numbers(const std::string& path, const std::vector<float>& numbers) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(numbers.data()), static_cast<std::streamsize>(4 * numbers.size()));
}

/// Weights as files have them, in PyTorch's layouts, one parameter after another.
std::vector<float> dense_weights(const FlatLayout& layout, std::span<const float> values, const std::string& scratch) {
  save_parameters(scratch, layout, values, BufferLayout(), BufferValues(), {});
  const std::map<std::string, HostTensor> tensors = read_safetensors(scratch);
  std::vector<float> numbers;
  for (const ParamSpec& spec : layout.specs()) {
    const auto* const first = reinterpret_cast<const float*>(tensors.at(spec.name).data.data());
    numbers.insert(numbers.end(), first, first + spec.shape.numel());
  }
  return numbers;
}

std::vector<float> read_numbers(const std::string& path) {
  const std::string bytes = content(path);
  std::vector<float> numbers(bytes.size() / 4);
  std::memcpy(numbers.data(), bytes.data(), 4 * numbers.size());
  return numbers;
}

/// Trains with the engine and writes its initial weights and the batches as files. Returns the final weights.
std::vector<float> train_engine(const Model& model, const std::string& weights, const std::string& data) {
  EngineConfig config = small_config(model, kBatch);
  config.optimizer = make_optimizer_config("adam", {}, {}, false, {});
  config.image_dtype = DType::f32;
  DeviceGroup group(test_group(2));
  Engine engine(model, group, config, {{kBatch}, {}});
  write_numbers(weights, dense_weights(engine.parameters().layout(), engine.parameters().values(), data));
  const int64_t h = model.height, w = model.width, c = model.channels;
  std::vector<float> numbers;
  for (uint32_t step = 0; step < kSteps; ++step) {
    const OwnedBatch batch = random_batch(model, kBatch, step, 0.0, DType::f32);
    for (int64_t n = 0; n < kBatch; ++n) {
      for (int64_t i = 0; i < c; ++i)
        for (int64_t p = 0; p < h * w; ++p)
          numbers.push_back(batch.memory->floats[static_cast<size_t>((n * h * w + p) * c + i)]);
      numbers.push_back(static_cast<float>(batch.memory->labels[static_cast<size_t>(n)]));
    }
    engine.train_step(batch.view());
    engine.take_step_results(true);
  }
  write_numbers(data, numbers);
  const std::vector<float> trained =
      dense_weights(engine.parameters().layout(), engine.parameters().values(), data + ".trained");
  engine.finish();
  return trained;
}

TEST_P(OneFile, AgreesWithTheEngineAfterTwentySteps) {
  ModelOptions options;
  options.image_size = 16;  // kImage of the file
  const Model model = make_model(GetParam(), options);
  const std::vector<float> expected = train_engine(model, path("initial"), path("data"));
  const ChildResult result =
      run({"--model", GetParam(), "--scheme", "zero1", "--devices", "3", "--batch", std::to_string(kBatch), "--weights",
           path("initial"), "--data", path("data"), "--save", path("trained")});
  ASSERT_EQ(result.exit_code, 0) << result.error;
  EXPECT_LT(relative_difference(read_numbers(path("trained")), expected), 1e-5);
  EXPECT_GT(relative_difference(read_numbers(path("initial")), expected), 1e-3) << "nothing was trained";
}

TEST_P(OneFile, HasOneHashOnAnyNumberOfDevicesUnderEveryScheme) {
  std::map<std::string, std::string> hashes;  // and a configuration that gave each
  const auto add = [&](std::vector<std::string> arguments, const std::string& name) {
    arguments.insert(arguments.end(), {"--model", GetParam(), "--batch", "13", "--steps", "5"});
    const ChildResult result = run(arguments);
    ASSERT_EQ(result.exit_code, 0) << result.error;
    hashes.emplace(line_of(result.output, "hash of the weights: "), name);
  };
  for (const char* const scheme : {"dp", "ddp", "zero1"}) {
    for (const char* const devices : {"1", "2", "3", "5", "8"})
      add({"--scheme", scheme, "--devices", devices}, std::string(scheme) + " on " + devices);
    add({"--scheme", scheme, "--devices", "3", "--split", "1,0,7"}, std::string(scheme) + " split 1,0,7");
  }
  EXPECT_EQ(hashes.size(), 1U) << ::testing::PrintToString(hashes);
  add({"--scheme", "ddp", "--devices", "2", "--leaves", "4"}, "4 leaves");
  EXPECT_EQ(hashes.size(), 2U) << "other leaves are other sums";
}

INSTANTIATE_TEST_SUITE_P(Models, OneFile, ::testing::Values("small-cnn", "lenet5", "mlp"), [](const auto& model) {
  return model.param == std::string("small-cnn") ? "cnn" : model.param;
});

using OneFileTable = OneFile;

TEST_F(OneFileTable, HasTheBytesOfTheSchemes) {
  const auto table_row = [](const std::string& scheme, const std::string& name) {
    const ChildResult result = run({"--model", "mlp", "--scheme", scheme, "--devices", "2", "--steps", "1"});
    std::string row = line_of(result.output, "  " + name + " ").substr(2);
    row.erase(std::unique(row.begin(), row.end(), [](char a, char b) { return a == ' ' && b == ' '; }), row.end());
    return row;
  };
  // 231,050 parameters; a batch of 32 images of 3x16x16, and its labels.
  EXPECT_EQ(table_row("dp", "Adam's moments"), "Adam's moments 1848400 0");
  EXPECT_EQ(table_row("ddp", "Adam's moments"), "Adam's moments 1848400 1848400");
  EXPECT_EQ(table_row("zero1", "Adam's moments"), "Adam's moments 924200 924200");
  EXPECT_EQ(table_row("dp", "batch"), "batch 98432 49152");
  EXPECT_EQ(table_row("ddp", "batch"), "batch 49216 49216");
  EXPECT_EQ(table_row("dp", "new parameters"), "new parameters 924200 0");
  EXPECT_EQ(table_row("ddp", "sums of all leaves"), "sums of all leaves 462100 462104");
  EXPECT_EQ(table_row("zero1", "new parameters"), "new parameters 462100 462100");
}

/// The figures of docs/read_in_an_afternoon.md.
TEST_F(OneFileTable, HasTheBytesThatItsGuideQuotes) {
  const auto bytes = [](std::vector<std::string> arguments, const std::string& name) {
    arguments.insert(arguments.end(), {"--devices", "3"});
    const std::string output = run(arguments).output;
    std::istringstream row(line_of(output, "  " + name + " ").substr(2 + name.size()));
    return std::vector<double>{std::istream_iterator<double>(row), {}};
  };
  const std::string guide = content(source_path("docs/read_in_an_afternoon.md"));
  const double reduction =
      bytes({"--scheme", "dp", "--split", "1,3,4"}, "reduction").at(0) / bytes({"--scheme", "dp"}, "reduction").at(0);
  expect_contains(guide, fmt::format("`reduction` falls by {:.0f} %", 100 * (1 - reduction)));
  const std::vector<double> sent = bytes({"--scheme", "ddp"}, "together");
  EXPECT_EQ(sent.at(1), sent.at(2));
  expect_contains(guide, fmt::format("two devices send {:.2f} MB in ten steps", 1e-6 * sent.at(1)));
  const double parameters = bytes({"--scheme", "ddp"}, "gradients").at(0) / 2;  // each has the sum of a subtree, too
  expect_contains(guide, fmt::format("{:.1f} MB in ten", 10 * 4.0 / 3.0 * parameters * 1e-6));
}

TEST_F(OneFileTable, IsRefusedForWrongInput) {
  EXPECT_EQ(run({"--devices", "0"}).error, "one_file: --devices 0: expected an integer from 1 to 64\n");
  EXPECT_EQ(run({"--devices", "2", "--split", "1,2"}).error,
            "one_file: --split: expected 2 numbers that add up to 8 leaves\n");
  EXPECT_EQ(run({"--model", "vgg"}).error, "one_file: --model vgg: expected small-cnn, lenet5 or mlp\n");
  EXPECT_EQ(run({"--lr", "0.1"}).error, "one_file: --lr: unknown flag, or a flag without a value\n");
  EXPECT_EQ(run({"--steps"}).error, "one_file: --steps: unknown flag, or a flag without a value\n");
  EXPECT_EQ(run({"--data", path("missing")}).exit_code, 1);
  write_numbers(path("short"), {3, 2, 2, 0.5F});
  expect_contains(run({"--data", path("short")}).error, "expected 768 pixels and a label for each sample");
  expect_contains(run({"--model", "mlp", "--weights", path("short")}).error, "expected 231050 parameters");
  write_numbers(path("label"), std::vector<float>(769, 10.0F));
  expect_contains(run({"--data", path("label")}).error, "a label is not the number of one of 10 classes");
}

}  // namespace
}  // namespace vitrine::test
