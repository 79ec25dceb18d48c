// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "tools/program/record/device_sets.h"
#include "tools/program/record/findings.h"
#include "tools/program/render/html/page.h"
#include "tools/program/text/tables.h"

namespace vitrine::tools::html {

namespace {

/// A figure, which the page emphasizes.
std::string figure(const std::string& text) { return '`' + text + '`'; }
std::string rate_figure(double value) { return figure(format_rate(value)); }

int64_t peak_bytes(const DeviceRecord& d) { return d.pool.peak_bytes; }
/// "cpu:0 peaks at `15.3 MiB`, `4.3 MiB` more than cpu:1, mostly the optimizer's state".
std::string peak_words(const std::vector<DeviceRecord>& devices, size_t shown, const char* verb,
                       const std::string& of_capacity = {}) {
  const DeviceRecord &d = devices[shown], &least = devices[emptiest(devices)];
  const bool equal = devices.size() > 1 && peak_bytes(devices[fullest(devices)]) == peak_bytes(least);
  std::string text = fmt::format("{} {} {}{}", equal ? "each device" : d.device, verb,
                                 figure(short_bytes(peak_bytes(d))), of_capacity);
  const int64_t more = peak_bytes(d) - peak_bytes(least);
  if (more == 0) return text;
  text += fmt::format(", {} more than {}", figure(short_bytes(more)), least.device);
  const std::vector<MemoryDifference> reasons = memory_differences(d, least);
  if (reasons.empty()) return text;
  const Category category = reasons.front().category;
  return text + ", mostly " + (category == Category::optimizer ? "the optimizer's state" : category_name(category));
}

std::string story_of_comparison(const std::vector<RunRecord>& runs) {
  const auto [slow, fast, little, much] = extremes_of(runs);
  std::vector<std::string> fastest = within_noise_of(*fast, runs);
  const char* const tied = fastest.empty() ? "," : " (within noise of each other), up to";
  fastest.insert(fastest.begin(), fast->name);
  std::vector<std::string> as_small;
  for (const RunRecord& run : runs) {
    if (fullest_bytes(run) == fullest_bytes(*little)) as_small.push_back(run.name);
  }
  std::string text = fmt::format("{}: {} to {} samples/s.",
                                 judges_speeds(runs) ? "Speeds are within noise" : "Too few rounds to compare speeds",
                                 rate_figure(slow->rates.median()), rate_figure(fast->rates.median()));
  if (is_faster(fast->rates, slow->rates)) {
    const RunRecord& next = runner_up(*fast, runs);
    const int64_t next_bytes = fullest_bytes(next), saved = fullest_bytes(*much) - next_bytes;
    text = fmt::format("Fastest: {}{} {} samples/s, {} times {}{}.", fmt::join(fastest, ", "), tied,
                       rate_figure(fast->rates.median()),
                       figure(fmt::format("{:.2f}", fast->rates.median() / next.rates.median())), next.name,
                       saved > 0 && next_bytes > fullest_bytes(*little)
                           ? fmt::format(", whose fullest device holds {} less than that of {}",
                                         figure(short_bytes(saved)), much->name)
                           : std::string());
  }
  const int64_t less = fullest_bytes(*much) - fullest_bytes(*little);
  const std::string needs = figure(short_bytes(fullest_bytes(*little)));
  return text + (less == 0 ? fmt::format(" The fullest device holds {} under each scheme.", needs)
                           : fmt::format(" Least memory on the fullest device: {}, {}, {} less than {}.",
                                         fmt::join(as_small, ", "), needs, figure(short_bytes(less)), much->name));
}

}  // namespace

std::vector<std::string> speed_and_peak(const RunRecord& run) {
  std::vector<std::string> facts;
  EpochRecord all;
  for (const EpochRecord& e : run.epochs) {
    all.samples += e.samples;
    all.seconds += e.seconds;
  }
  if (all.samples_per_second() > 0.0) {
    const std::string rate = run.tokens.rate(all.samples_per_second());
    const size_t blank = rate.find(' ');
    facts.push_back(figure(rate.substr(0, blank)) + rate.substr(blank));
  }
  if (!run.devices.empty()) facts.push_back(peak_words(run.devices, fullest(run.devices), "peaks at"));
  return facts;
}

std::string story(const TrainingRecord& record) {
  const RunRecord& run = record.run;
  std::vector<std::string> facts = speed_and_peak(run);
  if (const DeviceRecord* device = longest_waiting(run)) {
    facts.push_back(fmt::format("{} waits {} of the step", device->device,
                                figure(percent(phase_row(device->phases, Phase::wait).share))));
  }
  const auto failure = apply_rule("divergence", run);
  return (failure ? failure->text + " " : "") + fmt::format("{}.", fmt::join(facts, "; "));
}

std::string story(const PlanRecord& record) {
  const std::vector<DeviceRecord>& devices = record.run.devices;
  size_t shown = fullest(devices);
  for (size_t d = 0; d < devices.size(); ++d) {
    if (!devices[d].fits() && devices[shown].fits()) shown = d;
  }
  const int64_t capacity = devices[shown].pool.capacity_bytes;
  const char* answer = !all_fit(devices) ? "It does not fit: " : capacity > 0 ? "It fits: " : "Planned: ";
  return fmt::format(
      "{}{}.", answer,
      peak_words(devices, shown, "needs", capacity > 0 ? fmt::format(" of {}", short_bytes(capacity)) : std::string()));
}

std::string story(const ComparisonRecord& record) {
  if (record.runs.empty()) return {};
  std::string whole = story_of_comparison(record.runs);
  std::vector<std::string> refused;
  for (const RunRecord& run : record.refused)
    refused.push_back(fmt::format("{} ({} missing)", run.name, figure(short_bytes(missing_bytes(run.devices)))));
  if (!refused.empty()) whole += fmt::format(" Does not fit: {}.", fmt::join(refused, ", "));
  return record.interrupted ? fmt::format("{} ({}.)", whole, record.describe_interruption()) : whole;
}

}  // namespace vitrine::tools::html
