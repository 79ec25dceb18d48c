// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <glob.h>

#include "data/input_file.h"
#include "data/readers.h"
#include "data/settings.h"
#include "runtime/descriptor.h"
#include "runtime/error.h"
#include "runtime/memory/available.h"
#include "runtime/philox.h"

namespace vitrine {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLargestVocabulary = 1 << 16;  // of tokens of 16 bits
constexpr int64_t kGpt2Vocabulary = 50257;

/// A text as tokens: in memory, or in a file from byte `begin` on, 16 bits each with the lower byte first.
struct Text {
  std::string path;
  int64_t tokens = 0;
  std::vector<uint16_t> held = {};
  Descriptor file = {};
  int64_t begin = 0;
  int64_t first_window = 0;  // among those of all texts

  void read(int64_t first, std::span<uint16_t> out) const {
    if (!file) {
      std::copy_n(held.data() + first, out.size(), out.begin());
      return;
    }
    const int64_t offset = begin + first * 2;
    const int64_t got = read_at(file, offset, std::as_writable_bytes(out));
    if (got < 0)
      throw DataError(fmt::format("{}: at offset {}: cannot read it: {}", path, offset, std::strerror(errno)));
    if (got < static_cast<int64_t>(out.size_bytes()))
      throw DataError(
          fmt::format("{}: at offset {}: expected {} bytes, found {}; the file became shorter after it was "
                      "opened",
                      path, offset, out.size_bytes(), got));
  }
};

struct Texts {
  std::vector<Text> all;
  int64_t length = 0, vocabulary = 0;
};

/// Windows [first, first + count) of texts.
class WindowSamples final : public Samples {
 public:
  WindowSamples(std::shared_ptr<const Texts> texts, int64_t first, int64_t count, bool holds_texts)
      : texts_(std::move(texts)), first_(first), count_(count), holds_texts_(holds_texts) {}

  int64_t size() const override { return count_; }
  int32_t label(int64_t i) const override {
    std::vector<int32_t> tokens(static_cast<size_t>(texts_->length)), targets = tokens;
    read_sequence(i, tokens, targets);
    return targets.front();
  }
  void read_image(int64_t i, std::span<uint8_t> out) const override {
    std::vector<int32_t> tokens(static_cast<size_t>(texts_->length)), targets = tokens;
    read_sequence(i, tokens, targets);
    std::memcpy(out.data(), tokens.data(), out.size());
  }
  void read_sequence(int64_t i, std::span<int32_t> tokens, std::span<int32_t> targets) const override {
    const int64_t window = first_ + i;
    const auto next = std::ranges::upper_bound(texts_->all, window, {}, &Text::first_window);
    const Text& text = *std::prev(next);
    const int64_t first = (window - text.first_window) * texts_->length;
    thread_local std::vector<uint16_t> stored;
    stored.resize(tokens.size() + 1);
    text.read(first, stored);
    for (size_t k = 0; k < stored.size(); ++k) {
      if (stored[k] < texts_->vocabulary) continue;
      throw DataError(fmt::format("{}: at offset {}: token {}, expected one of a vocabulary of {}", text.path,
                                  text.begin + (first + static_cast<int64_t>(k)) * 2, stored[k], texts_->vocabulary));
    }
    std::copy(stored.begin(), stored.end() - 1, tokens.begin());
    std::copy(stored.begin() + 1, stored.end(), targets.begin());
  }
  int64_t held_bytes() const override {
    int64_t bytes = 0;
    for (const Text& text : texts_->all) bytes += static_cast<int64_t>(text.held.size() * sizeof text.held[0]);
    return holds_texts_ ? bytes : 0;
  }

