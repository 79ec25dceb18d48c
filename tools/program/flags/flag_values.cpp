// SPDX-License-Identifier: Apache-2.0
#include "tools/program/flags/flag_values.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/text.h"
#include "tools/program/text/suggest.h"

namespace vitrine::tools {

namespace {

/// Returns an empty text for a valid value.
CLI::Validator validator(const std::function<bool(const std::string&)>& good, const std::string& expected) {
  return CLI::Validator(
      [good, expected](std::string& text) {
        return good(text) ? std::string() : fmt::format("expected {}, got '{}'", expected, text);
      },
      "");
}

}  // namespace

CLI::Validator whole_number(int64_t least, int64_t most) {
  const std::string range = most == std::numeric_limits<int64_t>::max() ? fmt::format("of at least {}", least)
                                                                        : fmt::format("from {} to {}", least, most);
  return validator(
      [least, most](const std::string& text) {
        const std::optional<int64_t> value = parse_number<int64_t>(text);
        return value && *value >= least && *value <= most;
      },
      "an integer " + range);
}

CLI::Validator number() {
  return validator([](const std::string& text) { return parse_number<double>(text).has_value(); }, "a number");
}

CLI::Validator number(double least, double most) {
  return validator(
      [least, most](const std::string& text) {
        const std::optional<double> value = parse_number<double>(text);
        return value && *value >= least && *value <= most;
      },
      fmt::format("a number from {} to {}", least, most));
}

CLI::Validator number_of_at_least_0() {
  return validator(
      [](const std::string& text) {
        const std::optional<double> value = parse_number<double>(text);
        return value && *value >= 0.0 && *value <= std::numeric_limits<float>::max();
      },
      "a number from 0 to 3.4e38");
}

CLI::Validator number_above_0() {
  return validator(
      [](const std::string& text) {
        const std::optional<double> value = parse_number<double>(text);
        return value && *value > 0.0 && *value <= std::numeric_limits<float>::max();
      },
      "a number above 0 and at most 3.4e38");
}

CLI::Validator fraction(bool with_0, bool with_1) {
  return validator(
      [with_0, with_1](const std::string& text) {
        const std::optional<double> value = parse_number<double>(text);
        return value && (with_0 ? *value >= 0.0 : *value > 0.0) && (with_1 ? *value <= 1.0 : *value < 1.0);
      },
      fmt::format("a number {} 0 and {} 1", with_0 ? "of at least" : "above", with_1 ? "at most" : "below"));
}

CLI::Validator one_of(const std::vector<std::string>& words) {
  return CLI::Validator(
      [words](std::string& text) {
        if (std::find(words.begin(), words.end(), text) != words.end()) return std::string();
        return fmt::format("expected {}, got '{}'{}", fmt::join(words, ", "), text, did_you_mean(text, words));
      },
      fmt::format("{{{}}}", fmt::join(words, ",")));
}

CLI::Validator one_of_or_file(const std::vector<std::string>& words, const std::string& file) {
  std::vector<std::string> all = words;
  all.push_back(file);
  const std::string ending = file.substr(file.rfind('.'));
  CLI::Validator word = one_of(all);
  return CLI::Validator(
      [word, ending](std::string& text) { return text.ends_with(ending) ? std::string() : word(text); },
      fmt::format("{{{}}}", fmt::join(all, ",")));
}

}  // namespace vitrine::tools
