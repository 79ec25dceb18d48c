// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_group/agreement.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "runtime/error.h"
#include "runtime/process_group/message.h"
#include "runtime/text.h"

namespace vitrine {
namespace {

// Values that stand for a field without a value, and for one whose value is no text.
constexpr const char *kNothing = "nothing", *kGiven = "set";

std::string pack(const AgreementFields& fields) {
  process_group::Fields packed;
  for (const auto& [name, value] : fields) {
    packed.names.push_back(name);
    packed.values.push_back(value);
  }
  return process_group::encode(std::move(packed));
}

AgreementFields unpack(const std::string& bytes) {
  const auto packed = std::get<process_group::Fields>(process_group::decode(bytes));
  AgreementFields fields;
  for (size_t i = 0; i < std::min(packed.names.size(), packed.values.size()); ++i)
    fields.emplace_back(packed.names[i], packed.values[i]);
  return fields;
}

/// "rank 2 has", "ranks 0, 1 have".
std::string ranks_have(const std::vector<int>& ranks) {
  return fmt::format("{} {}", describe_ranks(ranks), ranks.size() == 1 ? "has" : "have");
}

std::string value_of(const AgreementFields& fields, const std::string& name) {
  const auto found = std::find_if(fields.begin(), fields.end(), [&](const auto& field) { return field.first == name; });
  return found == fields.end() ? kNothing : found->second;
}

}  // namespace

std::string describe_disagreement(const std::vector<AgreementFields>& fields) {
  std::vector<std::string> names;
  for (const AgreementFields& of_rank : fields) {
    for (const auto& field : of_rank) {
      if (std::find(names.begin(), names.end(), field.first) == names.end()) names.push_back(field.first);
    }
  }
  std::string text;
  for (const std::string& name : names) {
    std::map<std::string, std::vector<int>> ranks;
    for (size_t r = 0; r < fields.size(); ++r) ranks[value_of(fields[r], name)].push_back(static_cast<int>(r));
    if (ranks.size() == 1) continue;
    // The majority's value counts as intended; in a tie, that of the lowest rank.
    const auto meant = std::max_element(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) {
      return a.second.size() != b.second.size() ? a.second.size() < b.second.size() : a.second[0] > b.second[0];
    });
    for (const auto& [value, odd] : ranks) {
      if (value == meant->first) continue;
      const std::string has = value == kNothing ? "no " + name : value == kGiven ? name : name + " " + value;
      const std::string& most = meant->first;
      const std::string other = most == kNothing ? "none" : most == kGiven ? "it" : most;
      text += fmt::format("{}{} {}, where {} {}", text.empty() ? "" : "; ", ranks_have(odd), has,
                          ranks_have(meant->second), other);
    }
  }
  return text;
}

void require_agreement(ProcessGroup& process_group, const std::string& what, const AgreementFields& fields) {
  const std::string mine = pack(fields);
  if (process_group.all_equal(what, mine)) return;
  const std::string difference =
      process_group.exchange("the difference in " + what, mine, [](const std::vector<std::string>& parts) {
        std::vector<AgreementFields> all;
        for (const std::string& part : parts) all.push_back(unpack(part));
        return std::vector<std::string>{describe_disagreement(all)};
      });
  if (difference.empty()) return;
  // All processes know the difference, so all end normally.
  process_group.close();
  throw ConfigError(
      fmt::format("the processes disagree in {}: {}; start all of them with the same options", what, difference));
}

}  // namespace vitrine
