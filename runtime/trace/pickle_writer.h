// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

/// Private to runtime/trace.
namespace vitrine {

/// Writes a JSON value of objects, arrays, integers, booleans and text in Python's pickle protocol 2. An array of two
/// integers becomes a tuple. Repeated text refers to its first occurrence.
class PickleWriter {
 public:
  explicit PickleWriter(std::ostream& out) : out_(out) {}
  void write(const nlohmann::ordered_json& value);

 private:
  void put_value(const nlohmann::ordered_json& value);
  void put_text(std::string_view value);  // UTF-8
  void put_number(int64_t value);
  void put(std::string_view bytes) { out_.write(bytes.data(), static_cast<std::streamsize>(bytes.size())); }
  /// The lowest bytes, little-endian.
  void put_integer(uint64_t value, int bytes);

  std::ostream& out_;
  std::map<std::string, uint32_t, std::less<>> known_;
};

}  // namespace vitrine
