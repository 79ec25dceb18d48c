// SPDX-License-Identifier: Apache-2.0
// Training reaches the expected accuracy on generated images and on a tenth of Fashion-MNIST. accuracy_full_test.cpp uses all of it.
#include "tests/tools/accuracy.h"

#include <cstdint>

#include <zlib.h>

#include "tests/data/temp_folder.h"

namespace vitrine::test {
namespace {

/// Writes the first `count` items of an IDX file to another IDX file.
void write_first(const std::filesystem::path& packed, const std::filesystem::path& target, uint32_t count, size_t header_bytes, size_t item_bytes) {
  Bytes bytes(header_bytes + size_t{count} * item_bytes);
  gzFile file = gzopen(packed.c_str(), "rb");
  ASSERT_NE(file, nullptr) << packed;
  const int read = gzread(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  gzclose(file);
  ASSERT_EQ(read, static_cast<int>(bytes.size())) << packed;
  for (size_t i = 0; i < 4; ++i) bytes[4 + i] = static_cast<uint8_t>(count >> (24 - 8 * i));
  write_file(target, bytes);
}

/// A tenth of Fashion-MNIST: 6,000 images to train on and 1,000 to test with.
void write_tenth(const std::filesystem::path& folder) {
  for (const auto& [part, count] : {std::pair{"train", 6000u}, std::pair{"t10k", 1000u}}) {
    const std::string images = std::string(part) + "-images-idx3-ubyte", labels = std::string(part) + "-labels-idx1-ubyte";
    write_first(fashion_mnist() / (images + ".gz"), folder / images, count, 16, 28 * 28);
    write_first(fashion_mnist() / (labels + ".gz"), folder / labels, count, 8, 1);
  }
}

TEST(Accuracy, GeneratedImagesAreLearned) {
  EXPECT_GT(accuracy_after({"--data", "synthetic:5000", "--epochs", "3", "--optimizer", "adam", "--lr", "2e-3"}), 0.90);
}

// Guessing reaches 0.10.
TEST(Accuracy, FashionMnistIsLearnedInEveryPrecision) {
  if (fashion_mnist().empty()) GTEST_SKIP() << "Fashion-MNIST is not here";
  const TempFolder folder;
  ASSERT_NO_FATAL_FAILURE(write_tenth(folder.path()));
  for (const char* precision : {"fp32", "fp16", "bf16"}) {
    EXPECT_GE(accuracy_after({"--data", "idx:" + folder.str(), "--epochs", "3", "--optimizer", "adam", "--lr", "2e-3", "--precision", precision}),
              0.80)
        << precision;
  }
}

}  // namespace
}  // namespace vitrine::test
