// SPDX-License-Identifier: Apache-2.0
// vitrine collectives: what collectives cost, in the manner of nccl-tests.
#include <cstdio>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "runtime/error.h"
#include "runtime/units.h"
#include "runtime/world/agreement.h"
#include "tools/collective_bench.h"
#include "tools/commands.h"
#include "tools/describe.h"
#include "tools/device_sets.h"
#include "tools/interrupt.h"
#include "tools/json_report.h"
#include "tools/run.h"
#include "tools/tables.h"

namespace vitrine::tools {

namespace {

struct Row {
  Collective collective;
  int64_t bytes = 0, count = 0;
  CollectiveTiming out_of_place, in_place;
};

const char* type_name(DType dtype) { return dtype == DType::f16 ? "half" : dtype == DType::bf16 ? "bfloat16" : "float"; }

/// The sizes from --minbytes to --maxbytes.
std::vector<int64_t> sizes_of(const CollectiveOptions& o) {
  std::vector<int64_t> sizes;
  const auto next = [&](int64_t bytes) {
    return o.step_bytes > 0 ? bytes + o.step_bytes : static_cast<int64_t>(static_cast<double>(bytes) * o.step_factor);
  };
  for (int64_t bytes = o.min_bytes; bytes <= o.max_bytes; bytes = std::max(bytes + 1, next(bytes))) sizes.push_back(bytes);
  return sizes;
}

double algbw(const Row& row, const CollectiveTiming& t) { return static_cast<double>(row.bytes) / t.seconds * 1e-9; }

std::vector<std::string> timing_cells(const Row& row, const CollectiveTiming& t, int ranks) {
  return {fmt::format("{:.2f}", t.seconds * 1e6), fmt::format("{:.2f}", algbw(row, t)),
          ranks > 1 ? fmt::format("{:.2f}", algbw(row, t) * bus_factor(row.collective, ranks)) : "-", t.wrong ? format_count(*t.wrong) : "-"};
}

Json timing_json(const Row& row, const CollectiveTiming& t, int ranks) {
  Json json;
  json["time_us"] = t.seconds * 1e6;
  json["algbw"] = algbw(row, t);
  json["busbw"] = ranks > 1 ? Json(algbw(row, t) * bus_factor(row.collective, ranks)) : Json();
  json["wrong"] = t.wrong ? Json(*t.wrong) : Json();
  return json;
}

std::string table(Collective collective, const std::vector<Row>& rows, const CollectiveOptions& o, int ranks, const Style& style) {
  Table table({{"size B"},
               {"count"},
               {"type"},
               {"redop"},
               {"root"},
               {"time us"},
               {"algbw GB/s"},
               {"busbw GB/s"},
               {"#wrong"},
               {"in place: time us"},
               {"algbw GB/s"},
               {"busbw GB/s"},
               {"#wrong"}},
              collective_name(collective));
  for (const Row& row : rows) {
    if (row.collective != collective) continue;
    std::vector<std::string> cells = {format_count(row.bytes), format_count(row.count), type_name(o.dtype), sums(collective) ? "sum" : "none",
                                      has_root(collective) ? std::to_string(o.root) : "-1"};
    for (const CollectiveTiming* t : {&row.out_of_place, &row.in_place}) {
      for (std::string& cell : timing_cells(row, *t, ranks)) cells.push_back(std::move(cell));
    }
    table.add_row(std::move(cells));
  }
  return table.str(style);
}

std::string on_devices(const std::vector<DeviceId>& devices, const Processes& processes) {
  const std::string here = all_devices(devices.size()).name(device_names(devices));
  return processes.count() == 1 ? here : fmt::format("the devices of {} processes (rank 0 has {})", processes.count(), here);
}

}  // namespace

int run_collectives(const Options& options, const Processes& processes) {
  const CollectiveOptions& o = options.collectives;
  const std::vector<DeviceId> devices = resolve_devices(options, cuda_device_count());
  DeviceGroupOptions group = device_group_options(options, devices, processes.world());
  constexpr int64_t kSlack = int64_t{64} << 20;
  if (group.memory_bytes.empty()) group.memory_bytes = {2 * o.max_bytes + kSlack};
  if (group.threads_per_device.empty() && devices[0].backend == Backend::cpu) group.threads_per_device = {1};
  group.trace = TraceLevel::off;
  if (processes.world()) {
    require_agreement(*processes.world(), "what they measure",
                      {{"collectives", fmt::format("{}", fmt::join(o.names, " "))},
                       {"sizes", fmt::format("{} to {}, factor {}, step {}", o.min_bytes, o.max_bytes, o.step_factor, o.step_bytes)},
                       {"iterations", fmt::format("{} after {}", o.iterations, o.warm_up)},
                       {"check", o.check ? "on" : "off"},
                       {"datatype", type_name(o.dtype)},
                       {"root", std::to_string(o.root)}});
  }
  CollectiveBench bench(group, o.dtype, o.max_bytes);
  if (o.root >= bench.ranks()) {
    throw ConfigError(fmt::format("--root {}: there are ranks 0 to {}; add devices, or choose one of them", o.root, bench.ranks() - 1));
  }
  const Style style = Style::of(fileno(stdout));
  if (!options.json) {
    fmt::print("{} {} on {}: {}\n{} iterations after {} to warm up; algbw: size / time, busbw: what a link carries (nccl-tests)\n", bench.ranks(),
               bench.ranks() == 1 ? "rank" : "ranks", on_devices(devices, processes), bench.communicator(), o.iterations, o.warm_up);
  }
  std::vector<Row> rows;
  int64_t wrong = 0;
  bool stopped = false;
  for (const std::string& name : o.names) {
    Collective collective{};
    for (const Collective c : kCollectives) {
      if (name == collective_name(c)) collective = c;
    }
    for (const int64_t bytes : sizes_of(o)) {
      stopped = stopped || bench.any(interrupted());
      if (stopped) break;
      Row row{collective, bytes, bench.count(collective, bytes), {}, {}};
      CollectiveBench::Run run{collective, bytes, o.root, o.warm_up, o.iterations, o.check, false};
      row.out_of_place = bench.time(run);
      run.in_place = true;
      row.in_place = bench.time(run);
      wrong += row.out_of_place.wrong.value_or(0) + row.in_place.wrong.value_or(0);
      rows.push_back(row);
    }
    if (!options.json) fmt::print("\n{}", table(collective, rows, o, bench.ranks(), style));
    std::fflush(stdout);
  }
  if (options.json) {
    Json json;
    json["config"] = {
        {"devices", device_names(devices)}, {"communicator", bench.communicator()}, {"iterations", o.iterations}, {"warm_up", o.warm_up}};
    json["results"] = Json::array();
    for (const Row& row : rows) {
      json["results"].push_back({{"collective", collective_name(row.collective)},
                                 {"size", row.bytes},
                                 {"count", row.count},
                                 {"type", type_name(o.dtype)},
                                 {"redop", sums(row.collective) ? "sum" : "none"},
                                 {"root", has_root(row.collective) ? o.root : -1},
                                 {"out_of_place", timing_json(row, row.out_of_place, bench.ranks())},
                                 {"in_place", timing_json(row, row.in_place, bench.ranks())}});
    }
    json["wrong"] = o.check ? Json(wrong) : Json();
    json["interrupted"] = stopped;
    print_json(json);
  } else if (o.check) {
    fmt::print("\n{}\n", wrong == 0 ? "Every result was right." : fmt::format("{} elements were wrong.", format_count(wrong)));
  }
  if (stopped) return kExitInterrupted;
  return wrong == 0 ? kExitOk : kExitFailure;
}

}  // namespace vitrine::tools
