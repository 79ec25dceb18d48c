// SPDX-License-Identifier: Apache-2.0
#include "tools/program/snapshot/pickle_reader.h"

#include <bit>
#include <unordered_map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "nn/json_file.h"
#include "runtime/error.h"

namespace vitrine::tools {

namespace {

/// The machine that a pickle is a program for: a stack of values, marks on it, and a memo. Opcodes have the names of
/// Python's pickletools.
class PickleMachine {
 public:
  PickleMachine(const std::string& source, std::string_view text, Values& values)
      : source_(source), text_(text), values_(values) {}

  const Value& run() {
    while (true) {
      opcode_at_ = at_;
      const auto opcode = static_cast<unsigned char>(take(1)[0]);
      if (opcode == '.') {  // STOP
        if (stack_.size() != 1) fail("the pickle ends with {} values, expected 1", stack_.size());
        return *stack_[0];
      }
      if (!read_scalar(opcode) && !build(opcode) && !use_memo(opcode)) {
        fail("opcode 0x{:02x} is not one of plain values; what names classes or calls functions is never executed",
             opcode);
      }
    }
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) const {
    throw DataError(
        fmt::format("{}, offset {}: {}", source_, opcode_at_, fmt::format(text, std::forward<Args>(args)...)));
  }

  std::string_view take(uint64_t bytes) {
    if (bytes > text_.size() - at_) fail("the pickle ends too early");
    const std::string_view taken = text_.substr(at_, bytes);
    at_ += bytes;
    return taken;
  }
  /// A little-endian number without a sign.
  uint64_t number(uint64_t bytes) {
    uint64_t value = 0;
    int shift = 0;
    for (const char c : take(bytes)) value |= uint64_t{static_cast<unsigned char>(c)} << shift, shift += 8;
    return value;
  }
  /// A little-endian number in two's complement, as in LONG1.
  int64_t signed_number(uint64_t bytes) {
    if (bytes > 8) fail("an integer of {} bytes is too large", bytes);
    if (bytes == 0) return 0;
    const auto unused = static_cast<int>(64 - 8 * bytes);
    return static_cast<int64_t>(number(bytes) << unused) >> unused;
  }

