// SPDX-License-Identifier: Apache-2.0
// Runs of the program on real and generated images, for tests of the accuracy that they reach.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/paths.h"
#include "tests/support/test_devices.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test {

/// The folder of Fashion-MNIST, empty if it is not here.
inline std::filesystem::path fashion_mnist() {
  const std::filesystem::path folder = source_path("../shared/data/fashion-mnist");
  return std::filesystem::exists(folder) ? folder : std::filesystem::path();
}

/// Unpacks CIFAR-10 into `folder`; false if it, or xz, is not here.
inline bool unpack_cifar10(const std::filesystem::path& folder) {
  const std::filesystem::path packed = source_path("../shared/data/cifar-10-batches-bin");
  if (!std::filesystem::exists(packed) || std::system("xz --version > /dev/null 2>&1") != 0) return false;
  for (const char* name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
                           "data_batch_5.bin", "test_batch.bin"}) {
    const std::string source = (packed / name).string() + ".xz", target = (folder / name).string();
    if (std::system(("xz -dc '" + source + "' > '" + target + "'").c_str()) != 0) return false;
  }
  return true;
}

/// Test accuracy after the last epoch of a training of small-cnn (or --model) on two devices; 0, and a failure of the
/// test, if the program fails.
inline double accuracy_after(const std::vector<std::string>& arguments) {
  const bool names_model = std::find(arguments.begin(), arguments.end(), "--model") != arguments.end();
  const Arguments devices = words(on_gpu() ? "cuda:0,cuda:0" : "cpu:0-1 --threads-per-device 1");
  const Arguments all = with(with(words("train --json --devices"), devices),
                             with(names_model ? Arguments() : words("--model small-cnn"), arguments));
  const ChildResult result = run_vitrine(all);
  EXPECT_EQ(result.exit_code, 0) << result.error;
  if (result.exit_code != 0) return 0;
  return nlohmann::json::parse(result.output)["epochs"].back()["test_accuracy"].get<double>();
}

}  // namespace vitrine::test
