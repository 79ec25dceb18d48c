// SPDX-License-Identifier: Apache-2.0
#include "tools/program/text/terminal.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <sys/ioctl.h>
#include <unistd.h>

#include "runtime/text.h"

namespace vitrine::tools {
namespace {

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

/// 0: not known.
int columns_of(int descriptor) {
  if (const char* columns = std::getenv("COLUMNS")) {
    const std::optional<int> value = parse_number<int>(columns);
    if (value && *value > 0) return *value;
  }
  winsize size{};
  return is_terminal(descriptor) && ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

void wrap_line(std::string_view line, size_t width, LongWords long_words, std::string& result) {
  const size_t indentation = std::min(line.find_first_not_of(' '), line.size());
  const std::string indent(std::min(indentation, width / 2), ' ');
  line.remove_prefix(indentation);
  std::string current = indent;
  bool has_words = false;
  const auto end_line = [&] {
    result += current + "\n";
    current = indent;
    has_words = false;
  };
  while (!line.empty()) {
    const size_t gap = std::min(line.find_first_not_of(' '), line.size());
    const size_t length = std::min(line.find(' ', gap), line.size()) - gap;
    if (has_words && current.size() + gap + length > width) end_line();
    if (has_words) current.append(gap, ' ');
    std::string_view word = line.substr(gap, length);
    for (; long_words == LongWords::cut && current.size() + word.size() > width; end_line()) {
      const size_t room = width - current.size();
      current += word.substr(0, room);
      word.remove_prefix(room);
    }
    current += word;
    has_words = has_words || !word.empty();
    line.remove_prefix(gap + length);
  }
  result += current.erase(current.find_last_not_of(' ') + 1);
}

}  // namespace

bool is_terminal(int descriptor) {
  if (isatty(descriptor) != 1 || is_set("OMPI_COMM_WORLD_RANK") || is_set("PMIX_RANK")) return false;
  const char* kind = std::getenv("TERM");
  return kind == nullptr || std::strcmp(kind, "dumb") != 0;
}

Style Style::of(int descriptor) {
  const int columns = columns_of(descriptor);
  return {is_terminal(descriptor) && !is_set("NO_COLOR"), columns == 0 ? kUnlimited : std::max(columns, kLeastWidth)};
}

std::string Style::bold(const std::string& text) const { return color ? "\033[1m" + text + "\033[0m" : text; }
std::string Style::dim(const std::string& text) const { return color ? "\033[2m" + text + "\033[0m" : text; }
std::string Style::prose(const std::string& text) const { return wrap(printable_lines(text), width, LongWords::kept); }

std::string wrap(const std::string& text, int width, LongWords long_words) {
  std::string result;
  bool first = true;
  for (const std::string& line : split_text(text, '\n')) {
    if (!first) result += '\n';
    wrap_line(line, static_cast<size_t>(std::max(width, 1)), long_words, result);
    first = false;
  }
  return result;
}

}  // namespace vitrine::tools
