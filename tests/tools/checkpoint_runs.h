// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <stdlib.h>

#include "tests/tools/run_vitrine.h"

/// Short runs of the program that save checkpoints.
namespace vitrine::test {

inline Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Three epochs of ten steps, of which the last has a shorter batch, in some hundredths of a second.
inline Arguments short_run() {
  return {"train",
          "--model",
          "mlp",
          "--image-size",
          "8",
          "--data",
          "synthetic:195",
          "--threads-per-device",
          "1",
          "--batch-size",
          "20",
          "--seed",
          "3",
          "--epochs",
          "3"};
}

/// A folder in which each test's runs write; removed at the end.
class CheckpointRuns : public ::testing::Test {
 public:
  ~CheckpointRuns() override { std::filesystem::remove_all(root_); }

 protected:
  CheckpointRuns() {
    std::string name = (std::filesystem::temp_directory_path() / "vitrine_runs_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder can be made");
    root_ = name;
  }

  std::string path(const std::string& name) const { return (root_ / name).string(); }
  /// --checkpoint-dir NAME, in the folder.
  Arguments into(const std::string& name) const { return {"--checkpoint-dir", path(name)}; }

  /// The names in a folder, sorted, without the lock.
  static std::vector<std::string> names(const std::string& folder) {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().filename() != ".lock") found.push_back(entry.path().filename().string());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  static std::string content(const std::string& file) {
    std::ifstream stream(file, std::ios::binary);
    EXPECT_TRUE(stream) << file;
    return {std::istreambuf_iterator<char>(stream), {}};
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
  std::filesystem::path root_;
};

}  // namespace vitrine::test
