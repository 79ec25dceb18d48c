// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "runtime/text.h"
#include "tools/program/flags/configuration.h"

/// The table of settings. A setting is one row; flags, --json's configuration, what a checkpoint
/// compares, what ranks must agree on, and the tables of docs/program.md and docs/json.md are made from it.
namespace vitrine::tools {

/// A set of commands.
using Commands = unsigned;
constexpr Commands only(Options::Command command) { return 1U << static_cast<unsigned>(command); }
inline constexpr Commands kTrain = only(Options::Command::train), kPlan = only(Options::Command::plan),
                          kEval = only(Options::Command::eval), kCompare = only(Options::Command::compare),
                          kBench = only(Options::Command::collectives), kLab = only(Options::Command::lab),
                          kInfo = only(Options::Command::info), kLesson = only(Options::Command::lesson),
                          kVerify = only(Options::Command::verify), kPage = only(Options::Command::page),
                          kSample = only(Options::Command::sample);
inline constexpr Commands kRuns = kTrain | kPlan, kTrainings = kRuns | kCompare, kModels = kTrainings | kEval;

/// The number that a text is for a flag with values of type T: all ranges are of int64_t or double. "-0" is 0.
template <class T>
std::optional<T> read_number(std::string_view text) {
  const auto wide = parse_number<std::conditional_t<std::is_integral_v<T>, int64_t, double>>(text);
  return wide ? std::optional(static_cast<T>(*wide + 0)) : std::nullopt;
}

/// The texts that a flag accepts: those that pass `accepts`, and the words. Any text, if there are neither.
struct Values {
  std::string expected = {};                       // what `accepts` accepts: "a number from 0 to 1"
  std::function<bool(std::string&)> accepts = {};  // may rewrite a text: a size as bytes
  std::vector<std::string> words = {};

  /// Why a text is refused, with what is expected; empty if it is accepted.
  std::string problem(std::string& text) const;
};

Values whole_number(int64_t least, int64_t most = std::numeric_limits<int64_t>::max());
Values number(double least, double most);
/// A number of at least 0, or above 0, that f32 can hold.
Values number_of_at_least_0();
Values number_above_0();
/// A number above 0 and below 1, or from 0 (`with_0`) or to 1 (`with_1`).
Values fraction(bool with_0, bool with_1);
/// A size: "512MiB", "8G", "4096" (see parse_bytes()).
Values bytes(int64_t least, int64_t most = std::numeric_limits<int64_t>::max());
Values one_of(const std::vector<std::string>& words);
/// A word, or a file with the extension of `file` ("FILE.json").
Values one_of_or_file(const std::vector<std::string>& words, const std::string& file);
Values number_or_words(Values number, const std::vector<std::string>& words);

/// What several processes must have in common.
enum class Ranks { equal, given, local };  // the value; whether there is one; nothing

/// Where Options has a setting.
struct Field {
  const char* type = "";  // of a value, in the help: "N"
  /// A list takes all texts, numbers and switches the first. requires  the row accepts them
  std::function<void(Options&, const std::vector<std::string>&)> read = {};
  std::function<void(Options&)> reset = {};       // to the default
  std::function<Json(const Options&)> json = {};  // null for an empty text or optional
  std::function<bool&(Options&)> on = {};         // of a switch
};

/// What a value is called in the help.
template <class T>
inline constexpr const char* kValueType = std::is_same_v<T, bool>       ? "0|1"
                                          : std::is_integral_v<T>       ? "N"
                                          : std::is_floating_point_v<T> ? "X"
                                                                        : "TEXT";
template <class T>
inline constexpr const char* kValueType<std::optional<T>> = kValueType<T>;
template <class T>
inline constexpr const char* kValueType<std::vector<T>> = kValueType<T>;

inline void read_texts(std::string& value, const std::vector<std::string>& texts) {
  value = fmt::format("{}", fmt::join(texts, ","));
}
template <class T>
void read_texts(T& value, const std::vector<std::string>& texts) {
  value = read_number<T>(texts.front()).value();
}
template <class T>
void read_texts(std::optional<T>& value, const std::vector<std::string>& texts) {
  read_texts(value.emplace(), texts);
}
template <class T>
void read_texts(std::vector<T>& value, const std::vector<std::string>& texts) {
  value.clear();
  for (const std::string& text : texts) read_texts(value.emplace_back(), {text});
}

template <class T>
Json json_of(const T& value) {
  return value;
}
inline Json json_of(const std::string& text) { return text_or_null(text); }
template <class T>
Json json_of(const std::optional<T>& value) {
  return value_or_null(value);
}
/// A float in its shortest form: 0.1, not 0.10000000149011612.
inline Json json_of(const std::optional<float>& value) {
  return value ? Json(std::stod(fmt::format("{}", *value))) : Json();
}

/// The field to which `access` gives a reference: [](auto& options) -> auto& { return options.workers; }.
template <class Access>
Field field_of(const Access& access) {
  using T = std::decay_t<decltype(access(std::declval<Options&>()))>;
  Field field{.type = kValueType<T>,
              .read = [access](Options& o, const std::vector<std::string>& texts) { read_texts(access(o), texts); },
              .reset =
                  [access](Options& o) {
                    const Options defaults;
                    access(o) = access(defaults);
                  },
              .json = [access](const Options& o) { return json_of(access(o)); }};
  if constexpr (std::is_same_v<T, bool>) field.on = access;
  return field;
}

/// An effective value. Discarded (Json::value_t::discarded) where the setting does not exist.
using Reader = std::function<Json(const SettingContext&)>;

struct SettingRow {
  // The flag:
  std::string flag = {};   // "--accumulate,--acc-grad"; empty for a value that follows from others
  std::string group = {};  // of the help
  Commands commands = 0;   // that have the flag
  Field field = {};
  std::string help = {};
  std::pair<Commands, std::string> help_of = {};  // of commands where it reads differently
  Values values = {};
  std::string type = {};  // of the value, in the help; empty: by field and values
  Commands required = 0;
  bool shows_default = true;  // in the help
  enum class List { none, commas, repeated } list = List::none;
  std::string clear = {};  // the word for an empty text or list
  /// The word by which train and plan let the program choose the value, and what the help adds there.
  struct Choice {
    std::string word;
    bool Choices::*chosen = nullptr;
    std::string help = {};
  } choice = {};
  bool may_lack_value = false;  // --autotune: without a value it is the empty text
  /// The setting without which this one does nothing, and the values of it under which this one exists.
  struct Owner {
    std::string name;
    std::vector<std::string> values = {};
    Json otherwise = {};  // the effective value if the flag is left out
  } owner = {};

  // The JSON configuration:
  std::string key = {};            // with "[]" for arrays; empty: the name
  std::optional<Commands> json{};  // that print it; nothing: all of kModels that have the flag
  Reader read = {};                // empty: the field
  std::string meaning = {};        // in docs/json.md; empty: the flag

  // Comparisons:
  Effect effect = Effect::result;
  std::function<Effect(const SettingContext&)> effect_if = {};  // where it depends on others
  Reader compared = {};                                         // what is compared; empty: the JSON value
  Ranks ranks = Ranks::equal;

  bool negated() const { return flag.starts_with("--no-") && field.on; }
  /// The long name without dashes: "accumulate", "cuda-graph" of --no-cuda-graph, "adam-betas" of the key adam_betas.
  std::string name() const;
  std::string json_key() const;
  Commands json_commands() const { return json.value_or(flag.empty() ? 0 : commands & kModels); }
  Json value(const SettingContext& configuration) const {
    return read ? read(configuration) : field.json(configuration.options);
  }
};

}  // namespace vitrine::tools
