// SPDX-License-Identifier: Apache-2.0
#include "tools/program/flags/advice.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "data/settings.h"
#include "nn/parallel/plan/remedies.h"
#include "nn/parallel/settings.h"
#include "nn/settings.h"
#include "runtime/error.h"
#include "runtime/settings.h"
#include "runtime/text.h"

namespace vitrine::tools {
namespace {

/// Settings whose flags have other names.
constexpr std::pair<Setting, const char*> kRenamed[] = {{settings::kResidentImages, "--data-on-device"},
                                                        {settings::kWorkspaceBytes, "--workspace"},
                                                        {settings::kReserveWorkspace, "--workspace"},
                                                        {settings::kScheme, "--mode"},
                                                        {settings::kTrainBatches, "--drop-last"},
                                                        {settings::kDatasetDescription, "--data"},
                                                        {settings::kDatasetMeasured, "--normalize"},
                                                        {settings::kMemoryBytes, "--device-memory"},
                                                        {settings::kTimeoutMs, "--timeout"},
                                                        {settings::kSize, "--world-size"}};

/// "--batch-size" of "EngineConfig::batch_size".
std::map<std::string_view, std::string> find_flags() {
  std::map<std::string_view, std::string> flags;
  for (const std::span<const Setting> layer : {std::span<const Setting>(settings::kRuntimeSettings),
                                               {settings::kDataSettings},
                                               {settings::kModelSettings},
                                               {settings::kEngineSettings}}) {
    for (const Setting setting : layer) {
      const std::string_view name = setting.name();
      std::string& flag = flags[name] = "--" + std::string(name.substr(name.rfind(':') + 1));
      std::ranges::replace(flag, '_', '-');
    }
  }
  for (const auto& [setting, flag] : kRenamed) flags[setting.name()] = flag;
  return flags;
}

using ReasonPart = Reason::Part;

const char* flag_with_modes(Setting setting) { return setting == settings::kScheme ? "--modes" : flag_of(setting); }

/// Whether a command with --modes has a flag for what this part proposes.
bool has_flag_with_modes(const ReasonPart& part) {
  constexpr Setting kAxes[] = {settings::kSplit, settings::kStaging, settings::kLossAt, settings::kReduce,
                               settings::kShard};
  return part.kind != ReasonPart::Kind::proposed ||
         std::find(std::begin(kAxes), std::end(kAxes), part.setting) == std::end(kAxes);
}

/// Splits the parts at a text, which ends one of them or is the whole of it.
std::vector<std::vector<ReasonPart>> split_at(const std::vector<ReasonPart>& parts, std::string_view text) {
  std::vector<std::vector<ReasonPart>> pieces(1);
  for (const ReasonPart& part : parts) {
    if (part.kind != ReasonPart::Kind::text || !part.text.ends_with(text)) {
      pieces.back().push_back(part);
      continue;
    }
    if (part.text.size() > text.size()) pieces.back().emplace_back(part.text.substr(0, part.text.size() - text.size()));
    pieces.emplace_back();
  }
  return pieces;
}

}  // namespace

const char* flag_of(Setting setting) {
  static const std::map<std::string_view, std::string> flags = find_flags();
  const auto found = flags.find(setting.name());
  return found == flags.end() ? setting.name() : found->second.c_str();
}

std::string in_program_words(const Reason& reason) { return reason.str(flag_of); }

std::string in_program_words(const std::exception& error) {
  const auto* const ours = dynamic_cast<const Error*>(&error);
  return ours != nullptr ? in_program_words(ours->reason()) : error.what();
}

std::string with_short_quotes(std::string message, const std::vector<std::string>& arguments) {
  constexpr size_t kLongest = 300, kShown = 200;
  constexpr std::string_view kSeparators = ",:;/=@ ";
  std::vector<std::string> quotes;
  const auto add = [&](std::string_view quote) {
    if (quote.size() > kLongest) quotes.emplace_back(quote);
  };
  for (const std::string& argument : arguments) {
    const std::string text = printable_lines(argument);  // as in messages
    add(text);
    // Messages also quote items of a list, and what follows the name of an item.
    int items = 0;
    for (size_t begin = 0, end = 0; end < text.size(); begin = end + 1) {
      end = std::min(text.find_first_of(kSeparators, begin), text.size());
      add(std::string_view(text).substr(begin, end - begin));
      if (++items < 4) add(std::string_view(text).substr(begin));
    }
  }
  std::ranges::sort(quotes, std::ranges::greater(), &std::string::size);
  for (const std::string& quote : quotes) {
    const std::string head = quote.substr(0, kLongest);
    for (size_t at = message.find(head); at != std::string::npos; at = message.find(head, at + 1)) {
      // A message may be cut, too.
      const auto begin = message.begin() + static_cast<std::ptrdiff_t>(at);
      const auto length =
          static_cast<size_t>(std::mismatch(begin, message.end(), quote.begin(), quote.end()).first - begin);
      message.replace(at, length, excerpt(quote.substr(0, length), kShown));
    }
  }
  return message;
}

std::string in_words_with_modes(const Reason& reason) {
  const std::vector<std::vector<ReasonPart>> pieces = split_at(reason.parts(), kFirstRemedy);
  if (pieces.size() != 2) return reason.str(flag_with_modes);
  Reason text;
  for (const ReasonPart& part : pieces[0]) text.append(part);
  bool any = false;
  for (const std::vector<ReasonPart>& remedy : split_at(pieces[1], kNextRemedy)) {
    if (!std::ranges::all_of(remedy, has_flag_with_modes)) continue;
    text.append(any ? kNextRemedy : kFirstRemedy);
    any = true;
    for (const ReasonPart& part : remedy) text.append(part);
  }
  if (!any)
    text.append(
        "No batch size, number of micro-batches or recomputation makes it fit; leave this mode out of --modes, or use "
        "other devices");
  return text.str(flag_with_modes);
}

}  // namespace vitrine::tools
