// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <vitrine/runtime/error.h>

namespace vitrine {

/// An image that cannot be decoded: it is damaged, or of another format.
class DamagedSample : public DataError {
 public:
  using DataError::DataError;
};

/// Source of a data set's images and labels, by index. Safe for concurrent reads.
class Samples {
 public:
  Samples() = default;
  virtual ~Samples() = default;
  Samples(const Samples&) = delete;
  Samples& operator=(const Samples&) = delete;

  virtual int64_t size() const = 0;
  virtual int32_t label(int64_t i) const = 0;
  /// Writes image i, u8 pixels (H, W, C), to `out`. throws DamagedSample; DataError if its file can no longer be read.
  virtual void read_image(int64_t i, std::span<uint8_t> out) const = 0;
  /// Of a set of sequences: writes the tokens of sequence i, and the one after each.
  /// requires  Dataset::sequence_length elements in both
  virtual void read_sequence(int64_t i, std::span<int32_t> tokens, std::span<int32_t> targets) const;
  /// Does the work of each sample's first read now, so that measurements do not include it.
  /// throws OutOfMemory if the memory that is available does not hold them.
  ///   stop  asked now and then; true ends the call early
  virtual void read_ahead(const std::function<bool()>& stop = {}) const { (void)stop; }
  /// Host memory that pixels and labels occupy now.
  virtual int64_t held_bytes() const = 0;
};

/// Samples held in memory: pixels (N, H, W, C) and N labels.
std::shared_ptr<const Samples> samples_in_memory(std::vector<uint8_t> pixels, std::vector<int32_t> labels);

/// Images and labels: u8 pixels (N, H, W, C), labels 0 <= y < classes.
struct Dataset {
  std::string name;  // "cifar10 train"
  int64_t height = 0, width = 0, channels = 0, classes = 0;
  std::shared_ptr<const Samples> samples;
  std::array<float, 4> mean{}, std{};    // of pixels / 255 in the training set, per channel
  std::vector<std::string> class_names;  // one for each class; "0", "1" and so on where the set has none
  /// Above 0: samples are no images but sequences of so many tokens, i32, and the target of each token is the next one;
  /// classes is the vocabulary.
  int64_t sequence_length = 0;
  std::string characters;      // of characters:FILE, those of the vocabulary in its order, UTF-8
  double bytes_per_token = 0;  // of the texts that this set is of; 0: not known, as of tokens:GLOB

  int64_t size() const { return samples ? samples->size() : 0; }
  int64_t bytes_per_image() const {
    return sequence_length > 0 ? sequence_length * int64_t{sizeof(int32_t)} : height * width * channels;
  }
  int64_t targets_per_sample() const { return sequence_length > 0 ? sequence_length : 1; }
  int64_t held_bytes() const { return samples ? samples->held_bytes() : 0; }
  /// requires  0 <= i < size()      throws  DataError, as image() does, if a file can no longer be read
  int32_t label(int64_t i) const;
  /// requires  bytes_per_image() bytes in `out`
  void read_image(int64_t i, std::span<uint8_t> out) const;
  std::vector<uint8_t> image(int64_t i) const;
};

/// The first `count` samples of a set, which share its images, or the whole set if it has no more.
/// requires  count >= 1
Dataset first_samples(const Dataset& set, int64_t count);

/// The label of a sample that does not count: the engine's ignore_index.
inline constexpr int32_t kIgnoredLabel = -100;

/// Images that could not be read. Safe for concurrent calls.
class UnreadSamples {
 public:
  /// The error of each, in the order of samples.
  std::vector<std::exception_ptr> errors() const;
  bool contains(int64_t sample) const;
  void add(int64_t sample, std::exception_ptr error);

