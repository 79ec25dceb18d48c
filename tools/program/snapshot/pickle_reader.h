// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace vitrine::tools {

/// A plain value of Python or JSON: none, a boolean, number, text, list (or tuple), or dict with text as keys.
struct Value {
  using List = std::vector<const Value*>;
  using Dict = std::map<std::string, const Value*, std::less<>>;
  std::variant<std::monostate, bool, int64_t, double, std::string, List, Dict> value;
};

/// Owns the values of a file. They refer to each other by address, so a list that a file nests deeply, repeats often or
/// puts into itself costs no stack and no memory beyond the file's.
class Values {
 public:
  Value* add(decltype(Value::value) value) { return &values_.emplace_back(Value{std::move(value)}); }

 private:
  std::deque<Value> values_;
};

/// Reads a pickle of plain values (protocols 2 to 5) in time and memory proportional to its size. Never executes it:
/// what names a class or calls something is refused.
///   source  names the text in messages
/// throws  DataError with the offset
const Value& read_pickle(const std::string& source, std::string_view text, Values& values);

/// The same of a text in JSON.
const Value& read_json(const std::string& source, std::string_view text, Values& values);

}  // namespace vitrine::tools
