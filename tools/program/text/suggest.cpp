// SPDX-License-Identifier: Apache-2.0
#include "tools/program/text/suggest.h"

#include <algorithm>
#include <cctype>
#include <map>

#include <fmt/ranges.h>

namespace vitrine::tools {

namespace {

// Two letters in the wrong order are the most likely error: "--modle" is --model, not --mode.
constexpr size_t kExchange = 2, kEdit = 3;

/// Cost of the cheapest edits that turn `a` into `b`. source  Damerau 1964, adjacent exchanges, each letter edited once
size_t edit_cost(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = (i + j) * kEdit;
        continue;
      }
      const size_t change = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : kEdit);
      cost[i][j] = std::min({cost[i - 1][j] + kEdit, cost[i][j - 1] + kEdit, change});
      const bool exchanged = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && a[i - 1] != a[i - 2];
      if (exchanged) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + kExchange);
    }
  }
  return cost[a.size()][b.size()];
}

/// Dashes, underscores and case do not matter.
std::string letters(const std::string& word) {
  std::string text;
  for (const char c : word) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

}  // namespace

std::string nearest_word(const std::string& word, const std::vector<std::string>& known) {
  // PyTorch's names.
  static const std::map<std::string, std::string> others = {
      {"float32", "fp32"}, {"float16", "fp16"}, {"half", "fp16"}, {"bfloat16", "bf16"}};
  const std::string wanted = letters(word);
  if (wanted.empty()) return {};
  if (const auto other = others.find(wanted); other != others.end() && std::ranges::count(known, other->second) > 0)
    return other->second;
  std::vector<std::string> best, begun;
  // With more than one error in three letters it is another word.
  size_t best_cost = kEdit * std::max<size_t>(1, wanted.size() / 3);
  for (const std::string& candidate : known) {
    const std::string name = letters(candidate);
    const size_t cost = edit_cost(wanted, name);
    if (cost <= best_cost && cost < kEdit * name.size()) {
      if (cost < best_cost) best.clear();
      best_cost = cost;
      best.push_back(candidate);
    }
    if (wanted.size() >= 3 && name.rfind(wanted, 0) == 0) begun.push_back(candidate);
  }
  constexpr size_t kMostNamed = 3;
  if ((best.empty() || best_cost > kEdit) && !begun.empty() && begun.size() <= kMostNamed) best = begun;
  if (best.size() > kMostNamed) best.resize(1);
  return fmt::format("{}", fmt::join(best, " or "));
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& known) {
  const std::string nearest = nearest_word(word, known);
  return nearest.empty() ? std::string() : fmt::format("; did you mean {}?", nearest);
}

}  // namespace vitrine::tools
