// SPDX-License-Identifier: Apache-2.0
#include "tools/program/advice.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "nn/parallel/plan_search.h"
#include "runtime/error.h"

namespace vitrine::tools {

namespace {

constexpr std::pair<Setting, const char*> kFlags[] = {
    {Setting::batch_size, "--batch-size"},
    {Setting::accumulate, "--accumulate"},
    {Setting::recompute_segments, "--recompute-segments"},
    {Setting::recompute, "--recompute"},
    {Setting::resident_images, "--data-on-device"},
    {Setting::workspace_bytes, "--workspace"},
    {Setting::optimizer, "--optimizer"},
    {Setting::momentum, "--momentum"},
    {Setting::scheme, "--mode"},
    {Setting::split, "--split"},
    {Setting::staging, "--staging"},
    {Setting::loss_at, "--loss-at"},
    {Setting::reduce, "--reduce"},
    {Setting::image_size, "--image-size"},
    {Setting::memory_bytes, "--device-memory"},
    {Setting::tf32, "--tf32"},
    {Setting::rendezvous, "--rendezvous"},
    {Setting::timeout_ms, "--timeout"},
    {Setting::rank, "--rank"},
    {Setting::size, "--world-size"},
    {Setting::launch_rank, "--rank"},
    {Setting::launch_world_size, "--world-size"},
    {Setting::launch_local_rank, "--local-rank"},
};
static_assert(names_every_setting(kFlags));

using ReasonPart = Reason::Part;

const char* reproduce_flag_of(Setting setting) { return setting == Setting::scheme ? "--modes" : flag_of(setting); }

/// Whether `vitrine reproduce` has a flag for what this part proposes.
bool reproduce_can_set(const ReasonPart& part) {
  constexpr Setting kAxes[] = {Setting::split, Setting::staging, Setting::loss_at, Setting::reduce};
  return part.kind != ReasonPart::Kind::proposed || std::find(std::begin(kAxes), std::end(kAxes), part.setting) == std::end(kAxes);
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

const char* flag_of(Setting setting) { return kFlags[static_cast<size_t>(setting)].second; }

std::string in_program_words(const Reason& reason) { return reason.str(flag_of); }

std::string in_program_words(const std::exception& error) {
  const auto* const ours = dynamic_cast<const Error*>(&error);
  return ours != nullptr ? in_program_words(ours->reason()) : error.what();
}

std::string in_reproduce_words(const Reason& reason) {
  const std::vector<std::vector<ReasonPart>> pieces = split_at(reason.parts(), kFirstRemedy);
  if (pieces.size() != 2) return reason.str(reproduce_flag_of);
  Reason text;
  for (const ReasonPart& part : pieces[0]) text.append(part);
  bool any = false;
  for (const std::vector<ReasonPart>& remedy : split_at(pieces[1], kNextRemedy)) {
    if (!std::all_of(remedy.begin(), remedy.end(), reproduce_can_set)) continue;
    text.append(any ? kNextRemedy : kFirstRemedy);
    any = true;
    for (const ReasonPart& part : remedy) text.append(part);
  }
  if (!any) text.append("No batch size, number of micro-batches or recomputation makes it fit; leave this mode out of --modes, or use other devices");
  return text.str(reproduce_flag_of);
}

}  // namespace vitrine::tools
