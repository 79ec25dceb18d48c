// SPDX-License-Identifier: Apache-2.0
// vitrine collectives: the cost of collectives, measured as nccl-tests measures it.
#include <array>
#include <cstdio>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "runtime/error.h"
#include "runtime/memory/available.h"
#include "runtime/process_group/agreement.h"
#include "runtime/units.h"
#include "tools/program/collective_bench.h"
#include "tools/program/commands.h"
#include "tools/program/describe.h"
#include "tools/program/device_sets.h"
#include "tools/program/interrupt.h"
#include "tools/program/json_report.h"
#include "tools/program/run.h"
#include "tools/program/tables.h"
#include "vitrine_version.h"

namespace vitrine::tools {

namespace {

constexpr int64_t kSlackBytes = int64_t{64} << 20;  // of each device, in addition to its buffers

struct Row {
  Collective collective;
  int64_t bytes = 0, count = 0;
  CollectiveTiming out_of_place;
  std::optional<CollectiveTiming> in_place;  // nothing for collectives that have no in-place form
};

const char* type_name(DType dtype) {
  return dtype == DType::f16 ? "half" : dtype == DType::bf16 ? "bfloat16" : dtype == DType::i32 ? "int32" : "float";
}

const char* op_name(Collective collective, const CollectiveOptions& o) { return sums(collective) ? reduce_op_name(o.op) : "none"; }

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

double busbw(const Row& row, const CollectiveTiming& t, const CollectiveOptions& o, int ranks) {
  return algbw(row, t) * bus_factor(row.collective, ranks, o.counts, o.root);
}

/// The mean busbw of all rows, in place and not, as nccl-tests prints it; nothing with one rank.
std::optional<double> average_busbw(const std::vector<Row>& rows, const CollectiveOptions& o, int ranks) {
  double sum = 0;
  int count = 0;
  for (const Row& row : rows) {
    sum += busbw(row, row.out_of_place, o, ranks) + (row.in_place ? busbw(row, *row.in_place, o, ranks) : 0);
    count += row.in_place ? 2 : 1;
  }
  return ranks > 1 && count > 0 ? std::optional(sum / count) : std::nullopt;
}

std::string microseconds(double seconds) { return fmt::format("{:.2f}", seconds * 1e6); }

Json timing_json(const Row& row, const CollectiveTiming& t, const CollectiveOptions& o, int ranks) {
  Json json;
  json["time_us"] = t.seconds * 1e6;
  json["min_us"] = t.least_seconds * 1e6;
  json["median_us"] = t.median_seconds * 1e6;
  json["p99_us"] = t.p99_seconds * 1e6;
  json["algbw"] = algbw(row, t);
  json["busbw"] = ranks > 1 ? Json(busbw(row, t, o, ranks)) : Json();
  json["wrong"] = t.wrong ? Json(*t.wrong) : Json();
  return json;
}

std::string table(Collective collective, const std::vector<Row>& rows, const CollectiveOptions& o, int ranks, const Style& style) {
  std::string title = fmt::format("{} of {}", collective_name(collective), type_name(o.dtype));
  if (sums(collective)) title += fmt::format(", {}", reduce_op_name(o.op));
  if (has_root(collective)) title += fmt::format(", root {}", o.root);
  Table table({{"size B"},
               {"count"},
               {"time us"},
               {"min"},
               {"median"},
               {"p99"},
               {"algbw GB/s"},
               {"busbw GB/s"},
               {"#wrong"},
               {"in place: time us"},
               {"busbw GB/s"},
               {"#wrong"}},
              title);
  const auto bus_cell = [&](const Row& row, const CollectiveTiming& t) { return ranks > 1 ? fmt::format("{:.2f}", busbw(row, t, o, ranks)) : "-"; };
  const auto wrong_cell = [](const CollectiveTiming& t) { return t.wrong ? format_count(*t.wrong) : "-"; };
  for (const Row& row : rows) {
    if (row.collective != collective) continue;
    const CollectiveTiming& t = row.out_of_place;
    std::vector<std::string> cells = {format_count(row.bytes),
                                      format_count(row.count),
                                      microseconds(t.seconds),
                                      microseconds(t.least_seconds),
                                      microseconds(t.median_seconds),
                                      microseconds(t.p99_seconds),
                                      fmt::format("{:.2f}", algbw(row, t)),
                                      bus_cell(row, t),
                                      wrong_cell(t)};
    const std::vector<std::string> in_place =
        row.in_place ? std::vector<std::string>{microseconds(row.in_place->seconds), bus_cell(row, *row.in_place), wrong_cell(*row.in_place)}
                     : std::vector<std::string>{"-", "-", "-"};
    cells.insert(cells.end(), in_place.begin(), in_place.end());
    table.add_row(std::move(cells));
  }
  return table.str(style);
}

/// Each device has an input and an output of the largest size. Checked here because Linux kills a process that uses too much memory.
void require_memory(const Options& options, const DeviceGroupOptions& group, int64_t bytes_of_each) {
  if (group.devices[0].backend != Backend::cpu) return;
  const auto sharing = static_cast<int64_t>(group.devices.size()) * (group.process_group ? group.process_group->local_size() : 1);
  const int64_t each = less_reserve(available_memory().bytes) / sharing;
  if (bytes_of_each <= each) return;
  throw OutOfMemory(
      fmt::format("collectives: an input and an output of {} need {} of each device, but of the machine's available memory there is {} for each of "
                  "{}; the largest "
                  "size that fits is -e {}M",
                  format_bytes(options.collectives.max_bytes), format_bytes(bytes_of_each), format_bytes(each), sharing,
                  std::max<int64_t>(0, (each - kSlackBytes) / 2 >> 20)));
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

Json threads_json(DeviceGroup& devices) {
  Json threads = Json::array();
  for (int d = 0; d < devices.size(); ++d) threads.push_back(devices[d].thread_count());
  return threads;
}

Json results_json(const std::vector<Row>& rows, const CollectiveOptions& o, int ranks) {
  Json results = Json::array();
  for (const Row& row : rows) {
    results.push_back({{"collective", collective_name(row.collective)},
                       {"size", row.bytes},
                       {"count", row.count},
                       {"counts", takes_counts(row.collective) && !o.counts.empty() ? Json(o.counts) : Json()},
                       {"type", type_name(o.dtype)},
                       {"redop", op_name(row.collective, o)},
                       {"root", has_root(row.collective) ? o.root : -1},
                       {"out_of_place", timing_json(row, row.out_of_place, o, ranks)},
                       {"in_place", row.in_place ? timing_json(row, *row.in_place, o, ranks) : Json()}});
  }
  return results;
}

std::string on_devices(const std::vector<DeviceId>& devices, const Processes& processes) {
  const std::string here = all_devices(devices.size()).name(device_names(devices));
  return processes.count() == 1 ? here : fmt::format("the devices of {} processes (rank 0 has {})", processes.count(), here);
}

}  // namespace

int run_collectives(const Options& options, const Processes& processes) {
  const CollectiveOptions& o = options.collectives;
  const std::vector<DeviceId> devices = resolve_devices(options, cuda_device_count());
  DeviceGroupOptions group = device_group_options(options, devices, processes.process_group());
  if (group.memory_bytes.empty()) {
    group.memory_bytes = {2 * o.max_bytes + kSlackBytes};
    require_memory(options, group, group.memory_bytes[0]);
  }
  if (group.threads_per_device.empty() && devices[0].backend == Backend::cpu) group.threads_per_device = {1};
  group.trace = TraceLevel::off;
  if (processes.process_group()) {
    require_agreement(*processes.process_group(), "what they measure",
                      {{"collectives", fmt::format("{}", fmt::join(o.names, " "))},
                       {"sizes", fmt::format("{} to {}, factor {}, step {}", o.min_bytes, o.max_bytes, o.step_factor, o.step_bytes)},
                       {"iterations", fmt::format("{} after {}", o.iterations, o.warm_up)},
                       {"check", o.check ? "on" : "off"},
                       {"datatype", type_name(o.dtype)},
                       {"operator", reduce_op_name(o.op)},
                       {"counts", fmt::format("{}", fmt::join(o.counts, ","))},
                       {"root", std::to_string(o.root)}});
  }
  CollectiveBench bench(group, {o.dtype, o.op, o.counts, o.max_bytes});
  if (o.root >= bench.ranks()) {
    throw ConfigError(fmt::format("--root {}: there are ranks 0 to {}; add devices, or choose one of them", o.root, bench.ranks() - 1));
  }
  const Style style = Style::of(STDOUT_FILENO);
  if (!options.json) {
    const std::string head = fmt::format(
        "{} {} on {}: {}\n{} iterations after {} to warm up; algbw: size / time, busbw: what a link carries (nccl-tests); min, median and p99: of "
        "single operations",
        bench.ranks(), bench.ranks() == 1 ? "rank" : "ranks", on_devices(devices, processes), bench.communicator(), o.iterations, o.warm_up);
    fmt::print("{}\n", style.prose(head));
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
      Row row{collective, bytes, bench.count(collective, bytes), {}, std::nullopt};
      CollectiveBench::Run run{collective, bytes, o.root, o.warm_up, o.iterations, o.check, false};
      row.out_of_place = bench.time(run);
      run.in_place = true;
      if (has_in_place(collective)) row.in_place = bench.time(run);
      wrong += row.out_of_place.wrong.value_or(0) + (row.in_place ? row.in_place->wrong.value_or(0) : 0);
      rows.push_back(row);
    }
    if (!options.json) fmt::print("\n{}", table(collective, rows, o, bench.ranks(), style));
    std::fflush(stdout);
  }
  const std::optional<double> average = average_busbw(rows, o, bench.ranks());
  if (options.json) {
    Json json;
    json["config"] = {{"version", VITRINE_VERSION},
                      {"host", host_name()},
                      {"processes", processes.count()},
                      {"ranks", bench.ranks()},
                      {"devices", device_names(devices)},
                      {"threads", threads_json(bench.devices())},
                      {"communicator", bench.communicator()},
                      {"iterations", o.iterations},
                      {"warm_up", o.warm_up}};
    json["results"] = results_json(rows, o, bench.ranks());
    json["avg_busbw"] = average ? Json(*average) : Json();
    json["wrong"] = o.check ? Json(wrong) : Json();
    json["interrupted"] = stopped;
    print_json(json);
  } else {
    if (average) fmt::print("\nAvg bus bandwidth: {:.4g} GB/s\n", *average);
    if (o.check) fmt::print("{}\n", wrong == 0 ? "Every result was right." : fmt::format("{} elements were wrong.", format_count(wrong)));
  }
  if (stopped) return interrupt_status();
  return wrong == 0 ? kExitOk : kExitFailure;
}

}  // namespace vitrine::tools
