// SPDX-License-Identifier: Apache-2.0
#include "tools/program/run/unread.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/error.h"
#include "runtime/text.h"
#include "tools/program/flags/advice.h"
#include "tools/program/text/json_text.h"
#include "tools/program/text/tables.h"

namespace vitrine::tools {

std::string describe_unread(const std::exception_ptr& error) {
  std::string text = in_program_words(reason_of(error));
  try {
    std::rethrow_exception(error);
  } catch (const DamagedSample&) {
    text += "; --skip-damaged goes on without damaged images";
  } catch (const std::exception&) {  // another remedy, if any, is in its message
  }
  return text;
}

std::string first_error(ProcessGroup* process_group, const std::string& mine) {
  if (process_group == nullptr) return mine;
  return process_group->exchange("what ended the work", mine, [](const std::vector<std::string>& of_ranks) {
    const auto found = std::ranges::find_if(of_ranks, [](const std::string& text) { return !text.empty(); });
    return std::vector<std::string>{
        found == of_ranks.end() ? "" : fmt::format("rank {}: {}", found - of_ranks.begin(), *found)};
  });
}

std::vector<std::string> gather_skipped(const Job& job, ProcessGroup* process_group) {
  Json mine = Json::array();
  for (const auto& skipped : {job.skipped_train, job.skipped_test}) {
    if (!skipped) return {};
    for (const std::exception_ptr& error : skipped->errors()) mine.push_back(printable(reason_of(error).str()));
  }
  // Every process looks at some of the samples, to compare the data.
  std::set<std::string> all(mine.begin(), mine.end());
  if (process_group != nullptr) {
    for (const std::string& theirs : process_group->gather("the images that were skipped", json_text(mine))) {
      const Json list = Json::parse(theirs);
      all.insert(list.begin(), list.end());
    }
  }
  return {all.begin(), all.end()};
}

std::string skipped_report(const std::vector<std::string>& skipped) {
  if (skipped.empty()) return {};
  constexpr size_t kShown = 8;
  const auto count = static_cast<int64_t>(skipped.size());
  std::string text = fmt::format("{} {} skipped:\n", counted(count, "damaged image"), count == 1 ? "was" : "were");
  for (size_t i = 0; i < std::min(kShown, skipped.size()); ++i) text += fmt::format("  {}\n", excerpt(skipped[i], 400));
  if (skipped.size() > kShown) text += fmt::format("  and {} more, which --json lists\n", skipped.size() - kShown);
  return text;
}

}  // namespace vitrine::tools
