// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_group/slurm.h"

#include <algorithm>

#include "runtime/text.h"

namespace vitrine {
namespace {

/// Parses a number of at least 1 that makes up the whole text.
std::optional<int> parse_positive(std::string_view text) {
  const std::optional<int> value = parse_number<int>(text);
  return value && *value >= 1 ? value : std::nullopt;
}

std::optional<SlurmCount> parse_count(std::string_view item) {
  SlurmCount count;
  const size_t open = item.find("(x");
  const auto value = parse_positive(item.substr(0, open));
  if (!value) return std::nullopt;
  count.value = *value;
  if (open == std::string_view::npos) return count;
  if (!item.ends_with(')')) return std::nullopt;
  const auto times = parse_positive(item.substr(open + 2, item.size() - open - 3));
  if (!times) return std::nullopt;
  count.times = *times;
  return count;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

std::optional<std::vector<SlurmCount>> parse_slurm_counts(std::string_view text) {
  std::vector<SlurmCount> counts;
  for (const std::string& item : split_text(text, ',')) {
    const auto count = parse_count(item);
    if (!count) return std::nullopt;
    counts.push_back(*count);
  }
  return counts;
}

std::optional<std::string> first_slurm_host(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    const char c = list.front();
    list.remove_prefix(1);
    if (c == ']' || c == ' ') return std::nullopt;
    if (c != '[') {
      host += c;
      continue;
    }
    // Only the first number in the brackets counts, with its leading zeros.
    const auto* digits_end = std::find_if_not(list.begin(), list.end(), is_digit);
    const auto digits = static_cast<size_t>(digits_end - list.begin());
    const size_t close = list.find(']');
    if (digits == 0 || close == std::string_view::npos ||
        std::string_view("-,]").find(list[digits]) == std::string_view::npos)
      return std::nullopt;
    host += list.substr(0, digits);
    list.remove_prefix(close + 1);
  }
  if (host.empty()) return std::nullopt;
  return host;
}

}  // namespace vitrine
