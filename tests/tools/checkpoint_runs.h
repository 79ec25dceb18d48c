// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/temp_folder.h"
#include "tests/tools/run_vitrine.h"

/// Short runs of the program that save checkpoints.
namespace vitrine::test {

inline Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Three epochs of ten steps, of which the last has a shorter batch, in some hundredths of a second.
inline Arguments short_run() {
  return words(
      "train --model mlp --image-size 8 --data synthetic:195 --threads-per-device 1 --batch-size 20 --seed 3 --epochs "
      "3");
}

/// A folder in which each test's runs write; removed at the end.
class CheckpointRuns : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path(name); }
  /// --checkpoint-dir NAME, in the folder.
  Arguments into(const std::string& name) const { return words("--checkpoint-dir {}", path(name)); }

  /// The names in a folder, sorted, without the lock.
  static std::vector<std::string> names(const std::string& folder) {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().filename() != ".lock") found.push_back(entry.path().filename().string());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  static void expect_same_file(const std::string& a, const std::string& b) {
    EXPECT_TRUE(content(a) == content(b)) << a << " differs from " << b;
  }
  /// Weights and optimizer.
  static void expect_same_tensors(const std::string& a, const std::string& b) {
    for (const std::string file : {"/model.safetensors", "/optimizer.safetensors"})
      expect_same_file(a + file, b + file);
  }

 private:
  const TempFolder folder_;
};

}  // namespace vitrine::test
