// SPDX-License-Identifier: Apache-2.0
#include "tools/program/text/scale.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "runtime/units.h"
#include "tools/program/text/tables.h"

namespace vitrine::tools::html {

namespace {

template <class Number>
std::vector<Number> multiples(Number step, Number largest) {
  std::vector<Number> all = {0};
  while (all.back() < largest) all.push_back(step * static_cast<Number>(all.size()));
  return all;
}

/// "1.5" of "1.50", with three digits that count.
std::string three_digits(double value) {
  std::string text = value >= 100  ? fmt::format("{:.0f}", value)
                     : value >= 10 ? fmt::format("{:.1f}", value)
                                   : fmt::format("{:.2f}", value);
  if (text.find('.') == std::string::npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

}  // namespace

std::vector<double> ticks(double largest, int count) {
  if (!(largest > 0) || !std::isfinite(largest)) return {0, 1};
  const double rough = largest / count, power = std::pow(10.0, std::floor(std::log10(rough)));
  const double factor = rough / power;
  return multiples(power * (factor <= 1 ? 1 : factor <= 2 ? 2 : factor <= 5 ? 5 : 10), largest * (1 - 1e-9));
}

std::vector<int64_t> byte_ticks(int64_t largest, int count) {
  int64_t step = 256;
  while (step * count < largest) step *= 2;
  return multiples(step, std::max<int64_t>(largest, 1));
}

std::string short_bytes(int64_t bytes) {
  std::string text = format_bytes(bytes);
  if (const size_t fraction = text.find(".0 "); fraction != std::string::npos) text.erase(fraction, 2);
  return text;
}

std::string short_seconds(double seconds) {
  if (seconds == 0) return "0";
  if (seconds >= 1) return three_digits(seconds) + " s";
  return seconds >= 1e-3 ? three_digits(seconds * 1e3) + " ms" : three_digits(seconds * 1e6) + " us";
}

std::string short_number(double value) {
  const double size = std::fabs(value);
  if (size >= 999.5) return format_count(std::llround(value));
  const int digits = size >= 99.5 ? 0 : size >= 9.95 ? 1 : 2;
  return size == 0.0 || size >= 0.095 ? fmt::format("{:.{}f}", value, digits) : fmt::format("{:.2g}", value);
}

std::string percent(double share) {
  const double hundredths = share * 100;
  return hundredths != 0 && std::abs(hundredths) < 10 ? fmt::format("{:.1f} %", hundredths)
                                                      : fmt::format("{:.0f} %", hundredths);
}

}  // namespace vitrine::tools::html
