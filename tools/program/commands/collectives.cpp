// SPDX-License-Identifier: Apache-2.0
// vitrine collectives: the cost of collectives, measured as nccl-tests measures it.
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <optional>

#include <fmt/ranges.h>
#include <unistd.h>

#include "runtime/error.h"
#include "runtime/memory/available.h"
#include "runtime/process_group/agreement.h"
#include "runtime/units.h"
#include "tools/program/collectives/bench.h"
#include "tools/program/commands/commands.h"
#include "tools/program/flags/options.h"
#include "tools/program/process/interrupt.h"
#include "tools/program/record/device_sets.h"
#include "tools/program/record/machine.h"
#include "tools/program/render/reports.h"
#include "tools/program/run/run.h"
#include "tools/program/text/json_text.h"
#include "tools/program/text/tables.h"
#include "vitrine_version.h"

namespace vitrine::tools {
namespace {

constexpr int64_t kSlackBytes = int64_t{64} << 20;  // of each device, in addition to its buffers
// What sums over processes take at once: with few processes two messages for each, with many a fixed amount.
constexpr int64_t kFewProcesses = 64, kMessageBytes = int64_t{1} << 20, kTreeBytes = int64_t{16} << 20;

struct Row {
  Collective collective;
  int64_t bytes = 0, count = 0;  // what was used, of the larger and of the smaller buffer
  CollectiveTiming out_of_place;
  std::optional<CollectiveTiming> in_place;  // nothing for collectives that have no in-place form
};

const char* type_name(DType dtype) {
  return dtype == DType::f16 ? "half" : dtype == DType::bf16 ? "bfloat16" : dtype == DType::i32 ? "int32" : "float";
}

const char* op_name(Collective collective, const CollectiveOptions& o) {
  return traits_of(collective).sums ? reduce_op_name(o.op) : "none";
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

Json timing_json(const Row& row, const CollectiveTiming& t, const CollectiveOptions& o, int ranks) {
  Json json;
  json["time_us"] = t.seconds * 1e6;
  json["min_us"] = t.least_seconds * 1e6;
  json["median_us"] = t.median_seconds * 1e6;
  json["p99_us"] = t.p99_seconds * 1e6;
  json["algbw"] = algbw(row, t);
  json["busbw"] = ranks > 1 ? Json(busbw(row, t, o, ranks)) : Json();
  json["wrong"] = value_or_null(t.wrong);
  return json;
}

std::string table(Collective collective, const std::vector<Row>& rows, const CollectiveOptions& o, int ranks,
                  const Style& style) {
  std::string title = fmt::format("{} of {}", traits_of(collective).name, type_name(o.dtype));
  if (traits_of(collective).sums) title += fmt::format(", {}", reduce_op_name(o.op));
  if (traits_of(collective).has_root) title += fmt::format(", root {}", o.root);
  const auto right = Table::Align::right;
  Table table({{"size B"},
               {"count", right, 3},
               {"time us"},
               {"min", right, 2},
               {"median", right, 1},
               {"p99", right, 2},
               {"algbw GB/s", right, 4},
               {"busbw GB/s"},
               {"#wrong"},
               {"in place: time us"},
               {"busbw GB/s"},
               {"#wrong"}},
              title);
  const auto bus_cell = [&](const Row& row, const CollectiveTiming& t) {
    return ranks > 1 ? fmt::format("{:.2f}", busbw(row, t, o, ranks)) : "-";
  };
  const auto wrong_cell = [](const CollectiveTiming& t) { return t.wrong ? format_count(*t.wrong) : "-"; };
  for (const Row& row : rows) {
    if (row.collective != collective) continue;
    const CollectiveTiming& t = row.out_of_place;
    std::vector<std::string> cells = {format_count(row.bytes), format_count(row.count)};
    for (const double seconds : {t.seconds, t.least_seconds, t.median_seconds, t.p99_seconds})
      cells.push_back(fmt::format("{:.2f}", seconds * 1e6));
    cells.insert(cells.end(), {fmt::format("{:.2f}", algbw(row, t)), bus_cell(row, t), wrong_cell(t)});
    const auto& in_place = row.in_place;
    cells.push_back(in_place ? fmt::format("{:.2f}", in_place->seconds * 1e6) : "-");
    cells.push_back(in_place ? bus_cell(row, *in_place) : "-");
    cells.push_back(in_place ? wrong_cell(*in_place) : "-");
    table.add_row(std::move(cells));
  }
  return table.str(style);
}

std::vector<Collective> collectives_of(const CollectiveOptions& o) {
  std::vector<Collective> chosen;
  for (const std::string& name : o.names)
    chosen.push_back(std::ranges::find(all_collectives(), name, &CollectiveTraits::name)->collective);
  return chosen;
}

/// Buffers of the largest size that the first device of each of several CPU processes needs for what it exchanges with
/// the others, in addition to input and output: sums of 16-bit numbers are exchanged in f32.
int64_t exchange_buffers(Collective collective, DType dtype, int64_t local_devices, int64_t processes) {
  const int64_t in_f32 = dtype == DType::f16 || dtype == DType::bf16 ? 2 : 0;
  switch (collective) {
    case Collective::all_reduce:
      return in_f32;
    case Collective::reduce:
    case Collective::reduce_broadcast:
      return 1 + in_f32;
    case Collective::reduce_scatter:  // along a tree, messages may have half of the whole or more
      return 1 + in_f32 + (processes > kFewProcesses ? std::max<int64_t>(1, in_f32) : 0);
    case Collective::scatter:
    case Collective::gather:
      return 1;
    case Collective::tree_all_reduce:  // a process's sums, and what it receives
      return local_devices + 2;
    case Collective::alltoall:
    case Collective::sendrecv:
      return local_devices > 1 ? 2 * local_devices + 1 : 0;
    default:
      return 0;
  }
}

/// What the devices of this process need: input and output of each, and what is exchanged.
struct Needs {
  int64_t devices = 1;
  int64_t exchanged = 0;      // buffers of the largest size, on the first device
  int64_t segment_bytes = 0;  // of sums in segments, on the first device

  int64_t bytes_of_device(int64_t size) const { return (2 + exchanged) * size + segment_bytes + kSlackBytes; }
  int64_t bytes(int64_t size) const { return (2 * devices + exchanged) * size + segment_bytes + devices * kSlackBytes; }
  int64_t largest_buffer(int64_t available) const {
    return std::max<int64_t>(0, (available - segment_bytes - devices * kSlackBytes) / (2 * devices + exchanged));
  }
};

Needs needs_of(const CollectiveOptions& o, const DeviceGroupOptions& group) {
  Needs needs{static_cast<int64_t>(group.devices.size())};
  const int64_t processes = group.process_group ? group.process_group->size() : 1;
  if (processes == 1 || group.devices[0].backend != Backend::cpu) return needs;
  for (const Collective c : collectives_of(o))
    needs.exchanged = std::max(needs.exchanged, exchange_buffers(c, o.dtype, needs.devices, processes));
  const int64_t most = processes <= kFewProcesses ? 2 * processes * kMessageBytes : kTreeBytes;
  needs.segment_bytes =
      std::min(most, 4 * o.max_bytes + 8 * processes);  // small sizes: two shares in f32 for each process, rounded up
  return needs;
}

/// Checked here because Linux kills a process that uses too much memory.
void require_memory(const CollectiveOptions& o, const DeviceGroupOptions& group, const Needs& needs) {
  if (group.devices[0].backend != Backend::cpu) return;
  const int64_t processes = group.process_group ? group.process_group->local_size() : 1;
  const int64_t each = less_reserve(available_memory().bytes) / processes;
  if (needs.bytes(o.max_bytes) <= each) return;
  const int64_t largest = needs.largest_buffer(each) >> 20;
  throw OutOfMemory(
      fmt::format("collectives: buffers of {} need {} on {} {}, but of the machine's available memory there is {} for "
                  "each of {} {}; {}",
                  format_bytes(o.max_bytes), format_bytes(needs.bytes(o.max_bytes)), needs.devices,
                  needs.devices == 1 ? "device" : "devices", format_bytes(each), processes,
                  processes == 1 ? "process" : "processes",
                  largest > 0 ? fmt::format("the largest size that fits is -e {}M", largest)
                              : std::string("use fewer devices or processes")));
}

/// Why sizes below least_bytes() are not measured.
std::string why_too_small(const CollectiveBench& bench, Collective collective) {
  return fmt::format("{} on {} ranks needs at least {} bytes, one element{}", traits_of(collective).name, bench.ranks(),
                     bench.least_bytes(collective), traits_of(collective).takes_counts ? " per count" : " per rank");
}

int64_t largest_size(const CollectiveOptions& o) {
  if (o.step_bytes > 0) return o.max_bytes - (o.max_bytes - o.min_bytes) % o.step_bytes;
  int64_t largest = o.min_bytes;
  for (int64_t bytes = largest; bytes <= o.max_bytes; bytes = next_size(o, bytes)) largest = bytes;
  return largest;
}

/// throws ConfigError unless some collective can be measured with the largest size.
void require_sizes(const CollectiveBench& bench, const CollectiveOptions& o,
                   const std::vector<Collective>& collectives) {
  const int64_t largest = largest_size(o);
  if (std::ranges::any_of(collectives, [&](Collective c) { return bench.least_bytes(c) <= largest; })) return;
  throw ConfigError(fmt::format("-e {}: no size can be measured: {}; raise -e{}", o.max_bytes,
                                why_too_small(bench, collectives.front()),
                                o.counts.empty() ? "" : ", or lower --counts"));
}

Json threads_json(DeviceGroup& devices) {
  Json threads = Json::array();
  for (int d = 0; d < devices.size(); ++d) threads.push_back(devices[d].thread_count());
  return threads;
}

Json results_json(const std::vector<Row>& rows, const CollectiveOptions& o, int ranks) {
  Json results = Json::array();
  for (const Row& row : rows) {
    results.push_back(
        {{"collective", traits_of(row.collective).name},
         {"size", row.bytes},
         {"count", row.count},
         {"counts", traits_of(row.collective).takes_counts && !o.counts.empty() ? Json(o.counts) : Json()},
         {"type", type_name(o.dtype)},
         {"redop", op_name(row.collective, o)},
         {"root", traits_of(row.collective).has_root ? o.root : -1},
         {"out_of_place", timing_json(row, row.out_of_place, o, ranks)},
         {"in_place", row.in_place ? timing_json(row, *row.in_place, o, ranks) : Json()}});
  }
  return results;
}

std::string on_devices(const std::vector<DeviceId>& devices, const Processes& processes) {
  const std::string here = all_devices(devices.size()).name(device_names(devices));
  return processes.count() == 1 ? here
                                : fmt::format("the devices of {} processes (rank 0 has {})", processes.count(), here);
}

void agree_on_measurement(ProcessGroup& process_group, const CollectiveOptions& o) {
  require_agreement(
      process_group, "what they measure",
      {{"collectives", fmt::format("{}", fmt::join(o.names, " "))},
       {"sizes", fmt::format("{} to {}, factor {}, step {}", o.min_bytes, o.max_bytes, o.step_factor, o.step_bytes)},
       {"iterations", fmt::format("{} after {}", o.iterations, o.warm_up)},
       {"check", o.check ? "on" : "off"},
       {"datatype", type_name(o.dtype)},
       {"operator", reduce_op_name(o.op)},
       {"counts", fmt::format("{}", fmt::join(o.counts, ","))},
       {"root", std::to_string(o.root)}});
}

DeviceGroupOptions group_for(const Options& options, const std::vector<DeviceId>& devices, const Processes& processes) {
  DeviceGroupOptions group = device_group_options(options, devices, processes.process_group());
  if (group.memory_bytes.empty()) {
    const Needs needs = needs_of(options.collectives, group);
    group.memory_bytes = {needs.bytes_of_device(options.collectives.max_bytes)};
    require_memory(options.collectives, group, needs);
  }
  if (group.threads_per_device.empty() && devices[0].backend == Backend::cpu) group.threads_per_device = {1};
  group.trace = TraceLevel::off;
  return group;
}

/// The devices of --devices, or as many as -g and -t say: with several processes on a machine each takes other GPUs.
std::vector<DeviceId> devices_of(const Options& options, int gpus) {
  const CollectiveOptions& o = options.collectives;
  if (o.devices_of_thread == 0 && o.threads == 0) return resolve_devices(options, gpus);
  if (!options.devices.empty())
    throw ConfigError("-g and -t count devices that --devices names; leave it, or them, out");
  const int count = std::max(1, o.devices_of_thread) * std::max(1, o.threads),
            first = gpus > 0 ? options.local_rank.value_or(0) * count : 0;
  return parse_device_list(fmt::format("{}:{}-{}", gpus > 0 ? "cuda" : "cpu", first, first + count - 1), gpus);
}

struct Measured {
  std::vector<Row> rows;
  int64_t wrong = 0;     // elements
  bool stopped = false;  // by a signal
};

/// Adds the rows of a collective, one for each size.
void measure(CollectiveBench& bench, const CollectiveOptions& o, Collective collective, Measured& measured) {
  for (int64_t bytes = o.min_bytes; bytes <= o.max_bytes; bytes = next_size(o, bytes)) {
    measured.stopped = measured.stopped || bench.any(interrupted());
    if (measured.stopped) break;
    if (bytes < bench.least_bytes(collective)) continue;
    Row row{collective, bench.used_bytes(collective, bytes), bench.count(collective, bytes), {}, std::nullopt};
    CollectiveBench::Run run{collective, bytes, o.root, o.warm_up, o.iterations, o.check, false};
    row.out_of_place = bench.time(run);
    run.in_place = true;
    if (traits_of(collective).in_place) row.in_place = bench.time(run);
    measured.wrong += row.out_of_place.wrong.value_or(0) + (row.in_place ? row.in_place->wrong.value_or(0) : 0);
    measured.rows.push_back(row);
  }
}

}  // namespace

int run_collectives(const Options& options, const Processes& processes) {
  const CollectiveOptions& o = options.collectives;
  set_interruptible("size");
  const std::vector<DeviceId> devices = devices_of(options, cuda_device_count());
  const DeviceGroupOptions group = group_for(options, devices, processes);
  if (processes.process_group()) agree_on_measurement(*processes.process_group(), o);
  CollectiveBench bench(group, {o.dtype, o.op, o.counts, o.max_bytes});
  if (o.root >= bench.ranks()) {
    throw ConfigError(fmt::format("--root {}: there are ranks 0 to {}; add devices, or choose one of them", o.root,
                                  bench.ranks() - 1));
  }
  const std::vector<Collective> collectives = collectives_of(o);
  require_sizes(bench, o, collectives);
  const Style style = Style::of(STDOUT_FILENO);
  if (!options.json) {
    const std::string head = fmt::format(
        "{} {} on {}: {}\n{} iterations after {} to warm up; algbw: size / time, busbw: what a link carries "
        "(nccl-tests); min, median and p99: of single operations",
        bench.ranks(), bench.ranks() == 1 ? "rank" : "ranks", on_devices(devices, processes), bench.communicator(),
        o.iterations, o.warm_up);
    fmt::print("{}\n", style.prose(head));
  }
  Measured measured;
  for (const Collective collective : collectives) {
    if (o.min_bytes < bench.least_bytes(collective) && processes.leads()) {
      fmt::print(stderr, "vitrine: note: smaller sizes are left out: {}\n", why_too_small(bench, collective));
    }
    measure(bench, o, collective, measured);
    if (!options.json) fmt::print("\n{}", table(collective, measured.rows, o, bench.ranks(), style));
    std::fflush(stdout);
  }
  const std::optional<double> average = average_busbw(measured.rows, o, bench.ranks());
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
    json["results"] = results_json(measured.rows, o, bench.ranks());
    json["avg_busbw"] = value_or_null(average);
    json["wrong"] = o.check ? Json(measured.wrong) : Json();
    json["interrupted"] = measured.stopped;
    print_json(json);
  } else {
    if (average) fmt::print("\nAvg bus bandwidth: {:.4g} GB/s\n", *average);
    const auto disturbed =
        std::ranges::count_if(measured.rows, [](const Row& row) { return is_disturbed(row.out_of_place); });
    if (disturbed > 0) {
      fmt::print("{}\n",
                 style.prose(fmt::format("Other work on the machine shows in {} of {} times, which are more than "
                                         "twice the median: compare medians, or run again on an idle machine.",
                                         disturbed, measured.rows.size())));
    }
    if (o.check)
      fmt::print("{}\n", measured.wrong == 0 ? "Every result was right."
                                             : fmt::format("{} elements were wrong.", format_count(measured.wrong)));
  }
  if (measured.stopped) return interrupt_status();
  return measured.wrong == 0 ? kExitOk : kExitFailure;
}

}  // namespace vitrine::tools
