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
#include <variant>
#include <vector>

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
                          kVerify = only(Options::Command::verify), kPage = only(Options::Command::page);
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

template <class T>
using Member = std::function<T&(Options&)>;
/// Where Options has a setting.
using Field =
    std::variant<std::monostate, Member<bool>, Member<int>, Member<int64_t>, Member<uint64_t>, Member<double>,
                 Member<std::string>, Member<std::vector<std::string>>, Member<std::vector<int64_t>>,
                 Member<std::vector<int>>, Member<std::optional<int>>, Member<std::optional<int64_t>>,
                 Member<std::optional<float>>, Member<std::optional<double>>, Member<std::optional<std::string>>>;

/// A value in force. Discarded (Json::value_t::discarded) where the setting does not exist.
using Reader = std::function<Json(const SettingContext&)>;

struct SettingRow {
  // The flag:
  std::string flag = {};   // "--accumulate,--acc-grad"; empty for a value that follows from others
  std::string group = {};  // of the help
  Commands commands = 0;   // that have the flag
  Field field = {};
  std::string help = {};
  std::vector<std::pair<Commands, std::string>> help_of = {};  // of commands where it reads differently
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
    Json otherwise = {};  // the value in force if the flag is left out
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

  bool negated() const { return flag.starts_with("--no-") && std::holds_alternative<Member<bool>>(field); }
  /// The long name without dashes: "accumulate", "cuda-graph" of --no-cuda-graph, "adam-betas" of the key adam_betas.
  std::string name() const;
  std::string json_key() const;
  Commands json_commands() const { return json.value_or(flag.empty() ? 0 : commands & kModels); }
  Json value(const SettingContext& configuration) const;
};

/// The field's value; null for an empty text or optional.
Json field_value(const SettingRow& row, Options& options);

}  // namespace vitrine::tools
