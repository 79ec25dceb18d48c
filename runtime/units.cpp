// SPDX-License-Identifier: Apache-2.0
#include "runtime/units.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include <fmt/format.h>

#include "runtime/error.h"

namespace vitrine {
namespace {

struct Unit {
  std::string_view name;
  int64_t bytes;
};

constexpr std::array<Unit, 14> kUnits{{{"", 1},
                                       {"b", 1},
                                       {"k", int64_t{1} << 10},
                                       {"m", int64_t{1} << 20},
                                       {"g", int64_t{1} << 30},
                                       {"t", int64_t{1} << 40},
                                       {"kib", int64_t{1} << 10},
                                       {"mib", int64_t{1} << 20},
                                       {"gib", int64_t{1} << 30},
                                       {"tib", int64_t{1} << 40},
                                       {"kb", 1'000},
                                       {"mb", 1'000'000},
                                       {"gb", 1'000'000'000},
                                       {"tb", 1'000'000'000'000}}};

[[noreturn]] void reject(std::string_view text, const char* why) {
  throw ConfigError(fmt::format(
      "size \"{}\": {}; write a number of bytes or one with KiB, MiB, GiB, TiB, KB, MB, GB or TB, such as 512MiB", text,
      why));
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Parses the digits at the beginning of `rest`.
std::string_view take_digits(std::string_view& rest) {
  const auto end = std::ranges::find_if_not(rest, is_digit);
  const std::string_view digits = rest.substr(0, static_cast<size_t>(end - rest.begin()));
  rest.remove_prefix(digits.size());
  return digits;
}

int64_t unit_bytes(std::string_view text, std::string_view name) {
  std::string lower(name);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto* unit = std::ranges::find_if(kUnits, [&](const Unit& u) { return u.name == lower; });
  if (unit == kUnits.end()) reject(text, "unknown unit");
  return unit->bytes;
}

}  // namespace

int64_t parse_bytes(std::string_view text) {
  if (!text.empty() && text.front() == '-') reject(text, "negative");
  std::string_view rest = text;
  const std::string_view whole = take_digits(rest);
  std::string_view fraction;
  if (!rest.empty() && rest.front() == '.') {
    rest.remove_prefix(1);
    fraction = take_digits(rest);
    if (fraction.empty()) reject(text, "no digit after the point");
  }
  if (whole.empty()) reject(text, "not a size");
  if (rest.size() > 1 && rest.front() == ' ') rest.remove_prefix(1);
  const int64_t unit = unit_bytes(text, rest);
  if (unit == 1 && !fraction.empty()) reject(text, "a fraction of a byte");

  int64_t bytes = 0;
  for (const char digit : whole) {
    if (__builtin_mul_overflow(bytes, int64_t{10}, &bytes) ||
        __builtin_add_overflow(bytes, int64_t{digit - '0'}, &bytes)) {
      reject(text, "does not fit into 63 bits");
    }
  }
  if (__builtin_mul_overflow(bytes, unit, &bytes)) reject(text, "does not fit into 63 bits");
  double part = 0, scale = static_cast<double>(unit);
  for (const char digit : fraction) part += (scale /= 10) * (digit - '0');
  if (__builtin_add_overflow(bytes, static_cast<int64_t>(std::llround(part)), &bytes))
    reject(text, "does not fit into 63 bits");
  return bytes;
}

std::string format_bytes(int64_t bytes) {
  constexpr std::array<const char*, 4> names{"KiB", "MiB", "GiB", "TiB"};
  if (bytes > -1024 && bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // 1023.95 would be printed as 1024.0.
  while (std::abs(value) >= 1023.95 && unit + 1 < names.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, names[unit]);
}

std::string size_argument(int64_t bytes) {
  // At least two digits, so that rounding up adds little.
  constexpr int64_t kFew = 10;
  constexpr std::array<const char*, 4> names{"KiB", "MiB", "GiB", "TiB"};
  int64_t unit = 1024;
  size_t name = 0;
  while (name + 1 < names.size() && bytes / 1024 >= kFew * unit) {
    unit *= 1024;
    ++name;
  }
  return fmt::format("{}{}", bytes / unit + (bytes % unit > 0 ? 1 : 0), names[name]);
}

std::string format_seconds(double seconds) {
  const double size = std::abs(seconds);
  if (size >= 0.99995 || std::isnan(seconds)) return fmt::format("{:.3f} s", seconds);
  if (size >= 0.99995e-3) return fmt::format("{:.1f} ms", seconds * 1e3);
  return fmt::format("{:.1f} us", seconds * 1e6);
}

}  // namespace vitrine
