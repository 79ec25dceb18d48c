// SPDX-License-Identifier: Apache-2.0
// vitrine explain: a snapshot of PyTorch's memory, and what Vitrine's placement makes of the same blocks.
#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <unistd.h>

#include "nn/json_file.h"
#include "runtime/descriptor.h"
#include "runtime/units.h"
#include "tools/program/commands/commands.h"
#include "tools/program/render/json_report.h"
#include "tools/program/snapshot/torch_snapshot.h"
#include "tools/program/text/tables.h"
#include "vitrine_version.h"

namespace vitrine::tools {

namespace {

constexpr size_t kRows = 10;  // of a table of call sites or blocks

/// What a call site holds at the peak.
struct SiteShare {
  std::string site;
  int64_t blocks = 0, bytes = 0;
};

/// The largest first.
std::vector<SiteShare> sites_at_peak(const TorchDevice& device, const SnapshotExplanation& explanation) {
  std::map<std::string, SiteShare> by_site;
  for (const size_t block : explanation.at_peak) {
    SiteShare& share = by_site[device.sites[block]];
    share.site = device.sites[block].empty() ? "unknown" : device.sites[block];
    ++share.blocks;
    share.bytes += device.blocks[block].bytes;
  }
  std::vector<SiteShare> shares;
  for (const auto& [site, share] : by_site) shares.push_back(share);
  std::stable_sort(shares.begin(), shares.end(), [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return shares;
}

double share_of(int64_t bytes, int64_t all) { return static_cast<double>(bytes) / static_cast<double>(all); }

/// `saved` of `reserved` in words.
std::string verdict(const TorchDevice& device, const SnapshotExplanation& explanation) {
  const int64_t saved = device.peak_reserved_bytes - explanation.placed_bytes;
  if (saved <= 0) return fmt::format("cuda:{}: this job's memory packs no better here.", device.index);
  return fmt::format("cuda:{}: the same blocks fit in {} less, {} of what PyTorch reserved.", device.index,
                     format_bytes(saved), format_share(share_of(saved, device.peak_reserved_bytes)));
}

void print_devices(const std::vector<TorchDevice>& devices, const std::vector<SnapshotExplanation>& explanations,
                   const Style& style) {
  Table table({{"device", Table::Align::left}, {"reserved"}, {"allocated"}, {"lower bound"}, {"placed"}, {"blocks"}},
              "Peak memory under PyTorch, and of the same blocks as Vitrine places them");
  for (size_t d = 0; d < devices.size(); ++d) {
    const SnapshotExplanation& e = explanations[d];
    table.add_row({fmt::format("cuda:{}", devices[d].index), format_bytes(devices[d].peak_reserved_bytes),
                   format_bytes(e.peak_allocated_bytes), format_bytes(e.lower_bound_bytes),
                   format_bytes(e.placed_bytes), format_count(std::ssize(devices[d].blocks))});
  }
  table.set_hint(
      "reserved: PyTorch's segments. allocated: the largest sum of blocks. lower bound: no placement in which streams "
      "share no memory needs less. placed: what Vitrine needs, which knows sizes and lifetimes before the run. Blocks "
      "are multiples of 512 bytes.");
  fmt::print("{}", table.str(style));
  for (size_t d = 0; d < devices.size(); ++d) {
    fmt::print("{}\n", style.prose(verdict(devices[d], explanations[d])));
    if (explanations[d].placed_blocks == devices[d].blocks.size()) continue;
    fmt::print("{}\n", style.prose(fmt::format("cuda:{}: the trace is long; the {} blocks around the peak were placed.",
                                               devices[d].index, format_count(std::ssize(devices[d].blocks)))));
  }
}

void print_peak(const TorchDevice& device, const SnapshotExplanation& explanation, const Style& style) {
  Table sites({{"call site", Table::Align::left}, {"bytes"}, {"share"}, {"blocks"}},
              fmt::format("\nWhat holds the peak of cuda:{}, by call site", device.index));
  std::vector<SiteShare> shares = sites_at_peak(device, explanation);
  if (shares.size() > kRows) {
    SiteShare others{.site = "others"};
    for (size_t i = kRows; i < shares.size(); ++i) {
      others.blocks += shares[i].blocks;
      others.bytes += shares[i].bytes;
    }
    shares.resize(kRows);
    shares.push_back(others);
  }
  for (const SiteShare& share : shares) {
    sites.add_row({share.site, format_bytes(share.bytes),
                   format_share(share_of(share.bytes, explanation.peak_allocated_bytes)), format_count(share.blocks)});
  }
  Table blocks({{"block from", Table::Align::left}, {"bytes"}, {"from entry"}, {"to entry"}},
               fmt::format("\nThe largest blocks at the peak of cuda:{}", device.index));
  for (size_t i = 0; i < std::min(kRows, explanation.at_peak.size()); ++i) {
    const BlockLifetime& block = device.blocks[explanation.at_peak[i]];
    const std::string& site = device.sites[explanation.at_peak[i]];
    blocks.add_row({site.empty() ? "unknown" : site, format_bytes(block.bytes),
                    block.first == 0 ? "before the trace" : format_count(block.first - 1),
                    block.end > device.entries ? "after the trace" : format_count(block.end - 1)});
  }
  blocks.set_hint("Entries of the trace are counted from 0.");
  fmt::print("{}{}", sites.str(style), blocks.str(style));
}

Json explanation_json(const TorchDevice& device, const SnapshotExplanation& explanation) {
  Json json = {{"device", device.index},
               {"peak_reserved_bytes", device.peak_reserved_bytes},
               {"peak_allocated_bytes", explanation.peak_allocated_bytes},
               {"lower_bound_bytes", explanation.lower_bound_bytes},
               {"placed_bytes", explanation.placed_bytes},
               {"blocks", device.blocks.size()},
               {"placed_blocks", explanation.placed_blocks}};
  for (const SiteShare& share : sites_at_peak(device, explanation))
    json["peak_sites"].push_back({{"site", share.site}, {"bytes", share.bytes}, {"blocks", share.blocks}});
  for (const size_t block : explanation.at_peak) {
    const BlockLifetime& lifetime = device.blocks[block];
    json["peak_blocks"].push_back({{"site", device.sites[block]},
                                   {"bytes", lifetime.bytes},
                                   {"first", lifetime.first},
                                   {"end", lifetime.end},
                                   {"stream", lifetime.group}});
  }
  return json;
}

}  // namespace

int run_explain(const Options& options) {
  const std::string source =
      fmt::format("explain: {} cannot be read as a snapshot of torch.cuda.memory._dump_snapshot()", options.snapshot);
  const std::vector<TorchDevice> devices =
      read_torch_snapshot(source, read_regular_file(options.snapshot, kLargestTextFile));
  std::vector<SnapshotExplanation> explanations;
  for (const TorchDevice& device : devices) explanations.push_back(explain_snapshot(device));
  if (options.json) {
    Json json = {{"version", VITRINE_VERSION}, {"snapshot", options.snapshot}};
    for (size_t d = 0; d < devices.size(); ++d)
      json["devices"].push_back(explanation_json(devices[d], explanations[d]));
    print_json(json);
    return kExitOk;
  }
  const Style style = Style::of(STDOUT_FILENO);
  print_devices(devices, explanations, style);
  for (size_t d = 0; d < devices.size(); ++d) print_peak(devices[d], explanations[d], style);
  return kExitOk;
}

}  // namespace vitrine::tools