 private:
  const std::shared_ptr<const Texts> texts_;
  const int64_t first_, count_;
  const bool holds_texts_;
};

std::vector<std::string> files_of(const std::string& description, const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (paths.empty()) throw DataError({given(settings::kDatasetDescription, description), ": no file has such a name"});
  return paths;  // sorted
}

/// A file of llm.c, with a header of 256 i32 (magic number, version, tokens), or of nanoGPT, without one.
Text open_token_file(const std::string& path) {
  constexpr int64_t kHeaderBytes = 1024;
  constexpr int32_t kMagic = 20240520;
  RegularFile opened = open_regular_file(path);
  Text text{.path = path, .file = std::move(opened.descriptor)};
  int32_t header[3] = {};
  const int64_t bytes = opened.bytes;
  if (read_at(text.file, 0, std::as_writable_bytes(std::span(header))) == sizeof header && header[0] == kMagic) {
    if (header[1] != 1)
      throw DataError(fmt::format("{}: at offset 4: expected version 1 of llm.c's files, found {}", path, header[1]));
    text.begin = kHeaderBytes;
    text.tokens = header[2];
    if (header[2] < 0 || bytes != kHeaderBytes + 2 * text.tokens)
      throw DataError(fmt::format("{}: at offset 8: {} tokens, expected {}, as the file has {} bytes", path, header[2],
                                  (bytes - kHeaderBytes) / 2, bytes));
    return text;
  }
  if (bytes % 2 != 0)
    throw DataError(
        fmt::format("{}: expected tokens of 16 bits, but the file has {} bytes, an odd number", path, bytes));
  text.tokens = bytes / 2;
  return text;
}

std::vector<uint8_t> bytes_of(const std::string& path) {
  InputFile file(path, InputFile::Packing::none);
  return file.read_all(file.file_bytes(), "a text");
}

/// The code points of UTF-8. throws DataError
std::vector<uint32_t> code_points_of(const std::string& path, const std::vector<uint8_t>& bytes) {
  std::vector<uint32_t> points;
  for (size_t i = 0; i < bytes.size();) {
    const uint8_t lead = bytes[i];
    const auto size = static_cast<size_t>(lead < 0x80 ? 1 : std::countl_one(lead));
    bool good = size <= 4 && (lead < 0x80 || size >= 2) && i + size <= bytes.size();
    uint32_t point = size == 1 ? lead : lead & (0x7FU >> size);
    for (size_t k = 1; good && k < size; ++k) {
      good = bytes[i + k] >> 6 == 2;
      point = point << 6 | (bytes[i + k] & 0x3FU);
    }
    if (!good) throw DataError(fmt::format("{}: at offset {}: expected UTF-8, found byte {}", path, i, lead));
    points.push_back(point);
    i += size;
  }
  return points;
}

std::string utf8_of(uint32_t point) {
  if (point < 0x80) return std::string(1, static_cast<char>(point));
  std::string text;
  const int more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
  text += static_cast<char>((0xFF00U >> (more + 1) & 0xFFU) | point >> (6 * more));
  for (int k = more; k-- > 0;) text += static_cast<char>(0x80U | (point >> (6 * k) & 0x3FU));
  return text;
}

DatasetPair split(Texts texts, const std::string& name, const DatasetOptions& options) {
  int64_t windows = 0;
  for (Text& text : texts.all) {
    text.first_window = windows;
    windows += std::max<int64_t>(0, text.tokens - 1) / texts.length;  // the last target is one token further
  }
  std::erase_if(texts.all, [&](const Text& text) { return text.tokens <= texts.length; });
  if (windows < 2)
    throw DataError(fmt::format("{}: {} sequences of {} tokens, expected at least 2; use shorter ones", name, windows,
                                texts.length));
  const int64_t held_out = options.holds_out() ? 0 : std::max<int64_t>(1, windows / 10);
  DatasetPair pair;
  pair.train.name = name + " train";
  pair.test.name = name + " test";
  const auto shared = std::make_shared<const Texts>(std::move(texts));
  for (Dataset* const set : {&pair.train, &pair.test}) {
    const bool test = set == &pair.test;
    set->sequence_length = shared->length;
    set->classes = shared->vocabulary;
    if (test && held_out == 0) continue;
    set->samples = std::make_shared<WindowSamples>(shared, test ? windows - held_out : 0,
                                                   test ? held_out : windows - held_out, !test);
  }
  return pair;
}

}  // namespace

DatasetPair open_tokens(const std::string& description, const DatasetOptions& options) {
  const size_t colon = description.find(':');
  const std::string kind = description.substr(0, colon), argument = description.substr(colon + 1);
  Texts texts{.all = {}, .length = options.sequence_length};
  if (kind == "tokens") {
    texts.vocabulary = options.vocabulary > 0 ? options.vocabulary : kGpt2Vocabulary;
    for (const std::string& path : files_of(description, argument)) texts.all.push_back(open_token_file(path));
    return split(std::move(texts), kind, options);
  }
  const std::vector<uint8_t> bytes = bytes_of(argument);
  Text text{.path = argument};
  if (kind == "text") {
    texts.vocabulary = 256;
    text.held.assign(bytes.begin(), bytes.end());
    text.tokens = static_cast<int64_t>(text.held.size());
    texts.all.push_back(std::move(text));
    DatasetPair pair = split(std::move(texts), kind, options);
    pair.train.bytes_per_token = pair.test.bytes_per_token = 1.0;
    return pair;
  }
  const std::vector<uint32_t> points = code_points_of(argument, bytes);
  std::map<uint32_t, uint16_t> numbers;  // by code point
  for (const uint32_t point : points) numbers.emplace(point, uint16_t{0});
  if (static_cast<int64_t>(numbers.size()) > kLargestVocabulary)
    throw DataError(
        fmt::format("{}: {} different characters, expected at most {}", argument, numbers.size(), kLargestVocabulary));
  std::vector<std::string> names;
  for (auto& [point, number] : numbers) {
    number = static_cast<uint16_t>(names.size());
    names.push_back(utf8_of(point));
  }
  for (const uint32_t point : points) text.held.push_back(numbers.at(point));
  texts.vocabulary = static_cast<int64_t>(names.size());
  text.tokens = static_cast<int64_t>(text.held.size());
  texts.all.push_back(std::move(text));
  DatasetPair pair = split(std::move(texts), kind, options);
  for (Dataset* const set : {&pair.train, &pair.test}) {
    set->class_names = names;
    set->characters = fmt::format("{}", fmt::join(names, ""));
    set->bytes_per_token = static_cast<double>(bytes.size()) / static_cast<double>(points.size());
  }
  return pair;
}

DatasetPair draw_tokens(int64_t count, uint64_t seed, const DatasetOptions& options) {
  Texts texts{.all = {},
              .length = options.sequence_length,
              .vocabulary = options.vocabulary > 0 ? std::min(options.vocabulary, kLargestVocabulary) : 256};
  Text text{.path = "synthetic"};
  require_memory(count * options.sequence_length * 2, fmt::format("synthetic: {} sequences", count), kUseLessMemory);
  PhiloxSequence random(seed, random_stream(RandomPurpose::synthetic_data, 0));
  text.tokens = count * options.sequence_length + 1;
  int64_t token = 0;
  for (int64_t i = 0; i < text.tokens; ++i) {  // the next one is one of four
    token = (token + 1 + random.next_u32() % 4) % texts.vocabulary;
    text.held.push_back(static_cast<uint16_t>(token));
  }
  texts.all.push_back(std::move(text));
  return split(std::move(texts), "synthetic", options);
}

}  // namespace vitrine
