// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include <fmt/format.h>

#include "runtime/text.h"

namespace vitrine {
namespace {

struct Character {
  uint32_t code = 0;
  size_t bytes = 0;  // 0: not UTF-8
};

Character first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || bytes > text.size()) return {};
  uint32_t code = lead & (0xffU >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fU);
  }
  const uint32_t least = bytes == 4 ? 0x10000 : bytes == 3 ? 0x800 : 0x80;
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  return code < least || code > 0x10ffff || surrogate ? Character{} : Character{code, bytes};
}

bool reorders_text(uint32_t code) {
  return (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069) || code == 0x200e || code == 0x200f ||
         code == 0x061c;
}

std::string make_printable(std::string_view text, bool keep_lines) {
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    if (at >= kLongestPrintable) return shown + fmt::format("... ({} bytes more)", text.size() - at);
    const Character c = first_character(text.substr(at));
    if (c.bytes == 0) {
      shown += fmt::format("\\x{:02x}", static_cast<uint8_t>(text[at++]));
      continue;
    }
    if (keep_lines && c.code == '\n') {
      shown += '\n';
    } else if (c.code < 0x20 || c.code == 0x7f) {
      shown += fmt::format("\\x{:02x}", c.code);
    } else if ((c.code >= 0x80 && c.code < 0xa0) || c.code == 0x2028 || c.code == 0x2029 || reorders_text(c.code)) {
      shown += fmt::format("\\u{:04x}", c.code);
    } else {
      shown += text.substr(at, c.bytes);
    }
    at += c.bytes;
  }
  return shown;
}

}  // namespace

std::string printable(std::string_view text) { return make_printable(text, false); }
std::string printable_lines(std::string_view text) { return make_printable(text, true); }

std::string excerpt(std::string_view text, size_t most_bytes) {
  constexpr size_t kMarker = 20;
  const size_t most_whole = most_bytes + kMarker;
  if (text.size() <= most_whole) {
    std::string whole = printable(text);
    if (whole.size() <= most_whole) return whole;
  }
  // A byte can become four characters, so the parts are shortened until their printable forms fit.
  size_t end = most_bytes / 4, begin = most_bytes - end;
  const size_t most_end = end, most_begin = begin;
  begin = std::min(begin, text.size());
  end = std::min(end, text.size());
  while (printable(text.substr(0, begin)).size() > most_begin) --begin;
  while (printable(text.substr(text.size() - end)).size() > most_end) --end;
  return fmt::format("{}...({} bytes)...{}", printable(text.substr(0, begin)), text.size() - begin - end,
                     printable(text.substr(text.size() - end)));
}

}  // namespace vitrine
