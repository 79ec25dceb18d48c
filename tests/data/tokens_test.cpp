// SPDX-License-Identifier: Apache-2.0
// Data sets of tokens: windows of a text, whose targets are the next tokens.
#include <fstream>

#include <gtest/gtest.h>

#include "data/loader.h"
#include "runtime/error.h"
#include "tests/data/temp_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

class TokenData : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_.str() + "/" + name, std::ios::binary) << bytes;
    return folder_.str() + "/" + name;
  }
  std::string path(const std::string& name) const { return folder_.str() + "/" + name; }
  /// Tokens first, first + 1, ... of 16 bits.
  static std::string tokens(int first, int count) {
    std::string bytes;
    for (int i = first; i < first + count; ++i) bytes += {static_cast<char>(i & 255), static_cast<char>(i >> 8)};
    return bytes;
  }
  static std::string header(int32_t magic, int32_t version, int32_t count) {
    std::vector<int32_t> values(256);
    values[0] = magic;
    values[1] = version;
    values[2] = count;
    return {reinterpret_cast<const char*>(values.data()), 1024};
  }
  static DatasetPair open(const std::string& description, int64_t length, int64_t vocabulary = 0) {
    return open_dataset(description, 0, {.sequence_length = length, .vocabulary = vocabulary});
  }
  static std::vector<int32_t> sequence(const Dataset& set, int64_t i) {
    std::vector<int32_t> all(static_cast<size_t>(set.sequence_length)), targets = all;
    set.samples->read_sequence(i, all, targets);
    all.push_back(targets.back());
    return all;
  }
  static std::string refusal(const std::string& description, int64_t length = 3) {
    return error_of<DataError>([&] { open(description, length); });
  }

 private:
  TempFolder folder_;
};

TEST_F(TokenData, FilesOfBothKindsAreReadInTheOrderOfTheirNames) {
  write("a_1.bin", tokens(1000, 11));                           // three windows of 3, and the target after them
  write("a_0.bin", header(20240520, 1, 26) + tokens(300, 26));  // eight
  const DatasetPair pair = open("tokens:" + path("a_*.bin"), 3);
  EXPECT_EQ(pair.train.size(), 10);
  EXPECT_EQ(pair.test.size(), 1);
  EXPECT_EQ(pair.train.classes, 50257);
  EXPECT_EQ(sequence(pair.train, 0), (std::vector<int32_t>{300, 301, 302, 303}));
  EXPECT_EQ(sequence(pair.train, 7), (std::vector<int32_t>{321, 322, 323, 324}));
  EXPECT_EQ(sequence(pair.train, 8), (std::vector<int32_t>{1000, 1001, 1002, 1003}));
  EXPECT_EQ(sequence(pair.test, 0), (std::vector<int32_t>{1006, 1007, 1008, 1009}));
}

TEST_F(TokenData, ALoaderDeliversSequencesAndTheNextTokens) {
  const DatasetPair pair = open("tokens:" + write("t.bin", tokens(0, 101)), 4);
  EXPECT_EQ(pair.train.size(), 23);  // of 25; the last tenth is for testing
  Loader loader(pair.train, {.batch_size = 5, .sample_indices = true});
  int64_t seen = 0;
  while (const auto batch = loader.next()) {
    const int64_t rows = batch->samples.numel();
    EXPECT_EQ(batch->images.shape, (Shape{rows, 4}));
    EXPECT_EQ(batch->labels.shape, (Shape{rows, 4}));
    for (int64_t i = 0; i < rows * 4; ++i) {
      const int32_t expected = batch->samples.as<int32_t>()[i / 4] * 4 + static_cast<int32_t>(i % 4);
      EXPECT_EQ(batch->images.as<int32_t>()[i], expected);
      EXPECT_EQ(batch->labels.as<int32_t>()[i], expected + 1);
    }
    seen += rows;
  }
  EXPECT_EQ(seen, pair.train.size());
}

TEST_F(TokenData, OfATextAreItsBytesOrItsCharacters) {
  const std::string file = write("text.txt", "zaza\xC3\xA9 zaza\xE2\x82\xAC zaza\xF0\x9F\x98\x80 zaza");
  const DatasetPair bytes = open("text:" + file, 5);
  EXPECT_EQ(bytes.train.classes, 256);
  EXPECT_EQ(sequence(bytes.train, 0), (std::vector<int32_t>{'z', 'a', 'z', 'a', 0xC3, 0xA9}));
  const DatasetPair characters = open("characters:" + file, 5);
  EXPECT_EQ(characters.train.class_names,
            (std::vector<std::string>{" ", "a", "z", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}));
  EXPECT_EQ(characters.train.classes, 6);
  EXPECT_EQ(sequence(characters.train, 0), (std::vector<int32_t>{2, 1, 2, 1, 3, 0}));
  EXPECT_EQ(characters.train.size() + characters.test.size(), 4);  // of 22 characters
}

TEST_F(TokenData, ATokenOutsideTheVocabularyIsRefusedWithFileAndOffset) {
  const std::string plain = write("plain.bin", tokens(0, 40)),
                    file = write("llm.bin", header(20240520, 1, 40) + tokens(0, 40));
  for (const auto& [name, begin] : {std::pair{plain, 0}, {file, 1024}}) {
    const DatasetPair pair = open("tokens:" + name, 3, 17);
    EXPECT_EQ(sequence(pair.train, 4), (std::vector<int32_t>{12, 13, 14, 15}));
    const std::string text = error_of<DataError>([&, set = pair.train] { sequence(set, 5); });
    expect_contains(
        text, name + ": at offset " + std::to_string(begin + 34) + ": token 17, expected one of a vocabulary of 17");
  }
}

TEST_F(TokenData, DamagedFilesAreRefused) {
  expect_contains(refusal("tokens:" + path("none*")), "no file has such a name");
  expect_contains(refusal("tokens:" + write("v2", header(20240520, 2, 5) + tokens(0, 5))), "expected version 1",
                  "found 2");
  expect_contains(refusal("tokens:" + write("cut", header(20240520, 1, 9) + tokens(0, 8))),
                  "at offset 8: 9 tokens, expected 8");
  expect_contains(refusal("tokens:" + write("odd", "abc")), "3 bytes, an odd number");
  expect_contains(refusal("tokens:" + write("short", tokens(0, 6))), "1 sequences of 3 tokens, expected at least 2");
  expect_contains(refusal("characters:" + write("latin", "caf\xE9 au lait")),
                  "at offset 3: expected UTF-8, found byte 233");
  const std::string file = write("good", tokens(0, 40));
  expect_contains(error_of<ConfigError>([&] { open("cifar10:" + file, 3); }),
                  "the model takes tokens; expected tokens:GLOB");
  expect_contains(error_of<ConfigError>([&] { open_dataset("tokens:" + file, 0); }), "expected cifar10:DIR");
}

}  // namespace
}  // namespace vitrine::test
