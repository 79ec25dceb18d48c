// SPDX-License-Identifier: Apache-2.0
#include "tools/python/pickle_check.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "nn/json_file.h"
#include "runtime/descriptor.h"
#include "runtime/error.h"
#include "runtime/text.h"

namespace vitrine::python {

namespace {

constexpr uint64_t kMostParts = 10'000;  // of the keys in a file: if all of them collide, Python takes a second
constexpr uint32_t kEmpty = UINT32_MAX;  // a place in the memo

/// Keeps the stack and the memo as Python's reader of pickles does. Of an object it has the number of parts that every
/// hash and comparison visits: 0 for a short text or number, for a tuple one and those of its items, however shared.
class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text) {}

  /// Reads one of the opcodes that Python's pickletools describe. Returns false after the last one.
  bool read() {
    begin_ = at_;
    const char code = take(1)[0];
    const auto is = [code](std::string_view codes) { return codes.find(code) != std::string_view::npos; };
    // What follows: a line, or a number, which may say how many bytes do.
    const bool line = is("FILSVgp"), counted = is("BCTUX\x8a\x8b\x8c\x8d\x8e\x96");
    const uint64_t size = is("CKUhq\x80\x8a\x8c")   ? 1
                          : is("BJTXjr\x8b")        ? 4
                          : is("G\x8d\x8e\x95\x96") ? 8
                          : is("M")                 ? 2
                                                    : 0;
    if (!line && size == 0 && !is("(.012N]adelstu})\x85\x86\x87\x88\x89\x8f\x90\x91\x94")) {
      fail(fmt::format(
          "opcode 0x{:02x} is not one of plain values; what names classes or calls functions is never executed",
          static_cast<unsigned char>(code)));
    }
    std::string_view follows = line ? take(std::min(text_.find('\n', at_), text_.size() - 1) + 1 - at_) : take(size);
    uint64_t value = line ? parse_number<uint64_t>(follows.substr(0, follows.size() - 1)).value_or(~0ULL) : 0;
    for (uint64_t i = 0; i < size; ++i) value |= uint64_t{static_cast<unsigned char>(follows[i])} << (8 * i);
    if (counted) follows = take(value);

    if (code == '0' && !marks_.empty() && marks_.back() == stack_.size()) {
      marks_.pop_back();
      return true;
    }
    const bool to_mark = is("1deltu\x90\x91");
    const size_t takes = to_mark ? above_mark() : is("0a\x85") ? 1 : is("s\x86") ? 2 : is("\x87") ? 3 : 0;
    if (takes > above_mark() || (to_mark && marks_.empty())) fail("the stack has too few objects");
    if (to_mark) marks_.pop_back();
    uint64_t sum = 1;
    for (size_t i = 0; i < takes; ++i) {
      const uint32_t parts = stack_[stack_.size() - takes + i];
      sum += std::max(parts, 1U);
      if (is("\x90\x91") || (is("dsu") && i % 2 == 0)) of_keys_ += parts;
    }
    if (of_keys_ > kMostParts) fail(fmt::format("the keys of dicts and sets have more than {} parts", kMostParts));
    stack_.resize(stack_.size() - takes);

    if (is(")t\x85\x86\x87\x91")) push(sum);
    if (is("IL\x8a\x8b"))
      push(follows.size() / (line ? 24 : 10));  // from so many digits or bytes on, any number of integers has one hash
    if (is("BCSTUVX\x8c\x8d\x8e\x96")) push(follows.size() / 1024);
    if (is("FGJKMN]dl}\x88\x89\x8f")) push(0);
    if (is("(")) marks_.push_back(stack_.size());
    if (is("2")) push(top());
    if (is("pqr\x94")) put(is("\x94") ? filled_ : value);
    if (is("ghj")) push(get(value));
    return code != '.';
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw DataError(fmt::format("offset {}: {}", begin_, what)); }
  std::string_view take(uint64_t bytes) {
    if (bytes > text_.size() - at_) fail("the pickle ends too early");
    at_ += bytes;
    return std::string_view(text_).substr(at_ - bytes, bytes);
  }
  size_t above_mark() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }
  uint32_t top() const {
    if (above_mark() == 0) fail("the stack has too few objects");
    return stack_.back();
  }
  void push(uint64_t parts) { stack_.push_back(static_cast<uint32_t>(std::min(parts, kMostParts + 1))); }
  uint32_t get(uint64_t place) const {
    if (place >= memo_.size() || memo_[place] == kEmpty) fail(fmt::format("place {} of the memo is empty", place));
    return memo_[place];
  }
  void put(uint64_t place) {
    if (place > text_.size()) fail(fmt::format("place {} of the memo is beyond the file's size", place));
    if (place >= memo_.size()) memo_.resize(place + 1, kEmpty);
    if (memo_[place] == kEmpty) ++filled_;
    memo_[place] = top();
  }

  const std::string& text_;
  uint64_t at_ = 0, begin_ = 0, filled_ = 0, of_keys_ = 0;
  std::vector<uint32_t> stack_, memo_;
  std::vector<size_t> marks_;
};

}  // namespace

void check_pickle(const std::string& path) {
  const std::string text = read_regular_file(path, kLargestTextFile);
  Reader reader(text);
  while (reader.read()) continue;
}

}  // namespace vitrine::python
