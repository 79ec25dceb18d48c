// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cctype>
#include <string_view>
#include <vector>

/// The text of PTX.
namespace vitrine::ptx {

struct Type {
  char letter = 0;  // b, u, s, f, p (predicate), h (bf16)
  int bits = 0;
};
inline bool parse_type(std::string_view t, Type& type) {
  if (t == "pred") return type = {'p', 32}, true;
  if (t == "bf16") return type = {'h', 16}, true;
  if (t.size() < 2 || std::string_view("busf").find(t[0]) == std::string_view::npos) return false;
  int bits = 0;
  for (char digit : t.substr(1)) {
    if (digit < '0' || digit > '9') return false;
    bits = bits * 10 + digit - '0';
  }
  if (bits != 8 && bits != 16 && bits != 32 && bits != 64) return false;
  type = {t[0], bits};
  return true;
}

inline std::string_view trim(std::string_view t) {
  while (!t.empty() && std::isspace(static_cast<unsigned char>(t.front()))) t.remove_prefix(1);
  while (!t.empty() && std::isspace(static_cast<unsigned char>(t.back()))) t.remove_suffix(1);
  return t;
}
inline std::vector<std::string_view> split(std::string_view t, char separator) {  // outside braces and brackets
  std::vector<std::string_view> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= t.size(); ++i) {
    if (i == t.size() || (t[i] == separator && depth == 0)) {
      parts.push_back(trim(t.substr(begin, i - begin)));
      begin = i + 1;
    } else if (t[i] == '{' || t[i] == '[' || t[i] == '(') {
      ++depth;
    } else if (t[i] == '}' || t[i] == ']' || t[i] == ')') {
      --depth;
    }
  }
  if (parts.size() == 1 && parts[0].empty()) parts.clear();
  return parts;
}

}  // namespace vitrine::ptx
