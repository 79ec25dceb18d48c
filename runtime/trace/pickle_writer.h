// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <string_view>

/// Private to runtime/trace.
namespace vitrine {

/// Writes values in Python's pickle protocol 2: dicts, lists, integers, booleans, text. Repeated text refers to its
/// first occurrence.
class PickleWriter {
 public:
  explicit PickleWriter(std::ostream& out) : out_(out) { put("\x80\x02"); }
  void finish() { put("."); }

  void text(std::string_view value);  // UTF-8
  void number(int64_t value);
  void boolean(bool value) { put(value ? "\x88" : "\x89"); }
  void pair(int64_t first, int64_t second);

  /// `fill` writes keys and values alternately.
  template <class Fill>
  void dict(Fill fill) {
    put("}(");
    fill();
    put("u");
  }
  /// `write` writes one item.
  template <class Items, class Write>
  void list(const Items& items, Write write) {
    put("](");
    int in_batch = 0;
    for (const auto& item : items) {
      // Readers keep a batch on their stack.
      if (in_batch++ == kBatch) put("e("), in_batch = 1;
      write(item);
    }
    put("e");
  }

 private:
  static constexpr int kBatch = 1000;
  void put(std::string_view bytes) { out_.write(bytes.data(), static_cast<std::streamsize>(bytes.size())); }
  /// The lowest bytes, little-endian.
  void put_integer(uint64_t value, int bytes);

  std::ostream& out_;
  std::map<std::string, uint32_t, std::less<>> known_;
};

}  // namespace vitrine
