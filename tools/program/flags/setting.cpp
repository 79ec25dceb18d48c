// SPDX-License-Identifier: Apache-2.0
#include "tools/program/flags/setting.h"

#include <algorithm>
#include <optional>

#include <fmt/ranges.h>

#include "runtime/error.h"
#include "runtime/text.h"
#include "runtime/units.h"
#include "tools/program/text/suggest.h"

namespace vitrine::tools {
namespace {

template <class Number, class Good>
Values numbers(const std::string& expected, const Good& good) {
  return {.expected = expected, .accepts = [good](const std::string& text) {
            const std::optional<Number> value = read_number<Number>(text);
            return value && good(*value);
          }};
}

}  // namespace

std::string Values::problem(std::string& text) const {
  if (!accepts && words.empty()) return {};
  if ((accepts && accepts(text)) || std::find(words.begin(), words.end(), text) != words.end()) return {};
  if (!expected.empty())
    return fmt::format("expected {}{}{}, got '{}'", expected, words.empty() ? "" : " or ", fmt::join(words, " or "),
                       excerpt(text));
  return fmt::format("expected {}, got '{}'{}", fmt::join(words, ", "), excerpt(text), did_you_mean(text, words));
}

Values whole_number(int64_t least, int64_t most) {
  return numbers<int64_t>(fmt::format("an integer from {} to {}", least, most),
                          [=](int64_t value) { return value >= least && value <= most; });
}

Values number(double least, double most) {
  return numbers<double>(fmt::format("a number from {} to {}", least, most),
                         [=](double value) { return value >= least && value <= most; });
}

Values number_of_at_least_0() {
  return numbers<double>("a number from 0 to 3.4e38",
                         [](double value) { return value >= 0.0 && value <= std::numeric_limits<float>::max(); });
}

Values number_above_0() {
  return numbers<double>("a number above 0 and at most 3.4e38",
                         [](double value) { return value > 0.0 && value <= std::numeric_limits<float>::max(); });
}

Values fraction(bool with_0, bool with_1) {
  return numbers<double>(
      fmt::format("a number {} 0 and {} 1", with_0 ? "of at least" : "above", with_1 ? "at most" : "below"),
      [=](double value) { return (with_0 ? value >= 0.0 : value > 0.0) && (with_1 ? value <= 1.0 : value < 1.0); });
}

Values bytes(int64_t least, int64_t most) {
  const std::string limit =
      most == std::numeric_limits<int64_t>::max() ? "" : fmt::format(" and at most {}", format_bytes(most));
  return {.expected = fmt::format("a size of at least {} B{}, such as 512MiB, 8G or 4096 (bytes)", least, limit),
          .accepts = [least, most](std::string& text) {
            try {
              const int64_t value = parse_bytes(text);
              text = std::to_string(value);
              return value >= least && value <= most;
            } catch (const ConfigError&) {
              return false;
            }
          }};
}

Values one_of(const std::vector<std::string>& words) { return {.words = words}; }

Values one_of_or_file(const std::vector<std::string>& words, const std::string& file) {
  Values values = one_of(words);
  values.words.push_back(file);
  values.accepts = [ending = file.substr(file.rfind('.'))](const std::string& text) { return text.ends_with(ending); };
  return values;
}

Values number_or_words(Values number, const std::vector<std::string>& words) {
  number.words = words;
  return number;
}

std::string SettingRow::name() const {
  if (flag.empty()) return json_key();
  const std::string first = flag.substr(0, flag.find(','));
  return first.substr(negated() ? 5 : std::min(first.find_first_not_of('-'), first.size()));
}

std::string SettingRow::json_key() const {
  return key.empty() ? tools::json_key(name()) : key.substr(0, key.find('['));
}

}  // namespace vitrine::tools
