// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <functional>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "data/dataset.h"
#include "runtime/error.h"
#include "runtime/memory/available.h"
#include "runtime/philox.h"
#include "tests/data/counted_set.h"
#include "tests/data/temp_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tests/support/limited_memory.h"

namespace vitrine {
namespace {

namespace fs = std::filesystem;
using test::Bytes;
using test::labels_of;
using test::pixels_of;
using test::read_file;
using test::TempFolder;
using test::write_file;
using test::write_gzip;

std::string message_of(const std::string& description, const DatasetOptions& options = {}) {
  try {
    open_dataset(description, 0, options);
  } catch (const DataError& e) {
    return std::string("DataError ") + e.what();
  } catch (const ConfigError& e) {
    return std::string("ConfigError ") + e.what();
  }
  return "accepted";
}

void expect_message(const std::string& description, const std::vector<std::string>& parts) {
  const std::string message = message_of(description);
  for (const std::string& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "wanted: " << part << "\nmessage: " << message;
}

void append_u32(Bytes& bytes, uint32_t x) {
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<uint8_t>(x >> shift));
}

Bytes idx_images(uint32_t count, uint32_t rows, uint32_t columns, uint64_t seed) {
  Bytes bytes;
  for (const uint32_t x : {0x803U, count, rows, columns}) append_u32(bytes, x);
  PhiloxSequence random(seed, 0);
  for (uint32_t i = 0; i < count * rows * columns; ++i) bytes.push_back(static_cast<uint8_t>(random.next_u32()));
  return bytes;
}

Bytes idx_labels(const Bytes& labels) {
  Bytes bytes;
  for (const uint32_t x : {0x801U, static_cast<uint32_t>(labels.size())}) append_u32(bytes, x);
  bytes.insert(bytes.end(), labels.begin(), labels.end());
  return bytes;
}

/// Four small files that form a set of 5 x 7 images.
class IdxFolder : public TempFolder {
 public:
  IdxFolder() {
    write_file(train_images(), idx_images(6, 5, 7, 1));
    write_file(train_labels(), idx_labels({0, 1, 2, 3, 2, 1}));
    write_file(path() / "t10k-images-idx3-ubyte", idx_images(2, 5, 7, 2));
    write_file(path() / "t10k-labels-idx1-ubyte", idx_labels({3, 0}));
  }
  fs::path train_images() const { return path() / "train-images-idx3-ubyte"; }
  fs::path train_labels() const { return path() / "train-labels-idx1-ubyte"; }
  std::string description() const { return "idx:" + str(); }
  /// Rewrites a file after applying `change`.
  void change(const fs::path& file, const std::function<void(Bytes&)>& edit) const {
    Bytes bytes = read_file(file);
    edit(bytes);
    write_file(file, bytes);
  }
};

TEST(OpenDataset, NamesTheKinds) {
  expect_message("mnist:/x", {"ConfigError", "mnist:/x: expected ", "cifar10:DIR", "cifar100:DIR", "fashion-mnist:DIR",
                              "idx:DIR", "image-folder:DIR", "synthetic[:COUNT]"});
  expect_message("cifar10", {"ConfigError", "expected cifar10:DIR, where DIR is the folder"});
  expect_message("idx:", {"ConfigError", "expected idx:DIR, where DIR is the folder"});
  for (const char* text : {"synthetic:", "synthetic:0", "synthetic:-5", "synthetic:x", "synthetic:10k"}) {
    expect_message(text, {"ConfigError", "is not a number of images"});
  }
  expect_message("cifar10:/no/such/folder", {"DataError", "/no/such/folder is not a folder"});
  EXPECT_EQ(message_of("cifar10:~/x"),
            "DataError cifar10: ~/x is not a folder; the shell expands ~ only at the start of a word, write $HOME");
  expect_message("idx:~/x", {"DataError", "$HOME"});
}

TEST(Idx, ReadsPlainFiles) {
  const IdxFolder folder;
  const DatasetPair pair = open_dataset(folder.description(), 0);
  EXPECT_EQ(pair.train.size(), 6);
  EXPECT_EQ(pair.test.size(), 2);
  EXPECT_EQ(pair.train.height, 5);
  EXPECT_EQ(pair.train.width, 7);
  EXPECT_EQ(pair.train.channels, 1);
  EXPECT_EQ(pair.train.classes, 4);
  EXPECT_EQ(labels_of(pair.train), (std::vector<int32_t>{0, 1, 2, 3, 2, 1}));
  EXPECT_EQ(labels_of(pair.test), (std::vector<int32_t>{3, 0}));
  const Bytes bytes = read_file(folder.train_images());
  EXPECT_EQ(pixels_of(pair.train), Bytes(bytes.begin() + 16, bytes.end()));
  const auto third = pair.train.image(2);
  EXPECT_TRUE(std::equal(third.begin(), third.end(), bytes.begin() + 16 + 70));
}

TEST(Idx, MeasuresMeanAndDeviation) {
  const IdxFolder folder;
  const DatasetPair pair = open_dataset(folder.description(), 0);
  double sum = 0, squares = 0;
  const Bytes pixels = pixels_of(pair.train);
  for (const uint8_t pixel : pixels) sum += pixel / 255.0;
  const double count = static_cast<double>(pixels.size()), mean = sum / count;
  for (const uint8_t pixel : pixels) squares += (pixel / 255.0 - mean) * (pixel / 255.0 - mean);
  EXPECT_NEAR(pair.train.mean[0], mean, 1e-6);
  EXPECT_NEAR(pair.train.std[0], std::sqrt(squares / count), 1e-6);
  EXPECT_EQ(pair.test.mean, pair.train.mean);
}

TEST(Idx, ReadsGzip) {
  const IdxFolder folder;
  const DatasetPair plain = open_dataset(folder.description(), 0);
  for (const auto& file : {folder.train_images(), folder.train_labels()}) {
    write_gzip(file.string() + ".gz", read_file(file));
    fs::remove(file);
  }
  const DatasetPair packed = open_dataset(folder.description(), 0);
  EXPECT_EQ(pixels_of(packed.train), pixels_of(plain.train));
  EXPECT_EQ(labels_of(packed.train), labels_of(plain.train));
}

// A process that reads a few samples holds only the labels and reads only those parts of the file.
TEST(Idx, PlainFilesAreReadOnDemand) {
  const IdxFolder folder;
  const DatasetPair pair = open_dataset(folder.description(), 0);
  EXPECT_EQ(pair.train.held_bytes(), 6);
  folder.change(folder.train_images(), [](Bytes& b) { b[16 + 2 * 35] = 77; });
  EXPECT_EQ(pair.train.image(2)[0], 77);
  folder.change(folder.train_images(), [](Bytes& b) { b.resize(16 + 4 * 35 + 3); });
  EXPECT_NO_THROW(pair.train.image(3));
  EXPECT_EQ(error_of<DataError>([&] { pair.train.image(4); }),
            folder.train_images().string() +
                ": at offset 156: expected 35 bytes, found 3; the file became shorter after it was opened");
}

TEST(Idx, AGzipFileThatClaimsMorePixelsThanItHasIsRefused) {
  const IdxFolder folder;
  fs::remove(folder.train_images());
  // 1.6 MB that claim to be 1.6 GB: 2,000,000 images of 28 x 28, of which the file has 2,000.
  Bytes images = idx_images(2000, 28, 28, 3);
  images[4] = 0x00, images[5] = 0x1e, images[6] = 0x84, images[7] = 0x80;
  folder.change(folder.train_labels(), [&](Bytes& b) { std::copy_n(images.begin() + 4, 4, b.begin() + 4); });
  const fs::path packed = folder.train_images().string() + ".gz";
  write_gzip(packed, images);
  ASSERT_GT(fs::file_size(packed), 1'500'000U);
  expect_message(folder.description(),
                 {"DataError", packed.string(), "at offset 16: expected 1568000000 bytes of pixels", "found 1568000"});
  if (!test::kMemoryCanBeLimited) return;  // a sanitizer needs memory without a limit
  test::with_memory(int64_t{64} << 20, [&] {
    expect_contains(error_of<OutOfMemory>([&] { open_dataset(folder.description(), 0); }),
                    packed.string() + ": pixels take 1.5 GiB of host memory, but only ");
  });
}

TEST(HostMemory, MoreThanIsAvailableIsRefused) {
  EXPECT_NO_THROW(require_memory(1 << 20, "FILE: pixels", "use less"));
  expect_contains(error_of<OutOfMemory>([&] { require_memory(int64_t{1} << 60, "FILE: pixels", "use less"); }),
                  "FILE: pixels take 1048576.0 TiB of host memory, but only ");
}

TEST(Fingerprint, DistinguishesDataSets) {
  const IdxFolder folder;
  const uint64_t first = fingerprint(open_dataset(folder.description(), 0).train);
  EXPECT_EQ(fingerprint(open_dataset(folder.description(), 0).train), first);
  folder.change(folder.train_images(), [](Bytes& b) { b.back() ^= 1; });
  const uint64_t other_pixel = fingerprint(open_dataset(folder.description(), 0).train);
  EXPECT_NE(other_pixel, first);
  folder.change(folder.train_labels(), [](Bytes& b) { b.back() ^= 2; });
  EXPECT_NE(fingerprint(open_dataset(folder.description(), 0).train), other_pixel);
}

TEST(Idx, FashionMnistIs28By28) {
  const IdxFolder folder;
  expect_message("fashion-mnist:" + folder.str(),
                 {"DataError", "train-images-idx3-ubyte: at offset 8", "28 x 28", "found 5 x 7"});
  write_file(folder.train_images(), idx_images(6, 28, 28, 1));
  write_file(folder.path() / "t10k-images-idx3-ubyte", idx_images(2, 28, 28, 1));
  const DatasetPair pair = open_dataset("fashion-mnist:" + folder.str(), 0);
  EXPECT_FLOAT_EQ(pair.train.mean[0], 0.2860F);
  EXPECT_FLOAT_EQ(pair.test.std[0], 0.3530F);
  EXPECT_EQ(pair.train.classes, 10);
  EXPECT_EQ(pair.train.class_names.at(9), "Ankle boot");
}

TEST(Idx, NamesTheFilesItTriedAndWhatItFound) {
  const IdxFolder folder;
  fs::remove(folder.train_labels());
  expect_message(folder.description(),
                 {"DataError", folder.str() + " has no train-labels-idx1-ubyte, ", "train-labels.idx1-ubyte.gz"});
  const TempFolder other;  // torchvision's folders
  const fs::path raw = other.path() / "MNIST/raw", file = raw / "train-images-idx3-ubyte";
  fs::create_directories(raw);
  fs::copy_file(folder.train_images(), file);
  expect_message("idx:" + other.str(), {"found " + file.string() + ": use idx:" + raw.string()});
  const fs::path letters = raw / "emnist-letters-train-images-idx3-ubyte";
  fs::rename(file, letters);
  expect_message("idx:" + other.str(), {"found " + letters.string() + ": rename it to train-images-idx3-ubyte"});
}

TEST(Idx, ReadsFilesWithADotInTheirNames) {
  const IdxFolder folder;
  const std::vector<int32_t> labels = labels_of(open_dataset(folder.description(), 0).train);
  for (const char* file : {"train-images", "train-labels", "t10k-images", "t10k-labels"}) {
    const std::string format = std::string(file).ends_with("images") ? "idx3-ubyte" : "idx1-ubyte";
    fs::rename(folder.path() / (file + ("-" + format)), folder.path() / (file + ("." + format)));
  }
  EXPECT_EQ(labels_of(open_dataset(folder.description(), 0).train), labels);
}

TEST(ValSplit, HoldsOutTheSameImagesInEveryRun) {
  const IdxFolder folder;
  fs::remove(folder.path() / "t10k-images-idx3-ubyte");  // it is not needed
  const DatasetPair pair = open_dataset(folder.description(), 0, {.val_split = 0.34});
  EXPECT_EQ(pair.train.size(), 4);
  EXPECT_EQ(pair.test.size(), 2);
  EXPECT_EQ(pair.test.class_names, pair.train.class_names);
  // Each image is in one of the sets.
  const Bytes bytes = read_file(folder.train_images());
  std::multiset<Bytes> expected, found;
  for (size_t i = 0; i < 6; ++i) expected.emplace(bytes.begin() + 16 + 35 * i, bytes.begin() + 16 + 35 * (i + 1));
  for (const Dataset* set : {&pair.train, &pair.test}) {
    for (int64_t i = 0; i < set->size(); ++i) found.insert(set->image(i));
  }
  EXPECT_EQ(found, expected);
  const auto test_images = [](uint64_t seed, double share) {
    return pixels_of(open_dataset("synthetic:100", seed, {.measured = false, .val_split = share}).test);
  };
  EXPECT_EQ(test_images(3, 0.1), test_images(3, 0.1));
  EXPECT_EQ(test_images(3, 0.1).size(), 10U * 3072);
  for (const double share : {0.01, 0.95}) {
    EXPECT_EQ(message_of(folder.description(), {.val_split = share}),
              "ConfigError DatasetOptions::val_split " + std::string(share < 0.5 ? "0.01" : "0.95") +
                  ": of 6 images of idx train it holds out " + (share < 0.5 ? "0" : "6") +
                  "; expected at least one, and one to train on");
  }
}

TEST(ClassCounts, CountsLabels) {
  const IdxFolder folder;
  write_file(folder.train_labels(), idx_labels({1, 1, 3, 3, 3, 5}));
  EXPECT_EQ(class_counts(open_dataset(folder.description(), 0).train), (std::vector<int64_t>{0, 2, 0, 3, 0, 1}));
}

struct Damage {
  const char* what;
  bool images;  // otherwise labels
  std::function<void(Bytes&)> edit;
  std::vector<std::string> message;
};

TEST(Idx, ReportsDamagedFiles) {
  const std::vector<Damage> cases = {
      {"magic", true, [](Bytes& b) { b[3] = 1; }, {"at offset 0", "0x00000803", "found 0x00000801"}},
      {"label magic", false, [](Bytes& b) { b[2] = 9; }, {"at offset 0", "0x00000801", "found 0x00000901"}},
      {"header cut", true, [](Bytes& b) { b.resize(10); }, {"at offset 8", "4 bytes of rows", "found 2"}},
      {"empty", true, [](Bytes& b) { b.clear(); }, {"at offset 0", "magic number", "found 0"}},
      {"no images", true, [](Bytes& b) { b[7] = 0; }, {"at offset 4", "number of images from 1", "found 0"}},
      {"rows", true, [](Bytes& b) { b[8] = 1; }, {"at offset 8", "rows from 1 to 4096", "found 16777221"}},
      {"columns", true, [](Bytes& b) { b[15] = 0; }, {"at offset 12", "columns from 1 to 4096", "found 0"}},
      {"huge count", true, [](Bytes& b) { b[4] = 0xff; }, {"at offset 16", "bytes of pixels", "too short"}},
      {"cut", true, [](Bytes& b) { b.pop_back(); }, {"at offset 16", "210 bytes of pixels", "too short"}},
      {"trailing",
       true,
       [](Bytes& b) { b.push_back(0); },
       {"at offset 226", "the end of the file", "found more bytes"}},
      {"labels cut",
       false,
       [](Bytes& b) { b.erase(b.end() - 2, b.end()); },
       {"at offset 8", "6 bytes of labels", "found a file of 12 bytes, which is too short"}},
      {"labels trailing", false, [](Bytes& b) { b.push_back(0); }, {"at offset 14", "the end of the file"}},
      {"label count", false, [](Bytes& b) { b[7] = 5; }, {"at offset 4", "6 labels, one for each image", "found 5"}},
  };
  for (const Damage& damage : cases) {
    const IdxFolder folder;
    const fs::path file = damage.images ? folder.train_images() : folder.train_labels();
    folder.change(file, damage.edit);
    SCOPED_TRACE(damage.what);
    expect_message(folder.description(), {"DataError", file.string()});
    expect_message(folder.description(), damage.message);
  }
}

TEST(Idx, AClassMayOccurInTheTestPartOnly) {
  const IdxFolder folder;
  write_file(folder.path() / "t10k-labels-idx1-ubyte", idx_labels({0, 4}));
  const DatasetPair pair = open_dataset(folder.description(), 0);
  EXPECT_EQ(pair.train.classes, 5);
  EXPECT_EQ(pair.test.classes, 5);
  EXPECT_EQ(class_counts(pair.train).back(), 0);
}

TEST(Idx, ImageSizesMustAgree) {
  const IdxFolder folder;
  write_file(folder.path() / "t10k-images-idx3-ubyte", idx_images(2, 7, 5, 2));
  expect_message(folder.description(), {"training images are 5 x 7, test images 7 x 5"});
}

TEST(Idx, ConstantImagesCannotBeNormalized) {
  const IdxFolder folder;
  folder.change(folder.train_images(), [](Bytes& b) { std::fill(b.begin() + 16, b.end(), uint8_t{7}); });
  expect_message(folder.description(), {"DataError", "same value in all pixels", "with DatasetOptions::measured"});
  EXPECT_EQ(open_dataset(folder.description(), 0, {.measured = false}).train.image(0)[0], 7);
}

TEST(Idx, NamesFilesOfOtherKinds) {
  const IdxFolder folder;
  const auto put = [](const fs::path& path, const std::string& text) {
    write_file(path, std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
  };
  put(folder.train_images(), "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
  expect_message(folder.description(),
                 {"DataError", "expected an IDX file, found a Git LFS pointer; fetch", "git lfs pull"});
  fs::remove(folder.train_images());
  put(folder.train_images().string() + ".gz", "<!DOCTYPE html><html></html>");
  expect_message(folder.description(), {"expected a gzip stream, found an HTML page; the download failed"});
}

TEST(Idx, ReportsDamagedGzipFiles) {
  const IdxFolder folder;
  const fs::path packed = folder.train_images().string() + ".gz";
  const Bytes plain = read_file(folder.train_images());
  write_gzip(packed, plain);
  const Bytes good = read_file(packed);
  fs::remove(folder.train_images());

  // Truncated anywhere: in the gzip header, in the data, in the checksum.
  for (const size_t size : {good.size() - 1, good.size() - 8, good.size() / 2, size_t{12}, size_t{1}}) {
    write_file(packed, std::span(good).first(size));
    SCOPED_TRACE(size);
    expect_message(folder.description(), {"DataError", packed.string(), "offset"});
  }
  write_file(packed, std::span(good).first(good.size() / 2));
  expect_message(folder.description(), {"at offset 16", "the gzip stream is truncated"});

  Bytes flipped = good;
  flipped[flipped.size() - 6] ^= 1;
  write_file(packed, flipped);
  expect_message(folder.description(), {"DataError", packed.string(), "incorrect data check"});

  write_file(packed, plain);
  expect_message(folder.description(), {"expected a gzip stream"});
  write_file(packed, {});
  expect_message(folder.description(), {"expected a gzip stream"});

  fs::remove(packed);
  write_file(folder.train_images(), good);
  expect_message(folder.description(), {"expected an unpacked file", "gunzip"});
  fs::remove(folder.train_images());
  fs::create_directory(folder.train_images());
  expect_message(folder.description(), {"DataError", folder.train_images().string()});
}

constexpr size_t kRecord = 3073;

/// Records whose bytes are a function of (file, record, channel, position). With a superclass, CIFAR-100's.
Bytes cifar_records(uint8_t file, size_t count, bool superclass = false) {
  Bytes bytes;
  for (size_t record = 0; record < count; ++record) {
    if (superclass) bytes.push_back(19);
    bytes.push_back(static_cast<uint8_t>((file + record) % 10));
    for (size_t channel = 0; channel < 3; ++channel) {
      for (size_t i = 0; i < 1024; ++i)
        bytes.push_back(static_cast<uint8_t>(file * 31 + record * 7 + channel * 83 + i * 3 + i / 32));
    }
  }
  return bytes;
}

class CifarFolder : public TempFolder {
 public:
  explicit CifarFolder(const std::string& subfolder = "") : inner(path() / subfolder) {
    fs::create_directories(inner);
    for (uint8_t i = 1; i <= 5; ++i) write_file(train(i), cifar_records(i, 3));
    write_file(inner / "test_batch.bin", cifar_records(0, 2));
  }
  fs::path train(int i) const { return inner / ("data_batch_" + std::to_string(i) + ".bin"); }
  std::string description() const { return "cifar10:" + str(); }
  const fs::path inner;
};

TEST(Cifar10, ConvertsPlanesToPixels) {
  for (const char* subfolder : {"", "cifar-10-batches-bin"}) {
    const CifarFolder folder(subfolder);
    const DatasetPair pair = open_dataset(folder.description(), 0);
    ASSERT_EQ(pair.train.size(), 15);
    ASSERT_EQ(pair.test.size(), 2);
    EXPECT_EQ(pair.train.bytes_per_image(), 3072);
    EXPECT_EQ(labels_of(pair.train), (std::vector<int32_t>{1, 2, 3, 2, 3, 4, 3, 4, 5, 4, 5, 6, 5, 6, 7}));
    const Bytes records = cifar_records(2, 3);
    const auto image = pair.train.image(4);
    for (size_t i = 0; i < 1024; ++i) {
      for (size_t c = 0; c < 3; ++c) ASSERT_EQ(image[i * 3 + c], records[kRecord + 1 + c * 1024 + i]) << i << " " << c;
    }
    EXPECT_FLOAT_EQ(pair.train.mean[2], 0.4465F);
    EXPECT_FLOAT_EQ(pair.test.std[0], 0.2470F);
    EXPECT_EQ(pair.train.class_names.at(3), "cat");
  }
}

TEST(Cifar10, ReadsClassNames) {
  const CifarFolder folder;
  const std::string names = "a\nb\nc\nd\ne\nf\ng\nh\r\ni\nj\n\n";
  write_file(folder.inner / "batches.meta.txt", Bytes(names.begin(), names.end()));
  EXPECT_EQ(open_dataset(folder.description(), 0).test.class_names.at(7), "h");
  write_file(folder.inner / "batches.meta.txt", Bytes{'a', '\n'});
  expect_message(folder.description(), {"DataError", "batches.meta.txt", "expected 10 class names", "found 1"});
}

/// Every file that a data set has: reading a pipe would wait for its writer, and a device may have no end.
TEST(OpenDataset, RefusesWhatIsNoRegularFile) {
  const CifarFolder ten;
  const TempFolder hundred;
  write_file(hundred.path() / "train.bin", cifar_records(3, 4, true));
  write_file(hundred.path() / "test.bin", cifar_records(7, 2, true));
  const IdxFolder idx;
  struct Set {
    std::string description;
    fs::path folder;
    std::vector<std::string> files;
  };
  const std::vector<Set> sets = {
      {ten.description(), ten.inner, {"data_batch_1.bin", "data_batch_5.bin", "test_batch.bin", "batches.meta.txt"}},
      {"cifar100:" + hundred.str(), hundred.path(), {"train.bin", "test.bin", "fine_label_names.txt"}},
      {idx.description(),
       idx.path(),
       {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"}}};
  for (const Set& set : sets) {
    for (const std::string& name : set.files) {
      const fs::path file = set.folder / name, kept = set.folder / "kept";
      const bool exists = fs::exists(file);
      if (exists) fs::rename(file, kept);
      for (const std::string& target :
           {std::string("pipe"), std::string("/dev/zero"), file.string(), std::string(".")}) {
        if (target == "pipe") {
          ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
        } else {
          fs::create_symlink(target, file);
        }
        expect_message(set.description,
                       {"DataError", file.string(), target == file ? "Too many levels" : "expected a regular file"});
        fs::remove(file);
      }
      if (exists) fs::rename(kept, file);
    }
    EXPECT_EQ(message_of(set.description), "accepted");
  }
  std::ofstream(ten.inner / "batches.meta.txt") << std::string(100'000, '\n');
  expect_message(ten.description(), {"batches.meta.txt", "it has 100000 bytes, expected at most 65536"});
}

TEST(Cifar10, NamesMissingFiles) {
  const TempFolder empty;
  const std::string both = (empty.path() / "data_batch_1.bin").string() + ", " +
                           (empty.path() / "cifar-10-batches-bin/data_batch_1.bin").string();
  expect_message("cifar10:" + empty.str(), {"DataError", both, "cifar-10-binary.tar.gz", "test_batch.bin"});
  write_file(empty.path() / "data_batch_1.bin.xz", Bytes{1});
  expect_message("cifar10:" + empty.str(), {"data_batch_1.bin.xz: unpack it and the other files with xz -dk"});

  for (const char* subfolder : {"", "cifar-10-batches-py"}) {
    const TempFolder python;
    fs::create_directory(python.path() / subfolder);
    const fs::path file = python.path() / subfolder / "data_batch_1";
    write_file(file, Bytes{1});
    expect_message("cifar10:" + python.str(), {"; " + file.string() + " is of the Python version, but the binary"});
  }
  const CifarFolder deep("data/cifar");
  expect_message(deep.description(), {"; found " + deep.train(1).string() + ": use cifar10:" + deep.inner.string()});

  const CifarFolder folder("cifar-10-batches-bin");
  fs::remove(folder.train(4));
  expect_message(folder.description(), {"no data_batch_4.bin", folder.train(4).string()});
  expect_lacks(message_of(folder.description()), "use cifar10");  // of the folder that was given
}

TEST(Cifar100, ReadsFineLabelsAndPixels) {
  for (const char* subfolder : {"", "cifar-100-binary"}) {
    const TempFolder folder;
    const fs::path inner = folder.path() / subfolder;
    fs::create_directories(inner);
    Bytes train = cifar_records(3, 4, true);
    train[1] = 99;
    write_file(inner / "train.bin", train);
    expect_message("cifar100:" + folder.str(), {"DataError", "no test.bin", "cifar-100-binary.tar.gz"});
    write_file(inner / "test.bin", cifar_records(7, 2, true));
    const DatasetPair pair = open_dataset("cifar100:" + folder.str(), 0);
    EXPECT_EQ(pair.train.classes, 100);
    EXPECT_EQ(labels_of(pair.train), (std::vector<int32_t>{99, 4, 5, 6}));
    EXPECT_EQ(labels_of(pair.test), (std::vector<int32_t>{7, 8}));
    EXPECT_EQ(pair.train.class_names.at(99), "99");
    const auto image = pair.train.image(2);
    for (size_t i = 0; i < 1024; ++i) {
      for (size_t c = 0; c < 3; ++c)
        ASSERT_EQ(image[i * 3 + c], train[2 * (kRecord + 1) + 2 + c * 1024 + i]) << i << " " << c;
    }
    train[kRecord + 2] = 100;
    write_file(inner / "train.bin", train);
    expect_message("cifar100:" + folder.str(), {"at offset 3075", "a label from 0 to 99 in record 1", "found 100"});
  }
}

TEST(Cifar10, ReportsDamagedFiles) {
  const auto damaged = [](const std::function<void(Bytes&)>& edit, const std::vector<std::string>& message) {
    const CifarFolder folder;
    Bytes bytes = read_file(folder.train(3));
    edit(bytes);
    write_file(folder.train(3), bytes);
    expect_message(folder.description(), {"DataError", folder.train(3).string()});
    expect_message(folder.description(), message);
  };
  damaged([](Bytes& b) { b.pop_back(); }, {"at offset 6146", "records of 3073 bytes", "found a file of 9218 bytes"});
  damaged([](Bytes& b) { b.push_back(0); }, {"at offset 9219", "found a file of 9220 bytes"});
  damaged([](Bytes& b) { b.clear(); }, {"found an empty file; copy or download it again"});
  damaged([](Bytes& b) { b.resize(2 * kRecord); }, {"expected 3 records as in data_batch_1.bin, found 2"});
  damaged([](Bytes& b) { b[2 * kRecord] = 10; }, {"at offset 6146", "a label from 0 to 9 in record 2", "found 10"});
}

TEST(ValSplit, AllKindsDoWithoutATestSet) {
  const CifarFolder cifar;
  fs::remove(cifar.inner / "test_batch.bin");
  const DatasetPair pair = open_dataset(cifar.description(), 0, {.val_split = 0.2});
  EXPECT_EQ(pair.train.size(), 12);
  EXPECT_EQ(pair.test.size(), 3);
  EXPECT_EQ(open_dataset("synthetic:50", 0, {.val_split = 0.1}).test.size(), 5);
}

TEST(Readers, ATestSetThatIsNotThereMayBeOptional) {
  const IdxFolder idx;
  const CifarFolder cifar("cifar-10-batches-bin");
  for (const std::string& description : {idx.description(), cifar.description()})
    EXPECT_GT(open_dataset(description, 0, {.test_optional = true}).test.size(), 0) << description;
  fs::remove(idx.path() / "t10k-images-idx3-ubyte");
  expect_contains(message_of(idx.description(), {.test_optional = true}), "t10k-images");
  fs::remove(idx.path() / "t10k-labels-idx1-ubyte");
  fs::remove(cifar.inner / "test_batch.bin");
  for (const std::string& description : {idx.description(), cifar.description()}) {
    EXPECT_EQ(open_dataset(description, 0, {.test_optional = true}).test.size(), 0) << description;
    EXPECT_THROW(open_dataset(description, 0), DataError) << description;
  }
}

}  // namespace
}  // namespace vitrine
