// SPDX-License-Identifier: Apache-2.0
#include "nn/json_file.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "runtime/error.h"
#include "runtime/file_type.h"
#include "runtime/text.h"

namespace vitrine {
namespace {

constexpr int kDeepest = 64;

bool is_shallow_json(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kDeepest) return false;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return true;
}

}  // namespace

bool is_small_json(std::string_view line) {
  return static_cast<int64_t>(line.size()) <= kLargestJson && is_shallow_json(line);
}

void check_json_text(const std::string& source, std::string_view text) {
  if (const FileType kind = recognize(text); kind && kind.format != FileType::Format::text && !text.empty())
    throw DataError(fmt::format("{}: expected JSON, found {}", source, kind.describe("name a JSON file")));
  if (!is_shallow_json(text)) throw DataError(fmt::format("{}: it is nested deeper than {} levels", source, kDeepest));
}

std::string describe_json_error(const std::exception& error) {
  // "[json.exception.parse_error.101] parse error at line 2, column 23: syntax error while parsing ... - ..."
  std::string text = error.what();
  if (text.starts_with('[')) text.erase(0, std::min(text.find("] "), text.size() - 2) + 2);
  constexpr std::string_view kPlace = "parse error at ", kSyntax = "syntax error while parsing ";
  if (text.starts_with(kPlace)) text.erase(0, kPlace.size());
  if (const size_t begin = text.find(kSyntax); begin != std::string::npos) {
    if (const size_t end = text.find(" - ", begin); end != std::string::npos) text.erase(begin, end + 3 - begin);
  }
  // nlohmann-json 3.11.3 and later advise the caller instead.
  if (const size_t begin = text.find("attempting to parse an empty input"); begin != std::string::npos)
    text.replace(begin, std::string::npos, "unexpected end of input; expected '[', '{', or a literal");
  // The library's words for tokens become the reader's.
  constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"invalid literal; last read: ", "found "},
      {"unexpected ", "found "},
      {"; expected ", ", expected "},
      {"; last read: ", " in "},
      {"'[', '{', or a literal", "a value"},
      {"end of input", "the end"},
      {"string literal", "a string"},
      {"number literal", "a number"},
      {"number overflow parsing ", "a number is too large: "},
      {" literal", ""}};
  for (const auto& [theirs, ours] : kWords) {
    if (const size_t begin = text.find(theirs); begin != std::string::npos) text.replace(begin, theirs.size(), ours);
  }
  if (text.ends_with("expected a string")) text += " in double quotes";
  return excerpt(text, 240);
}

}  // namespace vitrine
