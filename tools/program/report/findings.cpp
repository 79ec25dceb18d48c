// SPDX-License-Identifier: Apache-2.0
#include "tools/program/report/findings.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tools/program/report/scale.h"
#include "tools/program/tables.h"

namespace vitrine::tools {

namespace {

using html::percent;
using html::short_bytes;
using html::short_seconds;

// From which share a matter is worth a word.
constexpr double kUneven = 0.05, kNearCapacity = 0.9, kLargeWorkspace = 0.5, kDataWait = 0.05, kHostWait = 0.1, kIdle = 0.1, kExposed = 0.1,
                 kLateBucket = 0.5, kSkipped = 0.05;
constexpr int64_t kFewestSteps = 8;

int64_t held(const DeviceFigures& device, Category category) { return device.pool.peak_by_category[static_cast<size_t>(category)]; }

double seconds_in(const PhaseTable& table, Phase phase) {
  double seconds = 0;
  for (const PhaseRow& row : table.rows) seconds += row.phase == phase ? row.seconds : 0;
  return seconds;
}

double share_of(const PhaseTable& table, double seconds) { return table.wall_seconds > 0 ? seconds / table.wall_seconds : 0; }

double wait_share(const PhaseTable& table, std::string_view cause) {
  for (const WaitRow& wait : table.waits) {
    if (wait.cause == cause) return wait.share;
  }
  return 0;
}

/// The index of the device that holds most.
size_t fullest(const std::vector<DeviceFigures>& figures) {
  const auto most =
      std::max_element(figures.begin(), figures.end(), [](const auto& a, const auto& b) { return a.pool.peak_bytes < b.pool.peak_bytes; });
  return static_cast<size_t>(most - figures.begin());
}

/// What a device holds more of than the fullest of the others in each category.
BytesByCategory excess_of(const std::vector<DeviceFigures>& figures, size_t device) {
  BytesByCategory excess = figures[device].pool.peak_by_category;
  for (size_t c = 0; c < excess.size(); ++c) {
    int64_t others = 0;
    for (size_t d = 0; d < figures.size(); ++d) others = d == device ? others : std::max(others, figures[d].pool.peak_by_category[c]);
    excess[c] -= others;
  }
  return excess;
}

/// Bytes of the blocks of that name at the peak.
int64_t held_by(const MemoryTimeline& timeline, std::string_view tensor) {
  int64_t bytes = 0;
  for (const HeldBlock& block : timeline.blocks) {
    if (block.tensor == tensor && block.first <= timeline.peak && timeline.peak < block.end) bytes += block.bytes;
  }
  return bytes;
}

/// Why `device` holds more of a category than the others, and what would change it.
Finding reason_of_excess(const FindingsInput& in, size_t device, Category category) {
  const DeviceFigures& figures = in.figures[device];
  int64_t most_samples = 0;
  for (size_t d = 0; d < in.figures.size(); ++d) most_samples = d == device ? most_samples : std::max(most_samples, in.figures[d].samples_per_step);
  if (category == Category::activations && in.scheme.loss_at == LossAt::gathered && static_cast<int>(device) == in.scheme.output_device &&
      (device >= in.timelines.size() || held_by(in.timelines[device], "gathered outputs") > 0)) {
    return {"outputs gathered for the loss", "`--mode criterion` would leave them where they are"};
  }
  if (category == Category::staging && in.scheme.staging == Staging::device0 && device == 0) {
    return {"the whole batch, staged there before it is scattered", "`--staging host` brings each slice straight to its device"};
  }
  const bool updates = category == Category::optimizer || category == Category::parameters;
  if (updates && in.scheme.reduce == Reduce::gpu0 && device == 0) {
    return {"the optimizer's state, for it alone updates",
            fmt::format("`--split gpu0={}` would give it fewer samples in exchange", std::max<int64_t>(1, figures.samples_per_step / 2))};
  }
  if (figures.samples_per_step > most_samples && in.figures.size() > 1) {
    return {fmt::format("it has {} of {} samples", figures.samples_per_step, in.batch_size), "`--split equal` would share them out"};
  }
  return {"the peaks fall on other moments", fmt::format("`--accumulate {}` lowers what all devices hold at once", in.accumulate * 2)};
}

}  // namespace

std::optional<Finding> divergence(const FindingsInput& in) {
  if (in.diverged.empty() && in.non_finite_steps == 0) return std::nullopt;
  const std::string text = !in.diverged.empty()
                               ? in.diverged + "."
                               : fmt::format("The loss was not finite in {} of {} steps, from step {} on: the weights are of no use.",
                                             format_count(in.non_finite_steps), format_count(in.steps), in.first_non_finite + 1);
  return Finding{text, "A smaller `--lr` or `--clip-norm 1` keeps values finite; so may `--precision fp32` or `bf16` in place of fp16."};
}

std::optional<Finding> uneven_memory(const FindingsInput& in) {
  if (in.figures.size() < 2) return std::nullopt;
  const size_t device = fullest(in.figures);
  int64_t others = 0;
  for (size_t d = 0; d < in.figures.size(); ++d) others = d == device ? others : std::max(others, in.figures[d].pool.peak_bytes);
  const int64_t peak = in.figures[device].pool.peak_bytes, more = peak - others;
  if (static_cast<double>(more) < kUneven * static_cast<double>(peak)) return std::nullopt;
  const BytesByCategory excess = excess_of(in.figures, device);
  const auto most = std::max_element(excess.begin(), excess.end() - 1);  // fragmentation is no reason
  if (*most <= 0) return std::nullopt;
  const auto category = static_cast<Category>(most - excess.begin());
  const Finding reason = reason_of_excess(in, device, category);
  return Finding{fmt::format("{} holds {} more than the others, mostly {} ({}): {}.", in.figures[device].device, short_bytes(more),
                             category_name(category), short_bytes(*most), reason.text),
                 reason.remedy + "."};
}

std::optional<Finding> little_headroom(const FindingsInput& in) {
  if (in.figures.empty()) return std::nullopt;
  const auto share = [](const DeviceFigures& d) {
    return d.pool.capacity_bytes > 0 ? static_cast<double>(d.pool.peak_bytes) / static_cast<double>(d.pool.capacity_bytes) : 0;
  };
  const auto tightest = std::max_element(in.figures.begin(), in.figures.end(), [&](const auto& a, const auto& b) { return share(a) < share(b); });
  if (share(*tightest) < kNearCapacity) return std::nullopt;
  return Finding{
      fmt::format("{} uses {} of its {}: a larger batch will not fit.", tightest->device, percent(share(*tightest)),
                  short_bytes(tightest->pool.capacity_bytes)),
      fmt::format("`--accumulate {}` halves the activations, `--recompute-segments sqrt` computes most of them again; neither changes a gradient.",
                  in.accumulate * 2)};
}

std::optional<Finding> large_workspace(const FindingsInput& in) {
  if (in.figures.empty()) return std::nullopt;
  const DeviceFigures& device = in.figures[fullest(in.figures)];
  const int64_t workspace = held(device, Category::workspace);
  const double share = device.pool.peak_bytes > 0 ? static_cast<double>(workspace) / static_cast<double>(device.pool.peak_bytes) : 0;
  if (share < kLargeWorkspace) return std::nullopt;
  return Finding{fmt::format("{} of {}'s memory is the libraries' workspace ({}).", percent(share), device.device, short_bytes(workspace)),
                 fmt::format("`--workspace {}MiB` would save the rest, where the algorithms that fit it are fast enough.",
                             std::max<int64_t>(1, workspace / 4 >> 20))};
}

std::optional<Finding> waits_for_data(const FindingsInput& in) {
  double share = 0;
  for (const PhaseTable& table : in.tables) share = std::max(share, share_of(table, seconds_in(table, Phase::data)));
  if (share < kDataWait) return std::nullopt;
  const std::string workers = fmt::format("raise `--workers`, which is {}, say to {}", in.workers, in.workers * 2);
  return Finding{fmt::format("{} of the step waits for data.", percent(share)),
                 (in.host_preprocess ? "`--preprocess device` takes the work from the loader; or " : "") + workers + "."};
}

std::optional<Finding> waits_for_host(const FindingsInput& in) {
  for (const PhaseTable& table : in.tables) {
    const double share = wait_share(table, "host");
    if (share < kHostWait) continue;
    return Finding{fmt::format("{} of the step {} has nothing to do, because the host has not issued more yet.", percent(share),
                               in.figures[static_cast<size_t>(table.ordinal)].device),
                   fmt::format("`--batch-size {}` gives each launch more work.", in.batch_size * 2)};
  }
  return std::nullopt;
}

std::optional<Finding> idle_device(const FindingsInput& in) {
  if (in.tables.size() < 2) return std::nullopt;
  std::vector<double> busy, rates;
  for (const PhaseTable& table : in.tables) {
    const int64_t samples = in.figures[static_cast<size_t>(table.ordinal)].samples_per_step;
    busy.push_back(seconds_in(table, Phase::forward) + seconds_in(table, Phase::recompute) + seconds_in(table, Phase::backward));
    // In a few steps any device may be late by chance.
    if (samples == 0 || busy.back() <= 0 || table.steps < kFewestSteps) return std::nullopt;
    rates.push_back(static_cast<double>(samples) / busy.back());
  }
  const size_t fast = static_cast<size_t>(std::min_element(busy.begin(), busy.end()) - busy.begin());
  const size_t slow = static_cast<size_t>(std::max_element(busy.begin(), busy.end()) - busy.begin());
  const PhaseTable& table = in.tables[fast];
  const double idle = share_of(table, seconds_in(table, Phase::wait)), gap = share_of(table, busy[slow] - busy[fast]);
  if (std::min(idle, gap) < kIdle) return std::nullopt;
  const double all = std::accumulate(rates.begin(), rates.end(), 0.0);
  std::vector<int64_t> shares;
  for (const double rate : rates) shares.push_back(std::llround(static_cast<double>(in.batch_size) * rate / all));
  const auto told = [&](size_t d) { return short_seconds(busy[d] / static_cast<double>(in.tables[d].steps)); };
  return Finding{fmt::format("{} idles {} of the step: its {} samples take it {}, those of {} {}.", in.figures[fast].device, percent(idle),
                             in.figures[fast].samples_per_step, told(fast), in.figures[slow].device, told(slow)),
                 fmt::format("`--split {}` would share them out by speed.", fmt::join(shares, ","))};
}

std::optional<Finding> waits_for_peers(const FindingsInput& in) {
  if (idle_device(in)) return std::nullopt;
  const PhaseTable* longest = nullptr;
  double share = 0;
  for (const PhaseTable& table : in.tables) {
    double late = 0;
    for (const WaitRow& wait : table.waits) late += wait.cause.find(" in ") != std::string::npos ? wait.share : 0;
    if (late <= share) continue;
    share = late;
    longest = &table;
  }
  if (share < kIdle) return std::nullopt;
  return Finding{
      fmt::format("{} waits {} of the step for peers that come later to a collective, now one and now another: no split would change that.",
                  in.figures[static_cast<size_t>(longest->ordinal)].device, percent(share)),
      "`--threads-per-device` with fewer threads than cores in all, or an otherwise idle machine, lets them come together."};
}

std::optional<Finding> single_bucket(const FindingsInput& in) {
  if (in.communication.empty() || in.scheme.reduce != Reduce::allreduce) return std::nullopt;
  const CommunicationTable& table = in.communication[least_late(in.communication)];
  const auto buckets = std::count_if(table.rows.begin(), table.rows.end(), [](const CommunicationRow& row) { return row.phase == Phase::reduce; });
  if (buckets != 1 || table.steps == 0) return std::nullopt;
  const CommunicationRow& row = table.rows.front();
  if (row.exposed_seconds < kExposed * row.seconds() || row.buffer_bytes == 0) return std::nullopt;
  const int64_t bytes = row.buffer_bytes / table.steps;
  return Finding{fmt::format("All gradients ({}) travel in one bucket, which can only start when backward is done: {} of its time is exposed.",
                             short_bytes(bytes), percent(row.exposed_seconds / row.seconds())),
                 fmt::format("`--bucket-mb {0:.2g} --first-bucket-mb {0:.2g}` would make four of it, of which the first ones run beside backward.",
                             std::max(1e-3, static_cast<double>(bytes) / 4 / (1 << 20)))};
}

std::optional<Finding> late_first_bucket(const FindingsInput& in) {
  if (in.scheme.reduce != Reduce::allreduce || in.communication.empty() || single_bucket(in)) return std::nullopt;
  if (!in.first_bucket_begins || *in.first_bucket_begins < kLateBucket) return std::nullopt;
  const CommunicationTable& table = in.communication.front();
  if (table.rows.empty() || table.steps == 0) return std::nullopt;
  const int64_t bytes = table.rows.front().buffer_bytes / table.steps;
  return Finding{fmt::format("The first bucket ({}) starts when {} of backward are over; what is behind it has little left to hide beside.",
                             short_bytes(bytes), percent(*in.first_bucket_begins)),
                 fmt::format("`--first-bucket-mb {:.2g}` lets it start earlier, unless one parameter fills it.",
                             static_cast<double>(std::min(bytes, in.first_bucket_bytes)) / 4 / (1 << 20))};
}

std::optional<Finding> exposed_communication(const FindingsInput& in) {
  if (in.communication.empty() || in.tables.empty()) return std::nullopt;
  const CommunicationTable& table = in.communication[least_late(in.communication)];
  const PhaseTable& phases = in.tables[static_cast<size_t>(table.ordinal)];
  const double share = share_of(phases, table.total().exposed_seconds);
  if (share < kExposed) return std::nullopt;
  const bool star = in.scheme.reduce == Reduce::gpu0;
  return Finding{
      fmt::format("Communication holds up {} of the step.", percent(share)),
      star ? "`--mode ddp` reduces in buckets beside backward, and sends nothing back."
           : fmt::format("`--batch-size {} --accumulate {}` takes twice the samples to each reduction; `--reduce-dtype f16` halves its bytes.",
                         in.batch_size * 2, in.accumulate * 2)};
}

std::optional<Finding> skipped_steps(const FindingsInput& in) {
  const double share = in.steps > 0 ? static_cast<double>(in.skipped_steps) / static_cast<double>(in.steps) : 0;
  if (share < kSkipped) return std::nullopt;
  return Finding{
      fmt::format("{} of {} steps were skipped, because the gradient was not finite.", format_count(in.skipped_steps), format_count(in.steps)),
      fmt::format("`--loss-scale {:.6g}`, where the scale came to rest, starts without the search.", in.loss_scale)};
}

std::optional<double> first_bucket_begin(const StepView& view) {
  int64_t begin = 0, end = 0;
  for (const SpanRecord& span : view.compute) {
    if (span.info.phase != Phase::backward || span.info.step != view.step) continue;
    begin = begin == 0 ? span.begin_ns : begin;
    end = std::max(end, span.end_ns);
  }
  for (const SpanRecord& span : view.communication) {
    if (span.info.phase != Phase::reduce || span.info.step != view.step || span.depth > 0 || end <= begin) continue;
    // The span opens when the bucket is issued; its reduction begins behind the wait for its gradients.
    int64_t start = span.begin_ns;
    for (const SpanRecord& inner : view.communication) {
      const bool waits = inner.info.phase == Phase::wait && inner.begin_ns >= span.begin_ns && inner.end_ns <= span.end_ns;
      if (waits && std::string_view(inner.info.cause) == "backward") start = std::max(start, inner.end_ns);
    }
    return std::clamp(static_cast<double>(start - begin) / static_cast<double>(end - begin), 0.0, 1.0);
  }
  return std::nullopt;
}

std::vector<Finding> find_findings(const FindingsInput& input) {
  std::vector<Finding> all;
  for (const auto find : {divergence, uneven_memory, little_headroom, large_workspace, waits_for_data, waits_for_host, idle_device, waits_for_peers,
                          single_bucket, late_first_bucket, exposed_communication, skipped_steps}) {
    if (auto finding = find(input)) all.push_back(std::move(*finding));
  }
  return all;
}

}  // namespace vitrine::tools
