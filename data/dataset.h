// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace vitrine {

/// Where a data set's images and labels come from, by index. Several threads may read at the same time.
class Samples {
 public:
  Samples() = default;
  virtual ~Samples() = default;
  Samples(const Samples&) = delete;
  Samples& operator=(const Samples&) = delete;

  virtual int64_t size() const = 0;
  virtual int32_t label(int64_t i) const = 0;
  /// Writes image i, u8 pixels (H, W, C), to `out`. throws DataError where its file can no longer be read.
  virtual void read_image(int64_t i, std::span<uint8_t> out) const = 0;
  /// Does at once what the first read of each sample would do, so that measurements do not include it.
  virtual void read_ahead() const {}
  /// Host memory that pixels and labels take now.
  virtual int64_t held_bytes() const = 0;
};

/// Samples that are all in memory: pixels (N, H, W, C) and N labels.
std::shared_ptr<const Samples> samples_in_memory(std::vector<uint8_t> pixels, std::vector<int32_t> labels);

/// Images and their labels: u8 pixels (N, H, W, C), labels 0 <= y < classes.
struct Dataset {
  std::string name;  // "cifar10 train"
  int64_t height = 0, width = 0, channels = 0, classes = 0;
  std::shared_ptr<const Samples> samples;
  std::array<float, 4> mean{}, std{};  // of pixels / 255, per channel: of the training set
  std::vector<std::string> class_names;

  int64_t size() const { return samples ? samples->size() : 0; }
  int64_t bytes_per_image() const { return height * width * channels; }
  int64_t held_bytes() const { return samples ? samples->held_bytes() : 0; }
  /// Requires 0 <= i < size(). throws DataError, as image() does, where a file can no longer be read.
  int32_t label(int64_t i) const;
  /// `out` takes bytes_per_image() bytes.
  void read_image(int64_t i, std::span<uint8_t> out) const;
  std::vector<uint8_t> image(int64_t i) const;
};

/// A hash of the set's size and of up to 256 of its samples, evenly spaced: tells sets apart that differ as a whole, not in a few samples.
uint64_t fingerprint(const Dataset& set);

struct DatasetPair {
  Dataset train, test;
};

/// Opens "cifar10:DIR", "fashion-mnist:DIR", "idx:DIR" or "synthetic[:COUNT]".
/// Plain files are read when a sample is asked for, so that a process reads no more than its own rows; only labels, and what is unpacked, stay in
/// memory. Drawn images are drawn then, and kept.
///   cifar10        DIR holds data_batch_1..5.bin, test_batch.bin (and batches.meta.txt, if it is there), or a folder cifar-10-batches-bin with them
///   fashion-mnist  DIR holds {train,t10k}-{images-idx3,labels-idx1}-ubyte, plain or .gz
///   idx            the same files of any such set; mean and standard deviation are measured over up to 65,536 training images, evenly spaced
///   synthetic      COUNT drawn images (default 10,000) and a fifth as many for testing, from `seed`
/// throws DataError with file, offset, expected and found; ConfigError on an unknown kind, naming those there are.
DatasetPair open_dataset(const std::string& description, uint64_t seed);

}  // namespace vitrine
