// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "nn/weights_file.h"
#include "runtime/error.h"
#include "tests/support/device_fixture.h"
#include "tests/support/expect_contains.h"
#include "tests/support/temp_folder.h"

namespace vitrine::test {

// Each test has its own folder, which is removed afterwards.
class FileTest : public ::testing::Test {
 protected:
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

  const TempFolder temporary_;
  const std::filesystem::path& folder_ = temporary_.path();
};

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
  for (const std::string& word : words) expect_contains(message, word);
}

}  // namespace vitrine::test
