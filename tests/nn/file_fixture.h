// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "nn/weights_file.h"
#include "runtime/error.h"
#include "tests/support/device_fixture.h"

namespace vitrine::test {

// Each test has its own folder, which is removed afterwards.
class FileTest : public ::testing::Test {
 public:
  ~FileTest() override { std::filesystem::remove_all(folder_); }

 protected:
  FileTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              (std::string("vitrine_") + info->name() + "_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }

  std::string path(const std::string& name = "file") const { return (folder_ / name).string(); }
  std::string write(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary) << bytes;
    return path();
  }
  // Writes a file with this header and `data_bytes` bytes of data.
  std::string write_file(const std::string& header, size_t data_bytes) const {
    const auto size = std::bit_cast<std::array<char, 8>>(static_cast<uint64_t>(header.size()));
    return write(std::string(size.data(), size.size()) + header + std::string(data_bytes, 'x'));
  }

  std::filesystem::path folder_;
};

inline std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline HostTensor tensor_of(const Shape& shape, DType dtype, uint64_t seed) {
  const auto bytes = random_integers<uint8_t>(shape.numel() * size_of(dtype), seed, 0, 255);
  HostTensor tensor{shape, dtype, std::vector<std::byte>(bytes.size())};
  if (!bytes.empty()) std::memcpy(tensor.data.data(), bytes.data(), bytes.size());
  return tensor;
}

inline LoadedWeights load_weights(const std::string& path, const FlatLayout& layout, std::span<float> flat,
                                  const LoadOptions& options = {}) {
  BufferValues none;
  return load_parameters(path, layout, flat, BufferLayout(), none, options);
}

inline void expect_mentions(const std::string& message, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    EXPECT_NE(message.find(word), std::string::npos) << "'" << word << "' in: " << message;
}

}  // namespace vitrine::test
