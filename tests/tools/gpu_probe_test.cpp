// SPDX-License-Identifier: Apache-2.0
// The program tries what is on before it uses a GPU, and turns off what fails.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/data/temp_folder.h"
#include "tests/support/expect_contains.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test {
namespace {

using Json = nlohmann::ordered_json;

class GpuProbe : public ::testing::Test {
 protected:
  Json json_of(const Arguments& arguments, const std::vector<std::string>& environment) {
    std::vector<std::string> all = environment;
    all.push_back("XDG_CACHE_HOME=" + cache_.str());
    const ChildResult result =
        ChildProcess(vitrine_command(with(arguments, {"--json"})), ChildProcess::Streams::pipes, all).wait();
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return Json::parse(result.output);
  }
  /// Builds that check the order of operations in every run would turn graphs off.
  Json train(const std::vector<std::string>& environment = {}) {
    return json_of({"train", "--model", "lenet5", "--image-size", "12", "--data", "synthetic:60", "--batch-size", "20",
                    "--no-eval", "--epochs", "2", "--check-order=false", "--devices", devices_},
                   environment);
  }
  std::string state(const Json& run) { return run["cuda_graphs"]["state"].get<std::string>(); }
  std::vector<double> losses(const Json& run) {
    std::vector<double> values;
    for (const Json& epoch : run["epochs"]) values.push_back(epoch["train_loss"].get<double>());
    EXPECT_EQ(values.size(), 2U);
    return values;
  }
  std::string feature(const Json& info, const char* variable) {
    return info["cuda"]["features"][variable].get<std::string>();
  }
  /// Probes that have passed.
  int64_t notes() {
    int64_t count = 0;
    for (const auto& file : std::filesystem::directory_iterator(cache_.path() / "vitrine")) {
      std::string text;
      std::getline(std::ifstream(file.path()), text);
      count += text.starts_with("failed: ") ? 0 : 1;
    }
    return count;
  }

  TempFolder cache_;
  std::string devices_ = "cuda:0";
};

TEST_F(GpuProbe, IsNotedOncePassed) {
  const Json first = train();
  EXPECT_EQ(state(first).substr(0, 26), "after two steps of a shape");
  EXPECT_EQ(notes(), 2) << "cuDNN and graphs";
  // What has passed is not tried again, so that training finds the failure.
  const Json second = train({"VITRINE_STANDIN_FAIL_CAPTURE=5"});
  expect_contains(state(second), "off since step 3: a step could not be captured as a CUDA graph: ");
  EXPECT_EQ(second["cuda_graphs"]["issued_failed"], 4);
  EXPECT_EQ(losses(second), losses(first));
}

TEST_F(GpuProbe, TurnsOffWhatFails) {
  const Json failed = train({"VITRINE_STANDIN_FAIL_CAPTURE=5"});
  expect_contains(state(failed), "off: the probe of cuda:0 failed: ");
  EXPECT_EQ(notes(), 1) << "cuDNN";
  const Json info = json_of({"info"}, {"VITRINE_STANDIN_FAIL_CAPTURE=5"});
  expect_contains(info["cuda"]["features"]["VITRINE_CUDA_GRAPHS"], "the probe of cuda:0 failed: ");
}

TEST_F(GpuProbe, ACudnnThatEndsTheProcessIsOff) {
  const std::vector<std::string> aborts = {"VITRINE_STANDIN_FAULT=cudnn"};
  EXPECT_EQ(losses(train(aborts)), losses(train({"VITRINE_CUDNN=off"})));
  expect_contains(feature(json_of({"info"}, aborts), "VITRINE_CUDNN"),
                  "the probe of cuda:0 failed: the probe was ended by signal 6");
}

TEST_F(GpuProbe, ACudnnWithoutItsCublasltIsNotUsed) {
  const Json info = json_of({"info"}, {"VITRINE_STANDIN_FAULT=cuda77"});
  expect_contains(info.dump(), "cuDNN is the one for CUDA 77: cuBLASLt cannot be loaded: libcublasLt.so.77");
}

TEST_F(GpuProbe, TriesTheGpusOfTheRunOnly) {
  devices_ = "cuda:1";
  const std::string text = state(train({"VITRINE_STANDIN_FAULT=taken"}));
  EXPECT_EQ(text.find("the probe"), std::string::npos) << text;
}

TEST_F(GpuProbe, GarbledCopiesBetweenPeersTurnTheirAccessOff) {
  const std::vector<std::string> garbled = {"VITRINE_STANDIN_FAULT=garbled"};
  const Json info = json_of({"info"}, garbled);
  expect_contains(feature(info, "VITRINE_PEER_ACCESS"), "a copy from cuda:0 to cuda:1 delivers other bytes");
  devices_ = "cuda:0,cuda:1";
  EXPECT_EQ(losses(train(garbled)), losses(train()));
}

TEST_F(GpuProbe, SafeModeTrainsWithTheSameBits) {
  const Json usual = train(), safe = train({"VITRINE_CUDA_SAFE=1"});
  EXPECT_EQ(state(safe), "off: VITRINE_CUDA_SAFE is 1");
  EXPECT_EQ(losses(safe), losses(usual));
}

}  // namespace
}  // namespace vitrine::test