 private:
  mutable std::mutex mutex_;
  std::map<int64_t, std::exception_ptr> errors_;
};
/// The same set, which goes on at an image that cannot be read: its pixels become the set's mean, and from then on its
/// label is kIgnoredLabel, also for the first read if the label is asked for after the image.
///   errors  damaged: only DamagedSample; any: every DataError
enum class SkippedErrors { damaged, any };
Dataset skip_unread(const Dataset& set, std::shared_ptr<UnreadSamples> unread, SkippedErrors errors);

/// Hash of the set's size and of up to 256 of its samples, evenly spaced. It distinguishes different sets, but not sets
/// that differ in a few samples.
uint64_t fingerprint(const Dataset& set);

struct DatasetPair {
  Dataset train, test;
};

/// Number of samples of each class.
std::vector<int64_t> class_counts(const Dataset& set);

struct DatasetOptions {
  int64_t image_size = 0;  // height and width of the images of an image-folder; other kinds ignore it
  /// false: mean and deviation of idx and synthetic images are not measured and stay 0, for programs that normalize
  /// otherwise or not at all. Measuring reads many images, and refuses images that are constant.
  bool measured = true;
  /// Above 0: this share of the training images becomes the test set, and the data's own is not opened. Which images
  /// are held out depends on the seed, the share and their number.
  double val_split = 0.0;
  bool holds_out() const { return val_split > 0.0; }
  /// A test set that is not there is empty, for programs that only train.
  bool test_optional = false;
  /// Above 0: a set of sequences of so many tokens is opened. 0: one of images.
  int64_t sequence_length = 0;
  int64_t vocabulary = 0;  // of tokens:GLOB and synthetic; 0: 50,257, and 256
};

/// Opens "cifar10:DIR", "cifar100:DIR", "fashion-mnist:DIR", "idx:DIR", "image-folder:DIR" or "synthetic[:COUNT]".
/// Plain files are read when a sample is requested, so a process reads only its own rows; labels and unpacked files
/// stay in memory. Synthetic images are drawn when they are requested, and kept.
///   cifar10        DIR contains data_batch_1..5.bin, test_batch.bin (and optionally batches.meta.txt), or a folder
///                  cifar-10-batches-bin with them
///   cifar100       DIR contains train.bin, test.bin (and optionally fine_label_names.txt), or a folder
///                  cifar-100-binary with them; the 100 fine labels count
///   fashion-mnist  DIR contains {train,t10k}-{images-idx3,labels-idx1}-ubyte, plain or .gz, or named with .idx
///   idx            the same files of another set; the largest label of both parts gives the number of classes; mean
///                  and standard deviation are measured over up to 65,536 training images, evenly spaced
///   image-folder   DIR contains train/CLASS/... and val/CLASS/... (or valid, validation, test): JPEG and PNG files, a
///                  folder per class, classes sorted by name as in torchvision's ImageFolder. With val_split the
///                  classes may also be in DIR itself. Files and folders whose names begin with a dot are left out. A
///                  file is read when its sample is requested: the shorter side is resized to `image_size` and the
///                  center cropped, as torchvision's Resize and CenterCrop do. A damaged file is a DataError then. Mean
///                  and deviation are ImageNet's
///   synthetic      COUNT drawn images (default 10,000) and a fifth as many for testing, from `seed`
/// With a sequence_length "tokens:GLOB", "text:FILE", "characters:FILE" or "synthetic[:COUNT]". Sample i is the window
/// of sequence_length tokens that begins at token i * sequence_length of a file, the last tenth of them the test set.
/// Tokens are compared with the vocabulary when they are read.
///   tokens      files of 16-bit tokens in the order of their names: llm.c's, or nanoGPT's, which have no header
///   text        the bytes of a file: 256 tokens
///   characters  the characters of a file in UTF-8, numbered in the order of their code points
/// throws DataError with file, offset, expected and found; ConfigError for an unknown kind, listing the known ones, or
///        a missing image size, or a val_split that leaves one of the sets empty.
DatasetPair open_dataset(const std::string& description, uint64_t seed, const DatasetOptions& options = {});

}  // namespace vitrine
