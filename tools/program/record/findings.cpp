// SPDX-License-Identifier: Apache-2.0
#include "tools/program/record/findings.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <numeric>

#include <fmt/ranges.h>

#include "runtime/error.h"
#include "tools/program/text/tables.h"

namespace vitrine::tools {

namespace {

// Shares above which a finding is reported.
constexpr double kUneven = 0.05, kNearCapacity = 0.9, kLargeWorkspace = 0.5, kDataWait = 0.05, kHostWait = 0.1,
                 kIdle = 0.1, kExposed = 0.1, kLateBucket = 0.75, kSkipped = 0.05;
// What a finding's cost is a share of.
constexpr const char *kItsMemory = "its memory", *kItsCapacity = "its capacity", *kTheStep = "the step",
                     *kTheSteps = "the steps";
// Share of its capacity below which a device has memory to spare, so that an uneven use needs no remedy.
constexpr double kBinds = 0.5;
constexpr const char* kTryEqualSplit = "`--split equal` would give equal devices equal work.";
constexpr const char* kTryDdp = "`--mode ddp` reduces in buckets during backward and broadcasts nothing.";
// A full device costs nothing until the batch grows.
constexpr double kLittleHeadroomCost = 0.1;
// Smaller differences between schemes are not reported.
constexpr double kDiffers = 0.03;
// Measured steps from which waits of devices for each other are judged: in fewer, any device can be late by chance.
constexpr int64_t kFewestSteps = 8;
// Costs from which a finding is called large or moderate.
constexpr double kLarge = 0.25, kModerate = 0.1;
// With other work on the machine, every one of two or three rounds may hit one scheme only.
constexpr size_t kFewestRounds = 4;

double share_of(const PhaseTable& table, double seconds) {
  return table.wall_seconds > 0 ? seconds / table.wall_seconds : 0;
}

/// Whether the steps of a run show how long devices wait: enough were measured, and no two threads shared a core.
bool judges_waits(const RunRecord& run) {
  return run.crowded.empty() &&
         std::ranges::all_of(run.devices, [](const auto& d) { return d.phases.steps >= kFewestSteps; });
}

/// The one rule for what a measured share of the step shows: too few steps, differences between rounds and more threads
/// than cores make a share of any size.
bool is_signal(const RunRecord& run, double share) {
  const std::vector<double>& rounds = run.rates.rounds;
  if (rounds.empty() || !run.crowded.empty()) return judges_waits(run);
  return rounds.size() >= kFewestRounds && share * run.rates.median() > run.rates.most() - run.rates.least();
}

/// A finding about memory of `device`, as a share of what limits it. With memory to spare the remedy says so.
Finding memory_finding(const DeviceRecord& device, int64_t bytes, std::string text, std::string remedy) {
  const int64_t capacity = device.pool.capacity_bytes, peak = device.pool.peak_bytes;
  if (capacity == 0)
    return {std::move(text), std::move(remedy), static_cast<double>(bytes) / static_cast<double>(peak), kItsMemory};
  const bool harmless = device.share_of_capacity(peak) < kBinds;
  if (harmless) {
    const std::string left = short_bytes(capacity - peak), all = short_bytes(capacity);
    remedy = left == all ? fmt::format("Nothing needs to change: the capacity is {}, nearly all of it free.", all)
                         : fmt::format("Nothing needs to change: {} of {} are free.", left, all);
  }
  return {std::move(text), std::move(remedy), device.share_of_capacity(bytes), kItsCapacity, harmless};
}

/// The largest value of the devices other than `device`; 0 without any.
int64_t most_of_others(const std::vector<DeviceRecord>& devices, size_t device, const auto& value) {
  int64_t most = 0;
  for (size_t d = 0; d < devices.size(); ++d) most = d == device ? most : std::max<int64_t>(most, value(devices[d]));
  return most;
}

/// Why `device` holds `excess` more bytes of a category than the others, and what would change it.
Finding reason_of_excess(const RunRecord& run, size_t device, Category category, int64_t excess) {
  const DeviceRecord& figures = run.devices[device];
  int64_t gathered = figures.memory ? 0 : excess;
  if (figures.memory) {
    for (const HeldBlock& block : figures.memory->blocks)
      if (block.tensor == "gathered outputs" && figures.memory->holds_at_peak(block)) gathered += block.bytes;
  }
  if (category == Category::activations && run.scheme.loss_at == LossAt::gathered &&
      static_cast<int>(device) == run.scheme.output_device && 2 * gathered > excess) {
    return {"outputs gathered for the loss", "`--mode criterion` would leave them where they are"};
  }
  if (category == Category::staging && run.scheme.staging == Staging::device0 && device == 0) {
    return {"the whole batch, staged there before it is scattered",
            "`--staging host` brings each slice straight to its device"};
  }
  const bool updates = category == Category::optimizer || category == Category::parameters;
  if (updates && run.scheme.reduce == ReducerKind::gpu0 && device == 0) {
    return {"the optimizer's state, because only it updates",
            fmt::format("`--mode zero1` divides it among all devices; `--split gpu0={}` would leave it there and give "
                        "the device fewer samples, about {} less to hold, and the others more",
                        std::max<int64_t>(1, figures.samples_per_step / 2),
                        short_bytes(figures.bytes_at_peak(Category::activations) / 2))};
  }
  if (figures.samples_per_step >
      most_of_others(run.devices, device, [](const auto& d) { return d.samples_per_step; })) {
    return {fmt::format("it has {} of {} samples", figures.samples_per_step, run.batch_size),
            "`--split equal` would distribute them"};
  }
  return {"the peaks occur at different moments",
          fmt::format("`--accumulate {}` lowers what all devices hold at once", run.accumulate * 2)};
}

std::optional<Finding> divergence(const RunRecord& run) {
  const auto evaluation = std::ranges::find_if(
      run.epochs, [](const EpochRecord& e) { return e.test_loss && !std::isfinite(*e.test_loss); });
  if (run.diverged.empty() && run.steps.non_finite == 0 && evaluation == run.epochs.end()) return std::nullopt;
  std::string text = run.diverged + ".";
  if (run.diverged.empty()) {
    text = run.steps.non_finite > 0
               ? fmt::format("The loss was not finite in {} of {} steps, from step {} on: the weights are unusable.",
                             format_count(run.steps.non_finite), format_count(run.steps.steps),
                             run.steps.first_non_finite + 1)
               : fmt::format("The test loss of epoch {} is not finite: the weights are unusable.", evaluation->epoch);
  }
  return Finding{text,
                 fmt::format("A smaller `--lr`{} keeps values finite; so may `--precision fp32` or `bf16` in place of "
                             "fp16.",
                             run.update_in_backward ? "" : " or `--clip-norm 1`"),
                 1.0};
}

std::optional<Finding> uneven_memory(const RunRecord& run) {
  if (run.devices.size() < 2 || !all_fit(run.devices)) return std::nullopt;  // what does not fit has remedies
  const size_t device = fullest(run.devices);
  const int64_t peak = run.devices[device].pool.peak_bytes;
  const int64_t more = peak - most_of_others(run.devices, device, [](const auto& d) { return d.pool.peak_bytes; });
  if (static_cast<double>(more) < kUneven * static_cast<double>(peak)) return std::nullopt;
  BytesByCategory excess = run.devices[device].pool.peak_by_category;
  for (size_t c = 0; c < excess.size(); ++c)
    excess[c] -= most_of_others(run.devices, device, [c](const auto& d) { return d.pool.peak_by_category[c]; });
  const auto most = std::max_element(excess.begin(), excess.end() - 1);  // fragmentation is not a reason
  if (*most <= 0) return std::nullopt;
  const auto category = static_cast<Category>(most - excess.begin());
  const Finding reason = reason_of_excess(run, device, category, *most);
  return memory_finding(run.devices[device], more,
                        fmt::format("{} holds {} more than the others, mostly {} ({}{}): {}.",
                                    run.devices[device].device, short_bytes(more), category_name(category),
                                    short_bytes(*most), *most > more ? ", and less of others" : "", reason.text),
                        reason.remedy + ".");
}

std::optional<Finding> little_headroom(const RunRecord& run) {
  if (run.devices.empty()) return std::nullopt;
  const auto share = [](const DeviceRecord& d) { return d.share_of_capacity(d.pool.peak_bytes); };
  const auto tightest =
      std::ranges::max_element(run.devices, [&](const auto& a, const auto& b) { return share(a) < share(b); });
  if (share(*tightest) < kNearCapacity || share(*tightest) > 1) return std::nullopt;  // what does not fit has remedies
  return Finding{fmt::format("{} uses {} of its {}.", tightest->device, percent(share(*tightest)),
                             short_bytes(tightest->pool.capacity_bytes)),
                 fmt::format("`--accumulate {}` halves the activations; `vitrine plan --frontier` shows whether "
                             "computing them again would save any.",
                             run.accumulate * 2),
                 kLittleHeadroomCost};
}

std::optional<Finding> large_workspace(const RunRecord& run) {
  if (run.devices.empty()) return std::nullopt;
  const DeviceRecord& device = run.devices[fullest(run.devices)];
  const int64_t workspace = device.bytes_at_peak(Category::workspace);
  const double share =
      device.pool.peak_bytes > 0 ? static_cast<double>(workspace) / static_cast<double>(device.pool.peak_bytes) : 0;
  if (share < kLargeWorkspace) return std::nullopt;
  return memory_finding(
      device, workspace,
      fmt::format("{} of {}'s memory is the libraries' workspace ({}).", percent(share), device.device,
                  short_bytes(workspace)),
      fmt::format("`--workspace {}MiB` would save the rest, where the algorithms that fit it are fast enough.",
                  std::max<int64_t>(1, workspace / 4 >> 20)));
}

std::optional<Finding> waits_for_data(const RunRecord& run) {
  double share = 0;
  for (const DeviceRecord& d : run.devices) share = std::max(share, phase_row(d.phases, Phase::data).share);
  if (share < kDataWait || !is_signal(run, share)) return std::nullopt;
  const std::string workers = fmt::format("raise `--workers` from {}, for example to {}", run.workers, run.workers * 2);
  return Finding{
      fmt::format("{} of the step waits for data.", percent(share)),
      (run.host_preprocess ? "`--preprocess device` takes the work from the loader; or " : "") + workers + ".", share,
      kTheStep};
}

std::optional<Finding> waits_for_host(const RunRecord& run) {
  for (const DeviceRecord& d : run.devices) {
    const double share = wait_row(d.phases, "host").share;
    if (share < kHostWait || !is_signal(run, share)) continue;
    return Finding{fmt::format("{} of the step {} has nothing to do, because the host has not issued more yet.",
                               percent(share), d.device),
                   fmt::format("`--batch-size {}` gives each launch more work.", run.batch_size * 2), share, kTheStep};
  }
  return std::nullopt;
}

std::optional<Finding> idle_device(const RunRecord& run) {
  if (run.devices.size() < 2) return std::nullopt;
  std::vector<double> busy, rates;
  for (const DeviceRecord& d : run.devices) {
    busy.push_back(seconds_in(d.phases, std::array{Phase::forward, Phase::recompute, Phase::backward}));
    if (d.samples_per_step == 0 || busy.back() <= 0) return std::nullopt;
    rates.push_back(static_cast<double>(d.samples_per_step) / busy.back());
  }
  const size_t fast = static_cast<size_t>(std::ranges::min_element(busy) - busy.begin());
  const size_t slow = static_cast<size_t>(std::ranges::max_element(busy) - busy.begin());
  const PhaseTable& table = run.devices[fast].phases;
  const double idle = phase_row(table, Phase::wait).share, gap = share_of(table, busy[slow] - busy[fast]);
  if (std::min(idle, gap) < kIdle || !is_signal(run, gap)) return std::nullopt;
  // Equal devices with equal work differ because other work takes their cores.
  if (run.equal_cpus && run.devices[fast].samples_per_step == run.devices[slow].samples_per_step) return std::nullopt;
  const double all = std::accumulate(rates.begin(), rates.end(), 0.0);
  std::vector<int64_t> shares;
  for (const double rate : rates) shares.push_back(std::llround(static_cast<double>(run.batch_size) * rate / all));
  const auto time_of = [&](size_t d) { return short_seconds(per_step(busy[d], run.devices[d].phases)); };
  return Finding{
      fmt::format("{} idles {} of the step: its {} samples take it {}, those of {} take {}.", run.devices[fast].device,
                  percent(idle), run.devices[fast].samples_per_step, time_of(fast), run.devices[slow].device,
                  time_of(slow)),
      run.scheme.reduce == ReducerKind::gpu0 && run.devices[fast].samples_per_step == run.devices[slow].samples_per_step
          ? kTryDdp
      : run.equal_cpus ? kTryEqualSplit
                       : fmt::format("`--split {}` would distribute them by speed.", fmt::join(shares, ",")),
      idle, kTheStep};
}

std::optional<Finding> waits_for_peers(const RunRecord& run) {
  const DeviceRecord* longest = nullptr;
  double share = 0;
  for (const DeviceRecord& d : run.devices) {
    double late = 0;
    for (const WaitRow& wait : d.phases.waits) late += wait.cause.find(" in ") != std::string::npos ? wait.share : 0;
    if (late <= share) continue;
    share = late;
    longest = &d;
  }
  if (share < kIdle || !is_signal(run, share)) return std::nullopt;
  return Finding{fmt::format("{} waits {} of the step for peers that reach a collective later, a different one each "
                             "time: no split would change that.",
                             longest->device, percent(share)),
                 "`--threads-per-device` with fewer threads than cores in all, or an otherwise idle machine, lets them "
                 "arrive together.",
                 share, kTheStep};
}

bool is_bucket(const CommunicationRow& row) { return row.phase == Phase::reduce && row.layer != kBatchStatistics; }

std::optional<Finding> single_bucket(const RunRecord& run) {
  const DeviceRecord* slowest = least_late(run.devices);
  if (slowest == nullptr || run.scheme.reduce != ReducerKind::allreduce) return std::nullopt;
  const CommunicationTable& table = slowest->communication;
  if (std::ranges::count_if(table.rows, is_bucket) != 1) return std::nullopt;
  const CommunicationRow& row = *std::ranges::find_if(table.rows, is_bucket);
  const double share = share_of(slowest->phases, row.exposed_seconds);
  if (row.exposed_share() < kExposed || row.buffer_bytes == 0 || !is_signal(run, share)) return std::nullopt;
  const int64_t bytes = per_step(row.buffer_bytes, table);
  return Finding{
      fmt::format(
          "All gradients ({}) are in one bucket, which starts only when backward is done: {} of its time is exposed.",
          short_bytes(bytes), percent(row.exposed_share())),
      fmt::format("`--bucket-mb {0:.2g} --first-bucket-mb {0:.2g}` would make four of them, the first of which overlap "
                  "with backward.",
                  std::max(1e-3, static_cast<double>(bytes) / 4 / (1 << 20))),
      share, kTheStep};
}

std::optional<Finding> late_first_bucket(const RunRecord& run) {
  if (run.scheme.reduce != ReducerKind::allreduce || run.devices.empty()) return std::nullopt;
  if (!run.first_bucket_begins || *run.first_bucket_begins < kLateBucket || !judges_waits(run)) return std::nullopt;
  const CommunicationTable& table = run.devices.front().communication;
  const auto first = std::ranges::find_if(table.rows, is_bucket);
  if (first == table.rows.end() || table.steps == 0) return std::nullopt;
  const int64_t bytes = per_step(first->buffer_bytes, table);
  return Finding{fmt::format("The first bucket ({}) starts when {} of backward is over; the buckets after it have "
                             "little left to overlap with.",
                             short_bytes(bytes), percent(*run.first_bucket_begins)),
                 fmt::format("`--first-bucket-mb {:.2g}` lets it start earlier, unless one parameter fills it.",
                             static_cast<double>(std::min(bytes, run.first_bucket_bytes)) / 4 / (1 << 20)),
                 0.0};
}

std::optional<Finding> exposed_communication(const RunRecord& run) {
  const DeviceRecord* slowest = least_late(run.devices);
  if (slowest == nullptr) return std::nullopt;
  const double share = share_of(slowest->phases, slowest->communication.total().exposed_seconds);
  if (share < kExposed || !is_signal(run, share)) return std::nullopt;
  return Finding{fmt::format("Communication holds up {} of the step.", percent(share)),
                 run.scheme.reduce == ReducerKind::gpu0
                     ? kTryDdp
                     : fmt::format("`--batch-size {} --accumulate {}` takes twice the samples to each reduction; "
                                   "`--reduce-dtype f16` halves its bytes.",
                                   run.batch_size * 2, run.accumulate * 2),
                 share, kTheStep};
}

std::optional<Finding> other_waits(const RunRecord& run) {
  const DeviceRecord* device = longest_waiting(run);
  if (device == nullptr || device->phases.waits.empty()) return std::nullopt;
  const double share = phase_row(device->phases, Phase::wait).share;
  std::vector<std::string> causes;
  for (const WaitRow& wait : device->phases.waits) {
    if (wait.share >= kUneven / 2) causes.push_back(fmt::format("{} for {}", percent(wait.share), wait.cause));
  }
  std::string text = fmt::format("{} waits {} of the step", device->device, percent(share));
  if (!causes.empty()) text += fmt::format(": {}", fmt::join(causes, ", "));
  const auto compute = [](const DeviceRecord& d) {
    return per_step(seconds_in(d.phases, std::array{Phase::forward, Phase::recompute, Phase::backward}), d.phases);
  };
  const DeviceRecord& slowest = *std::ranges::max_element(run.devices, {}, compute);
  if (compute(slowest) - compute(*device) >= per_step(share * device->phases.wall_seconds, device->phases) / 2) {
    return Finding{fmt::format("{}. Forward and backward take {} {}, {} {}.", text, slowest.device,
                               short_seconds(compute(slowest)), device->device, short_seconds(compute(*device))),
                   !run.equal_cpus ? ""
                   : device->samples_per_step == slowest.samples_per_step
                       ? "Equal devices differ only if other work takes their cores."
                       : kTryEqualSplit,
                   share, kTheStep};
  }
  return Finding{text + ".", run.scheme.reduce == ReducerKind::gpu0 ? kTryDdp : "", share, kTheStep};
}

std::optional<Finding> crowded_cores(const RunRecord& run) {
  const size_t remedy = run.crowded.rfind("; ");
  if (remedy == std::string::npos) return std::nullopt;
  return Finding{
      fmt::format("{}. The times and waits of single devices mean little here.", run.crowded.substr(0, remedy)),
      fmt::format("To measure: {}.", run.crowded.substr(remedy + 2))};
}

std::optional<Finding> skipped_steps(const RunRecord& run) {
  const int64_t skipped = run.steps.skipped();
  const double share = run.steps.steps > 0 ? static_cast<double>(skipped) / static_cast<double>(run.steps.steps) : 0;
  if (share < kSkipped) return std::nullopt;
  return Finding{fmt::format("{} of {} steps were skipped, because the gradient was not finite.", format_count(skipped),
                             format_count(run.steps.steps)),
                 fmt::format("`--loss-scale {:.6g}`, where the scale settled, starts without the search.",
                             run.steps.scales.empty() ? 1.0 : run.steps.scales.back().loss_scale),
                 share, kTheSteps};
}

/// Results first, then what costs most.
void sort_findings(std::vector<Finding>& all) {
  std::ranges::stable_sort(all, std::ranges::greater(), [](const Finding& f) { return f.cost.value_or(2.0); });
}

/// What a stage costs beside the one below.
std::string cost_of_stage(const RunRecord& run, const RunRecord& stage_below) {
  const int64_t moved = run.planned_moved_bytes, more = moved - stage_below.planned_moved_bytes;
  std::string text = fmt::format(
      "Its collectives move {} a step, {}", short_bytes(moved),
      more == 0 ? "no more" : fmt::format("{} {}", short_bytes(std::abs(more)), more > 0 ? "more" : "less"));
  if (std::min(run.rates.rounds.size(), stage_below.rates.rounds.size()) < kFewestRounds) return text + ".";
  const bool differs = is_faster(run.rates, stage_below.rates) || is_faster(stage_below.rates, run.rates);
  return text +
         (differs ? fmt::format("; its speed is {:.2f} times as high.", run.rates.median() / stage_below.rates.median())
                  : "; their speeds are within noise.");
}

void conclude(Record& record, std::vector<Finding> findings, std::vector<Finding> stages) {
  record.findings = std::move(findings);
  record.findings.insert(record.findings.end(), stages.begin(), stages.end());
  record.stages = std::move(stages);
  sort_findings(record.findings);
}

/// The records in which a rule is judged: a plan has no times, and a comparison shows what its runs may differ in.
enum Judged : unsigned { kInRuns = 1, kInPlans = 2, kInComparisons = 4 };

/// What is judged, in the order of findings that cost the same.
struct Rule {
  std::string_view name;
  std::optional<Finding> (*find)(const RunRecord&);
  unsigned judged = kInRuns;
  std::vector<std::string_view> unless = {};  // rules whose findings explain this one
};

const std::vector<Rule>& rules() {
  static const std::vector<Rule> all = {
      {"crowded_cores", crowded_cores},
      {"divergence", divergence},
      {"uneven_memory", uneven_memory, kInRuns | kInPlans | kInComparisons},
      {"little_headroom", little_headroom, kInRuns | kInPlans},
      {"large_workspace", large_workspace, kInRuns | kInPlans},
      {"waits_for_data", waits_for_data},
      {"waits_for_host", waits_for_host},
      {"idle_device", idle_device, kInRuns | kInComparisons},
      {"waits_for_peers", waits_for_peers, kInRuns | kInComparisons, {"idle_device"}},
      {"single_bucket", single_bucket},
      {"late_first_bucket", late_first_bucket, kInRuns, {"single_bucket"}},
      {"exposed_communication", exposed_communication, kInRuns | kInComparisons},
      {"other_waits",
       other_waits,
       kInRuns,
       {"waits_for_data", "waits_for_host", "idle_device", "waits_for_peers", "exposed_communication"}},
      {"skipped_steps", skipped_steps}};
  return all;
}

std::optional<Finding> apply(const Rule& rule, const RunRecord& run) {
  const auto explains = [&](std::string_view name) { return apply_rule(name, run).has_value(); };
  return std::ranges::any_of(rule.unless, explains) ? std::nullopt : rule.find(run);
}

std::vector<Finding> judge(const RunRecord& run, Judged where) {
  std::vector<Finding> all;
  for (const Rule& rule : rules()) {
    if ((rule.judged & where) == 0) continue;
    if (auto finding = apply(rule, run)) all.push_back(std::move(*finding));
  }
  sort_findings(all);
  // Two findings may suggest two splits: that of the costlier one counts.
  bool splits = false;
  for (Finding& finding : all) {
    const bool changes_split = finding.remedy.find("`--split") != std::string::npos;
    if (changes_split && splits) finding.remedy.clear();
    splits = splits || changes_split;
  }
  return all;
}

}  // namespace

std::optional<Finding> apply_rule(std::string_view name, const RunRecord& run) {
  return apply(*std::ranges::find_if(rules(), [&](const Rule& rule) { return rule.name == name; }), run);
}

const DeviceRecord* longest_waiting(const RunRecord& run) {
  const auto wait = [](const DeviceRecord& d) { return phase_row(d.phases, Phase::wait).share; };
  const auto most = std::ranges::max_element(run.devices, {}, wait);
  return most == run.devices.end() || wait(*most) < kIdle || !is_signal(run, wait(*most)) ? nullptr : &*most;
}

std::optional<double> first_bucket_begin(const StepView& view) {
  int64_t begin = 0, end = 0;
  for (const SpanRecord& span : view.compute) {
    if (span.info.phase != Phase::backward || span.info.step != view.step) continue;
    begin = begin == 0 ? span.begin_ns : begin;
    end = std::max(end, span.end_ns);
  }
  for (const SpanRecord& span : view.communication) {
    const bool bucket = span.info.phase == Phase::reduce && std::string_view(span.info.layer) != kBatchStatistics;
    if (!bucket || span.info.step != view.step || span.depth > 0 || end <= begin) continue;
    // The span opens when the bucket is issued; its reduction begins after the wait for its gradients.
    int64_t start = span.begin_ns;
    for (const SpanRecord& inner : view.communication) {
      const bool waits =
          inner.info.phase == Phase::wait && inner.begin_ns >= span.begin_ns && inner.end_ns <= span.end_ns;
      if (waits && std::string_view(inner.info.cause) == "backward") start = std::max(start, inner.end_ns);
    }
    return std::clamp(static_cast<double>(start - begin) / static_cast<double>(end - begin), 0.0, 1.0);
  }
  return std::nullopt;
}

std::vector<Finding> find_findings(const RunRecord& run) { return judge(run, kInRuns); }
std::vector<Finding> plan_findings(const RunRecord& plan) { return judge(plan, kInPlans); }

Finding compare_stages(const RunRecord& run, const RunRecord& stage_below) {
  const DeviceRecord& device = run.devices[fullest(run.devices)];
  const DeviceRecord& below = stage_below.devices[fullest(stage_below.devices)];
  const int64_t more = device.pool.peak_bytes - below.pool.peak_bytes;
  BytesByCategory excess = device.pool.peak_by_category;
  for (size_t c = 0; c < excess.size(); ++c)
    excess[c] = (more < 0 ? -1 : 1) * (excess[c] - below.pool.peak_by_category[c]);
  const auto most = std::max_element(excess.begin(), excess.end() - 1);  // fragmentation is not a reason
  const auto category = static_cast<Category>(most - excess.begin());
  const bool in_buckets = category == Category::gradients || category == Category::parameters;
  const std::string stage = fmt::format("--shard {}", sharding_name(run.scheme.shard)),
                    lower = fmt::format("--shard {}", sharding_name(stage_below.scheme.shard)),
                    cost = cost_of_stage(run, stage_below);
  const std::string remedy =
      fmt::format("A smaller `--bucket-mb` may make `{}` hold less; else use `{}`.", stage, lower);
  if (more < 0) {
    return {fmt::format("`{}` saves {} over `{}`: {} holds {} in place of {}, mostly {} ({} less). {}", stage,
                        short_bytes(-more), lower, device.device, short_bytes(device.pool.peak_bytes),
                        short_bytes(below.pool.peak_bytes), category_name(category), short_bytes(*most), cost),
            {}};
  }
  if (more == 0) {
    return memory_finding(device, more,
                          fmt::format("`{}` saves nothing over `{}`: {} holds {}. {}", stage, lower, device.device,
                                      short_bytes(device.pool.peak_bytes), cost),
                          remedy);
  }
  return memory_finding(
      device, more,
      fmt::format("With `{}` {} holds {} more than with `{}`, mostly {} ({}): {}. {}", stage, device.device,
                  short_bytes(more), lower, category_name(category), short_bytes(*most),
                  in_buckets ? "buckets are whole while layers use them" : "the peaks occur at different moments",
                  cost),
      remedy);
}

std::vector<Finding> stage_findings(std::span<const RunRecord> runs, int processes,
                                    const std::optional<RunRecord>& stage_below) {
  std::vector<Finding> all;
  for (const RunRecord& run : runs) {
    if (run.scheme.shard != Sharding::none && run.devices.size() == 1 && processes == 1)
      all.push_back(
          {fmt::format("`--shard {}` saves nothing on one device, which holds all.", sharding_name(run.scheme.shard)),
           {}});
    for (const RunRecord& below : runs) {
      const bool is_below = static_cast<int>(below.scheme.shard) + 1 == static_cast<int>(run.scheme.shard) &&
                            below.scheme.reduce == run.scheme.reduce && below.scheme.loss_at == run.scheme.loss_at &&
                            below.precision.compute == run.precision.compute;
      if (is_below && run.devices.size() > 1) all.push_back(compare_stages(run, below));
    }
    if (stage_below) all.push_back(compare_stages(run, *stage_below));
  }
  return all;
}

bool is_faster(const Rates& fast, const Rates& slow) {
  if (std::min(fast.rounds.size(), slow.rounds.size()) < kFewestRounds) return false;
  const double gap = fast.median() - slow.median();
  const bool beyond_noise =
      fast.least() > slow.most() && gap > fast.most() - fast.least() && gap > slow.most() - slow.least();
  return beyond_noise && gap > slow.median() * kDiffers;
}

int64_t fullest_bytes(const RunRecord& run) {
  return run.devices.empty() ? 0 : run.devices[fullest(run.devices)].pool.peak_bytes;
}

Extremes extremes_of(const std::vector<RunRecord>& runs) {
  const auto [slowest, fastest] = std::ranges::minmax_element(runs, {}, [](const auto& r) { return r.rates.median(); });
  const auto [least, most] = std::ranges::minmax_element(runs, {}, fullest_bytes);
  return {&*slowest, &*fastest, &*least, &*most};
}

bool judges_speeds(const std::vector<RunRecord>& runs) {
  const auto [slowest, fastest, least, most] = extremes_of(runs);
  return std::min(fastest->rates.rounds.size(), slowest->rates.rounds.size()) >= kFewestRounds;
}

std::vector<std::string> within_noise_of(const RunRecord& fastest, const std::vector<RunRecord>& runs) {
  std::vector<std::string> names;
  for (const RunRecord& run : runs) {
    if (&run != &fastest && !is_faster(fastest.rates, run.rates)) names.push_back(run.name);
  }
  return names;
}

const RunRecord& runner_up(const RunRecord& fastest, const std::vector<RunRecord>& runs) {
  const RunRecord* next = nullptr;
  for (const RunRecord& run : runs) {
    const bool slower = is_faster(fastest.rates, run.rates);
    if (slower && (next == nullptr || run.rates.median() > next->rates.median())) next = &run;
  }
  VITRINE_ASSERT(next != nullptr, "the slowest run is slower than the fastest");
  return *next;
}

std::optional<Finding> compare_speed(const std::vector<RunRecord>& runs) {
  if (runs.size() < 2) return std::nullopt;
  const auto [slowest, fastest, least, most] = extremes_of(runs);
  const size_t rounds = std::min(fastest->rates.rounds.size(), slowest->rates.rounds.size());
  if (!judges_speeds(runs)) {
    return Finding{fmt::format("{} cannot distinguish differences in speed from noise.",
                               rounds < 2 ? "One round" : fmt::format("{} rounds", rounds)),
                   "`--rounds 5` may."};
  }
  if (!is_faster(fastest->rates, slowest->rates)) {
    return Finding{
        fmt::format(
            "The schemes' speeds are within noise: medians from {} to {} samples/s, single rounds from {} to {}.",
            format_rate(slowest->rates.median()), format_rate(fastest->rates.median()),
            format_rate(slowest->rates.least()), format_rate(fastest->rates.most())),
        fmt::format("`--rounds {}` or more `--steps` resolve smaller differences.", rounds * 2)};
  }
  const RunRecord& next = runner_up(*fastest, runs);
  std::vector<std::string> names = within_noise_of(*fastest, runs);
  const char* const are = names.empty() ? "is fastest:" : "are fastest, within noise of each other: up to";
  names.insert(names.begin(), fastest->name);
  return Finding{
      fmt::format("{} {} {} samples/s (median of {} rounds, {} to {}), {:.2f} times {}.", fmt::join(names, ", "), are,
                  format_rate(fastest->rates.median()), rounds, format_rate(fastest->rates.least()),
                  format_rate(fastest->rates.most()), fastest->rates.median() / next.rates.median(), next.name),
      {}};
}

std::vector<Finding> compare_findings(const std::vector<RunRecord>& runs) {
  std::vector<Finding> all;
  if (runs.size() < 2) return all;
  if (auto speed = compare_speed(runs)) all.push_back(std::move(*speed));
  const auto [slowest, fastest, least, most] = extremes_of(runs);
  const int64_t less = fullest_bytes(*most) - fullest_bytes(*least);
  if (static_cast<double>(less) > kDiffers * static_cast<double>(fullest_bytes(*most))) {
    all.push_back({fmt::format("{} leaves the most room: its fullest device holds {}, {} less than that of {}.",
                               least->name, short_bytes(fullest_bytes(*least)), short_bytes(less), most->name),
                   {}});
  }
  return all;
}

std::vector<Finding> comparison_findings(const std::vector<RunRecord>& runs, const std::vector<RunRecord>& refused) {
  std::vector<Finding> all = compare_findings(runs);
  if (!runs.empty()) {
    if (auto crowded = apply_rule("crowded_cores", runs.front())) all.push_back(std::move(*crowded));
  }
  for (const RunRecord& run : runs) {
    for (Finding& finding : judge(run, kInComparisons)) {
      if (finding.cost < kModerate) continue;
      finding.text = fmt::format("{}: {}", run.name, finding.text);
      // What another mode brings is in the comparison itself.
      const auto proposes = [&](const RunRecord& other) {
        return finding.remedy.find(fmt::format("`--mode {}`", other.name)) != std::string::npos ||
               (finding.remedy == kTryEqualSplit && other.scheme.split.kind == Split::Kind::equal &&
                same_axes(other.scheme, run.scheme));
      };
      if (std::ranges::any_of(runs, proposes) || std::ranges::any_of(refused, proposes)) finding.remedy.clear();
      all.push_back(std::move(finding));
    }
  }
  sort_findings(all);
  return all;
}

const char* severity_of(const Finding& finding) {
  if (!finding.cost) return "result";
  if (finding.harmless) return "harmless";
  return *finding.cost >= kLarge ? "large" : *finding.cost >= kModerate ? "moderate" : "small";
}

std::string describe_cost(const Finding& finding) {
  if (!finding.cost) return {};
  const std::string severity = severity_of(finding);
  constexpr double kShown = 0.0005;  // "0.1 %" when rounded
  return finding.cost_of[0] == '\0' || *finding.cost < kShown
             ? severity
             : fmt::format("{}, {} of {}", severity, percent(*finding.cost), finding.cost_of);
}

std::string describe_severities() {
  return fmt::format(
      "Large: at least {} of the step or of the capacity; moderate: at least {}; harmless: less than {} of the "
      "capacity "
      "is used.",
      percent(kLarge), percent(kModerate), percent(kBinds));
}

std::string no_findings(const PlanRecord& record) {
  return all_fit(record.run.devices)
             ? "Nothing stands out: no device is nearly full, and none holds much more than the others."
             : "Nothing else stands out.";
}

std::string no_findings(std::span<const RunRecord> runs) {
  int64_t steps = kFewestSteps;
  double wait = 0;
  for (const RunRecord& run : runs) {
    for (const DeviceRecord& d : run.devices) {
      wait = std::max(wait, phase_row(d.phases, Phase::wait).share);
      if (d.phases.steps == 0 && run.steps.steps == 1)
        return "No step was timed: the first never is. --steps 2 or more show where the time goes.";
      if (run.devices.size() > 1) steps = std::min(steps, d.phases.steps);
    }
  }
  if (steps == kFewestSteps)
    return fmt::format("Nothing stands out: {}, and none holds much more than the others.",
                       wait < kIdle ? "no device waits for long" : "no setting is known to shorten the waits");
  return fmt::format(
      "Nothing stands out in {} after the first; judging waits between devices takes at least {} measured steps.",
      counted(steps, "step"), kFewestSteps);
}

void conclude(TrainingRecord& record) {
  conclude(record, find_findings(record.run), stage_findings({&record.run, 1}, record.processes, record.stage_below));
}

void conclude(PlanRecord& record) {
  conclude(record, plan_findings(record.run), stage_findings({&record.run, 1}, record.processes, record.stage_below));
}

void conclude(ComparisonRecord& record) {
  record.speed = compare_speed(record.runs);
  std::vector<Finding> findings = comparison_findings(record.runs, record.refused);
  if (record.interrupted) {  // more rounds were asked for
    const auto clear = [](Finding& finding) {
      if (finding.remedy.starts_with("`--rounds")) finding.remedy.clear();
    };
    for (Finding& finding : findings) clear(finding);
    if (record.speed) clear(*record.speed);
  }
  conclude(record, std::move(findings), stage_findings(record.runs, record.processes));
}

}  // namespace vitrine::tools
