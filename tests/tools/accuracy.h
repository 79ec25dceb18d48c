// SPDX-License-Identifier: Apache-2.0
// Runs of the program on real and generated images, for tests of the accuracy that they reach.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/test_devices.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test {

/// The folder of Fashion-MNIST, empty if it is not here.
inline std::filesystem::path fashion_mnist() {
  auto folder = std::filesystem::path(VITRINE_SOURCE_DIR) / ".." / "shared" / "data" / "fashion-mnist";
  return std::filesystem::exists(folder) ? folder : std::filesystem::path();
}

/// Test accuracy after the last epoch of a training of small-cnn on two devices; 0, and a failure of the test, if the program fails.
inline double accuracy_after(const std::vector<std::string>& arguments) {
  std::vector<std::string> all{"train", "--json", "--model", "small-cnn", "--devices"};
  if (on_gpu()) {
    all.push_back("cuda:0,cuda:0");
  } else {
    all.insert(all.end(), {"cpu:0-1", "--threads-per-device", "1"});
  }
  all.insert(all.end(), arguments.begin(), arguments.end());
  const ChildResult result = run_vitrine(all);
  EXPECT_EQ(result.exit_code, 0) << result.error;
  if (result.exit_code != 0) return 0;
  return nlohmann::json::parse(result.output)["epochs"].back()["test_accuracy"].get<double>();
}

}  // namespace vitrine::test
