// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>

#include <gtest/gtest.h>

#include "data/dataset.h"
#include "tests/data/counted_set.h"
#include "tests/data/temp_folder.h"
#include "tests/support/paths.h"

namespace vitrine {
namespace {

namespace fs = std::filesystem;
using test::labels_of;

const fs::path kShared = test::source_path("../shared/data");

std::vector<int32_t> first_labels(const Dataset& set, size_t count) {
  std::vector<int32_t> labels = labels_of(set);
  labels.resize(count);
  return labels;
}

void expect_balanced(const Dataset& set, int64_t each) {
  const std::vector<int32_t> labels = labels_of(set);
  for (int32_t label = 0; label < set.classes; ++label) EXPECT_EQ(std::ranges::count(labels, label), each) << label;
}

TEST(RealData, FashionMnist) {
  const fs::path folder = kShared / "fashion-mnist";
  if (!fs::exists(folder / "train-images-idx3-ubyte.gz")) GTEST_SKIP() << "no " << folder;
  const DatasetPair pair = open_dataset("fashion-mnist:" + folder.string(), 0);
  EXPECT_EQ(pair.train.size(), 60'000);
  EXPECT_EQ(pair.test.size(), 10'000);
  expect_balanced(pair.train, 6'000);
  expect_balanced(pair.test, 1'000);
  // The same files read as a generic set: its measured values match the published ones.
  const DatasetPair measured = open_dataset("idx:" + folder.string(), 0);
  EXPECT_NEAR(measured.train.mean[0], pair.train.mean[0], 5e-5);
  EXPECT_NEAR(measured.train.std[0], pair.train.std[0], 5e-5);
}

TEST(RealData, Cifar10) {
  const fs::path folder = kShared / "cifar-10-batches-bin";
  if (!fs::exists(folder / "data_batch_1.bin.xz")) GTEST_SKIP() << "no " << folder;
  if (std::system("xz --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "no xz";
  const test::TempFolder unpacked;
  const auto unpack = [&](const std::string& name) {
    const std::string command =
        "xz -dc '" + (folder / (name + ".xz")).string() + "' > '" + (unpacked.path() / name).string() + "'";
    ASSERT_EQ(std::system(command.c_str()), 0);
  };
  // One training file under all five names, because unpacking all takes long.
  unpack("data_batch_1.bin");
  unpack("test_batch.bin");
  for (const char* name : {"data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"}) {
    fs::create_hard_link(unpacked.path() / "data_batch_1.bin", unpacked.path() / name);
  }
  const DatasetPair pair = open_dataset("cifar10:" + unpacked.str(), 0);
  EXPECT_EQ(pair.train.size(), 50'000);
  EXPECT_EQ(pair.test.size(), 10'000);
  expect_balanced(pair.test, 1'000);
  EXPECT_EQ(first_labels(pair.train, 10), (std::vector<int32_t>{6, 9, 9, 4, 1, 1, 2, 7, 8, 3}));
  EXPECT_EQ(first_labels(pair.test, 10), (std::vector<int32_t>{3, 8, 8, 0, 6, 6, 1, 6, 3, 1}));
  const auto image = pair.train.image(0);
  EXPECT_EQ(image[0], 59);
  EXPECT_EQ(image[3], 43);
  EXPECT_EQ(image[6], 50);
}

}  // namespace
}  // namespace vitrine
