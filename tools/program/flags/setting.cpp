// SPDX-License-Identifier: Apache-2.0
#include "tools/program/flags/setting.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/printable.h"
#include "tools/program/text/suggest.h"

namespace vitrine::tools {

std::string Values::problem(std::string& text) const {
  if (!accepts && words.empty()) return {};
  if ((accepts && accepts(text)) || std::find(words.begin(), words.end(), text) != words.end()) return {};
  if (!expected.empty())
    return fmt::format("expected {}{}{}, got '{}'", expected, words.empty() ? "" : " or ", fmt::join(words, " or "),
                       excerpt(text));
  return fmt::format("expected {}, got '{}'{}", fmt::join(words, ", "), excerpt(text), did_you_mean(text, words));
}

std::string SettingRow::name() const {
  if (flag.empty()) return json_key();
  const std::string first = flag.substr(0, flag.find(','));
  return first.substr(negated() ? 5 : std::min(first.find_first_not_of('-'), first.size()));
}

std::string SettingRow::json_key() const {
  return key.empty() ? tools::json_key(name()) : key.substr(0, key.find('['));
}

Json SettingRow::value(const SettingContext& configuration) const {
  if (read) return read(configuration);
  Options options = configuration.options;
  return field_value(*this, options);
}

namespace {

template <class T>
Json json_of(const T& value) {
  return value;
}
Json json_of(const std::string& text) { return text_or_null(text); }
template <class T>
Json json_of(const std::optional<T>& value) {
  return value_or_null(value);
}
/// A float in its shortest form: 0.1, not 0.10000000149011612.
Json json_of(const std::optional<float>& value) { return value ? Json(std::stod(fmt::format("{}", *value))) : Json(); }

}  // namespace

Json field_value(const SettingRow& row, Options& options) {
  return std::visit(
      [&](const auto& member) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(member)>, std::monostate>) {
          return {};
        } else {
          return json_of(member(options));
        }
      },
      row.field);
}

}  // namespace vitrine::tools