  void push(decltype(Value::value) value) { stack_.push_back(values_.add(std::move(value))); }
  Value* top() {
    if (stack_.size() <= floor()) fail("a value is missing");
    return stack_.back();
  }
  Value* pop() {
    Value* const value = top();
    stack_.pop_back();
    return value;
  }
  /// Values below the last mark are out of reach.
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  Value::List pop_to_mark() {
    if (marks_.empty()) fail("a mark is missing");
    const Value::List items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  Value::List pop_items(size_t count) {
    Value::List items(count);
    for (size_t i = count; i-- > 0;) items[i] = pop();
    return items;
  }

  bool read_scalar(unsigned char opcode) {
    switch (opcode) {
      case 0x80:  // PROTO
        if (const uint64_t protocol = number(1); protocol < 2 || protocol > 5)
          fail("pickle protocol {}, expected 2 to 5", protocol);
        return true;
      case 0x95:  // FRAME
        return take(8), true;
      case 'N':
        return push(std::monostate()), true;
      case 0x88:
      case 0x89:  // NEWTRUE, NEWFALSE
        return push(opcode == 0x88), true;
      case 'K':
        return push(static_cast<int64_t>(number(1))), true;
      case 'M':
        return push(static_cast<int64_t>(number(2))), true;
      case 'J':
        return push(signed_number(4)), true;
      case 0x8a:  // LONG1
        return push(signed_number(number(1))), true;
      case 'G': {  // BINFLOAT, big-endian
        uint64_t bits = 0;
        for (const char c : take(8)) bits = bits << 8 | static_cast<unsigned char>(c);
        return push(std::bit_cast<double>(bits)), true;
      }
      case 0x8c:  // SHORT_BINUNICODE
        return push(std::string(take(number(1)))), true;
      case 'X':
        return push(std::string(take(number(4)))), true;
      case 0x8d:  // BINUNICODE8
        return push(std::string(take(number(8)))), true;
      default:
        return false;
    }
  }

  bool build(unsigned char opcode) {
    switch (opcode) {
      case '(':
        return marks_.push_back(stack_.size()), true;
      case ']':
      case ')':  // EMPTY_LIST, EMPTY_TUPLE
        return push(Value::List()), true;
      case '}':
        return push(Value::Dict()), true;
      case 0x85:
      case 0x86:
      case 0x87:  // TUPLE1, TUPLE2, TUPLE3
        return push(pop_items(opcode - size_t{0x84})), true;
      case 't':
      case 'l':  // TUPLE, LIST
        return push(pop_to_mark()), true;
      case 'a':  // APPEND
        return append(pop_items(1)), true;
      case 'e':  // APPENDS
        return append(pop_to_mark()), true;
      case 's':  // SETITEM
        return set_items(pop_items(2)), true;
      case 'u':  // SETITEMS
        return set_items(pop_to_mark()), true;
      default:
        return false;
    }
  }
  void append(const Value::List& items) {
    auto* const list = std::get_if<Value::List>(&top()->value);
    if (list == nullptr) fail("a value is appended to something else than a list");
    list->insert(list->end(), items.begin(), items.end());
  }
  void set_items(const Value::List& items) {
    auto* const dict = std::get_if<Value::Dict>(&top()->value);
    if (dict == nullptr || items.size() % 2 != 0) fail("keys and values are not set in a dict");
    for (size_t i = 0; i < items.size(); i += 2) {
      const auto* const key = std::get_if<std::string>(&items[i]->value);
      if (key == nullptr) fail("a key is not text");
      (*dict)[*key] = items[i + 1];
    }
  }

  bool use_memo(unsigned char opcode) {
    switch (opcode) {
      case 0x94:  // MEMOIZE
        return memo_[memo_.size()] = top(), true;
      case 'q':  // BINPUT
        return memo_[number(1)] = top(), true;
      case 'r':  // LONG_BINPUT
        return memo_[number(4)] = top(), true;
      case 'h':
      case 'j': {  // BINGET, LONG_BINGET
        const auto found = memo_.find(number(opcode == 'h' ? 1 : 4));
        if (found == memo_.end()) fail("the memo has no such value");
        return stack_.push_back(found->second), true;
      }
      default:
        return false;
    }
  }

  const std::string& source_;
  std::string_view text_;
  Values& values_;
  uint64_t at_ = 0, opcode_at_ = 0;
  std::vector<Value*> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Value*> memo_;
};

/// At most 64 levels (check_json_text()).
const Value* from_json(const nlohmann::json& json, Values& values) {
  if (json.is_boolean()) return values.add(json.get<bool>());
  if (json.is_number_integer()) return values.add(json.get<int64_t>());
  if (json.is_number()) return values.add(json.get<double>());
  if (json.is_string()) return values.add(json.get<std::string>());
  if (json.is_array()) {
    Value::List list;
    for (const nlohmann::json& item : json) list.push_back(from_json(item, values));
    return values.add(std::move(list));
  }
  if (json.is_object()) {
    Value::Dict dict;
    for (const auto& [key, item] : json.items()) dict[key] = from_json(item, values);
    return values.add(std::move(dict));
  }
  return values.add(std::monostate());
}

}  // namespace

const Value& read_pickle(const std::string& source, std::string_view text, Values& values) {
  return PickleMachine(source, text, values).run();
}

const Value& read_json(const std::string& source, std::string_view text, Values& values) {
  check_json_text(source, text);
  try {
    return *from_json(nlohmann::json::parse(text), values);
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("{}: {}", source, describe_json_error(error)));
  }
}

}  // namespace vitrine::tools
