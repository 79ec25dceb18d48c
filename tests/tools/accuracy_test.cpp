// SPDX-License-Identifier: Apache-2.0
// Training reaches the expected accuracy on generated images and on a tenth of Fashion-MNIST. accuracy_full_test.cpp
// uses all of it.
#include "tests/tools/accuracy.h"

#include <cstdint>
#include <functional>
#include <random>

#include <zlib.h>

#include "tests/data/temp_folder.h"

namespace vitrine::test {
namespace {

/// Writes the first `count` items of an IDX file to another IDX file.
void write_first(const std::filesystem::path& packed, const std::filesystem::path& target, uint32_t count,
                 size_t header_bytes, size_t item_bytes) {
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
    const std::string images = std::string(part) + "-images-idx3-ubyte",
                      labels = std::string(part) + "-labels-idx1-ubyte";
    write_first(fashion_mnist() / (images + ".gz"), folder / images, count, 16, 28 * 28);
    write_first(fashion_mnist() / (labels + ".gz"), folder / labels, count, 8, 1);
  }
}

TEST(Accuracy, GeneratedImagesAreLearned) {
  EXPECT_GT(accuracy_after(words("--data synthetic:5000 --epochs 3 --optimizer adam --lr 2e-3")), 0.90);
}

/// Images of 12x12 with one of four glyphs on noise, as IDX files: `place` says where the glyph's corner is, and
/// whether the image is mirrored.
struct Place {
  int row, column;
  bool mirrored;
};
void write_glyphs(const std::filesystem::path& folder, const std::string& part, uint32_t count,
                  const std::function<Place(std::mt19937&)>& place) {
  constexpr const char* kGlyphs[4] = {"X....X....X....X....XXXXX", "XXXXXX....XXX..X....X....",
                                      "XXXXX...X...X...X...XXXXX", "X...XXX..XX.X.XX..XXX...X"};
  std::mt19937 random(count);
  Bytes images{0, 0,  8, 3, 0, 0, static_cast<uint8_t>(count >> 8), static_cast<uint8_t>(count), 0, 0,
               0, 12, 0, 0, 0, 12};
  Bytes labels{0, 0, 8, 1, 0, 0, static_cast<uint8_t>(count >> 8), static_cast<uint8_t>(count)};
  for (uint32_t i = 0; i < count; ++i) {
    const Place at = place(random);
    labels.push_back(static_cast<uint8_t>(i % 4));
    for (int y = 0; y < 12; ++y) {
      for (int x = 0; x < 12; ++x) {
        const int row = y - at.row, column = (at.mirrored ? 11 - x : x) - at.column;
        const bool inside = row >= 0 && row < 5 && column >= 0 && column < 5;
        const bool ink = inside && kGlyphs[i % 4][row * 5 + column] == 'X';
        images.push_back(static_cast<uint8_t>((ink ? 180 : 0) + random() % 60));
      }
    }
  }
  write_file(folder / (part + "-images-idx3-ubyte"), images);
  write_file(folder / (part + "-labels-idx1-ubyte"), labels);
}

/// Trained on the letters L, F, Z and N in one place, tested on mirrored ones elsewhere: an mlp knows those from flips
/// and crops alone. Guessing reaches 0.25.
TEST(Accuracy, AugmentationTeachesWhatTheTrainingSetLacks) {
  const TempFolder folder;
  write_glyphs(folder.path(), "train", 1600, [](std::mt19937&) { return Place{3, 2, false}; });
  write_glyphs(folder.path(), "t10k", 400, [](std::mt19937& random) {
    return Place{1 + static_cast<int>(random() % 5), static_cast<int>(random() % 5), true};
  });
  const auto accuracy = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all =
        words("--model mlp --data {} --epochs 12 --batch-size 50 --lr 2e-3", "idx:" + folder.str());
    all.insert(all.end(), more.begin(), more.end());
    return accuracy_after(all);
  };
  EXPECT_GE(accuracy(words("--augment flip,crop:3")), 0.80);
  EXPECT_LE(accuracy(words("--augment crop:3")), 0.70);
  EXPECT_LE(accuracy(words("--augment flip")), 0.60);
}

// Guessing reaches 0.10.
TEST(Accuracy, FashionMnistIsLearnedInEveryPrecision) {
  if (fashion_mnist().empty()) GTEST_SKIP() << "Fashion-MNIST is not here";
  const TempFolder folder;
  ASSERT_NO_FATAL_FAILURE(write_tenth(folder.path()));
  for (const char* precision : {"fp32", "fp16", "bf16"}) {
    EXPECT_GE(accuracy_after(words("--data {} --epochs 3 --optimizer adam --lr 2e-3 --precision {}",
                                   "idx:" + folder.str(), precision)),
              0.80)
        << precision;
  }
}

}  // namespace
}  // namespace vitrine::test
