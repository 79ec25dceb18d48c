// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace vitrine {

/// Images and labels in host memory: u8 pixels (N, H, W, C), labels 0 <= y < classes.
struct Dataset {
  std::string name;  // "cifar10 train"
  int64_t height = 0, width = 0, channels = 0, classes = 0;
  std::vector<uint8_t> pixels;
  std::vector<int32_t> labels;
  std::array<float, 4> mean{}, std{};  // of pixels / 255, per channel: of the training set
  std::vector<std::string> class_names;

  int64_t size() const { return static_cast<int64_t>(labels.size()); }
  int64_t bytes_per_image() const { return height * width * channels; }
  std::span<const uint8_t> image(int64_t i) const;
};

struct DatasetPair {
  Dataset train, test;
};

/// Opens "cifar10:DIR", "fashion-mnist:DIR", "idx:DIR" or "synthetic[:COUNT]".
///   cifar10        DIR holds data_batch_1..5.bin, test_batch.bin (and batches.meta.txt, if it is there), or a folder cifar-10-batches-bin with them
///   fashion-mnist  DIR holds {train,t10k}-{images-idx3,labels-idx1}-ubyte, plain or .gz
///   idx            the same files of any such set; mean and standard deviation are measured
///   synthetic      COUNT drawn images (default 10,000) and a fifth as many for testing, from `seed`
/// throws DataError with file, offset, expected and found; ConfigError on an unknown kind, naming those there are.
DatasetPair open_dataset(const std::string& description, uint64_t seed);

}  // namespace vitrine
