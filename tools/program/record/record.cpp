// SPDX-License-Identifier: Apache-2.0
#include "tools/program/record/record.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "nn/json_file.h"
#include "runtime/error.h"
#include "tools/program/text/tables.h"

namespace vitrine::tools {
namespace {

constexpr size_t kOverflowsShown = 4;

Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(); }

}  // namespace

std::string Tokens::rate(double samples_per_second) const {
  return per_sample > 0 ? format_rate(samples_per_second * static_cast<double>(per_sample)) + " tokens/s"
                        : format_rate(samples_per_second) + " samples/s";
}

std::string Tokens::describe(double loss) const {
  if (per_sample == 0) return {};
  std::string text = fmt::format("  perplexity {:.4g}", std::exp(loss));
  if (bytes_of_each > 0.0) text += fmt::format(", {:.4f} bits per byte", loss / std::numbers::ln2 / bytes_of_each);
  return text;
}

void Tokens::add_to(Json& json, std::optional<double> test_loss, double samples_per_second) const {
  const auto or_null = [](bool known, double value) { return known ? number_or_null(value) : Json(); };
  const double loss = test_loss.value_or(0.0);
  json["tokens_per_second"] = or_null(per_sample > 0, samples_per_second * static_cast<double>(per_sample));
  json["test_perplexity"] = or_null(per_sample > 0 && test_loss, std::exp(loss));
  json["test_bits_per_byte"] =
      or_null(bytes_of_each > 0.0 && test_loss.has_value(), loss / std::numbers::ln2 / bytes_of_each);
}

void StepRecord::add(const StepResult& result) {
  const int64_t step = first_step + steps;
  if (scales.empty() || scales.back().loss_scale != result.loss_scale) scales.push_back({step, result.loss_scale});
  if (result.diverged || (result.valid > 0 && !std::isfinite(result.loss_sum))) {
    if (++non_finite == 1) {
      first_non_finite = step;
      non_finite_where = result.overflow;
    }
  }
  if (result.skipped && !result.diverged) overflows.push_back({step, result.loss_scale, result.overflow});
  if (steps == 0) reduction_error = result.reduction_error;
  if (precision.checks()) norms.push_back(result.gradient_norm);
  ++steps;
}

void StepRecord::end(double loss_scale) {
  if (!scales.empty() && scales.back().loss_scale != loss_scale) scales.push_back({first_step + steps, loss_scale});
}

std::string StepRecord::report() const {
  if (steps == 0) return {};
  std::string text;
  if (non_finite > 0) {
    text += fmt::format("Not finite: {} of {} steps, from step {} on; first {}\n", format_count(non_finite),
                        format_count(steps), first_non_finite + 1, non_finite_where);
  }
  if (!std::isnan(reduction_error)) {
    text += fmt::format("Reduction in {}: relative error {:.1e} against f32, measured in the first step\n",
                        dtype_name(precision.reduce_dtype), reduction_error);
  }
  if (!precision.checks()) return text;
  if (precision.loss_scaling.active()) {
    text += fmt::format("Loss scale: {}", scales.front().loss_scale);
    if (scales.size() > 1) {
      text += fmt::format(" at the start, {} at the end, changed {} time{}", scales.back().loss_scale,
                          scales.size() - 1, scales.size() == 2 ? "" : "s");
    }
    text += "; ";
  }
  if (overflows.empty()) {
    text += "no step was skipped";
  } else {
    text +=
        fmt::format("{} of {} steps skipped, because the gradient was not finite, first in:", format_count(skipped()),
                    format_count(steps));
    for (size_t i = 0; i < std::min(kOverflowsShown, overflows.size()); ++i) {
      const Overflow& o = overflows[i];
      text += fmt::format("\n  step {}, scale {}: {}", o.step + 1, o.loss_scale, o.where);
    }
    if (overflows.size() > kOverflowsShown)
      text += fmt::format("\n  and {} more", format_count(static_cast<int64_t>(overflows.size() - kOverflowsShown)));
  }
  if (precision.clip_norm > 0.0) {
    const auto clipped = std::count_if(norms.begin(), norms.end(),
                                       [&](double norm) { return std::isfinite(norm) && norm > precision.clip_norm; });
    double largest = 0.0;
    for (const double norm : norms) largest = std::isfinite(norm) ? std::max(largest, norm) : largest;
    text += fmt::format("\nGradient norm: largest {:.3g}; {} of {} steps were clipped to {}", largest, clipped,
                        format_count(steps), precision.clip_norm);
  }
  return text + "\n";
}

Json StepRecord::loss_scale_json() const {
  if (!precision.loss_scaling.active() || scales.empty()) return {};
  Json json;
  json["initial"] = scales.front().loss_scale;
  json["final"] = scales.back().loss_scale;
  json["skipped_steps"] = Json::array();
  for (const Overflow& o : overflows)
    json["skipped_steps"].push_back({{"step", o.step}, {"first_in", o.where}, {"loss_scale", o.loss_scale}});
  json["changes"] = Json::array();
  for (size_t i = 1; i < scales.size(); ++i)
    json["changes"].push_back({{"step", scales[i].step}, {"loss_scale", scales[i].loss_scale}});
  return json;
}

Json StepRecord::reduction_error_json() const { return steps == 0 ? Json() : number_or_null(reduction_error); }

Json StepRecord::gradient_norms_json() const {
  if (!precision.checks()) return {};
  Json json = Json::array();
  for (const double norm : norms) json.push_back(number_or_null(norm));
  return json;
}

}  // namespace vitrine::tools

namespace vitrine {

// How processes exchange their devices: as JSON, member by member.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DevicePlan, peak_bytes, peak_by_category, peak_phase, peak_layer)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PoolStatistics, capacity_bytes, reserved_bytes, peak_bytes, peak_by_category,
                                   peak_phase, peak_layer)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PhaseRow, phase, ordinal, seconds, share, bytes, calls, hidden_seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WaitRow, cause, seconds, share)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PhaseTable, ordinal, steps, wall_seconds, rows, waits, named_share, leaf_seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CommunicationRow, phase, layer, calls, moved_bytes, buffer_bytes, hidden_seconds,
                                   exposed_seconds, late_hidden_seconds, late_exposed_seconds, bus_factor)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CommunicationTable, ordinal, steps, rows)

namespace tools {

// Results that an older version has written have no owners.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(DeviceRecord, device, samples_per_step, plan, pool, outside_bytes,
                                                outside_by_owner, phases, communication)

std::string devices_text(const std::vector<DeviceRecord>& devices) { return json_text(nlohmann::json(devices)); }

std::vector<DeviceRecord> parse_devices(const std::string& path, const std::string& text) {
  try {
    return nlohmann::json::parse(text).get<std::vector<DeviceRecord>>();
  } catch (const nlohmann::json::exception& problem) {
    throw DataError(fmt::format("{}: it has no measurements of devices: {}", path, describe_json_error(problem)));
  }
}

int64_t states_bytes(const DeviceRecord& device) {
  int64_t bytes = 0;
  if (!device.memory) return bytes;
  for (const HeldBlock& block : device.memory->blocks) {
    const bool is_state = block.category == Category::parameters || block.category == Category::gradients ||
                          block.category == Category::optimizer;
    if (is_state && block.first == 0 && block.end >= device.memory->moments.size()) bytes += block.bytes;
  }
  return bytes;
}

std::vector<std::string> names_of(const std::vector<DeviceRecord>& devices) {
  std::vector<std::string> names;
  for (const DeviceRecord& d : devices) names.push_back(d.device);
  return names;
}

namespace {

int64_t peak_of(const DeviceRecord& d) { return d.pool.peak_bytes; }
size_t index_in(const std::vector<DeviceRecord>& devices, std::vector<DeviceRecord>::const_iterator device) {
  return static_cast<size_t>(device - devices.begin());
}

}  // namespace

bool all_as_planned(const std::vector<DeviceRecord>& devices) {
  return std::ranges::all_of(devices, &DeviceRecord::as_planned);
}
bool all_fit(const std::vector<DeviceRecord>& devices) { return missing_bytes(devices) == 0; }
int64_t missing_bytes(const std::vector<DeviceRecord>& devices) {
  int64_t most = 0;
  for (const DeviceRecord& d : devices)
    most = d.fits() ? most : std::max(most, d.plan.peak_bytes - d.pool.capacity_bytes);
  return most;
}
size_t fullest(const std::vector<DeviceRecord>& devices) {
  return index_in(devices, std::ranges::max_element(devices, {}, peak_of));
}
size_t emptiest(const std::vector<DeviceRecord>& devices) {
  return index_in(devices, std::ranges::min_element(devices, {}, peak_of));
}
int64_t measured_steps(const std::vector<DeviceRecord>& devices) {
  return devices.empty() ? 0 : devices.front().phases.steps;
}

double named_share(const std::vector<DeviceRecord>& devices) {
  double least = 1;
  for (const DeviceRecord& d : devices) least = std::min(least, d.phases.named_share);
  return least;
}

std::vector<MemoryDifference> memory_differences(const DeviceRecord& fuller, const DeviceRecord& emptier) {
  std::vector<MemoryDifference> all;
  for (size_t c = 0; c < static_cast<size_t>(kCategoryCount); ++c) {
    MemoryDifference difference{
        static_cast<Category>(c), fuller.pool.peak_by_category[c] - emptier.pool.peak_by_category[c], {}};
    if (difference.bytes == 0) continue;
    const int64_t sign = difference.bytes > 0 ? 1 : -1;
    std::map<std::string, int64_t> more;
    for (const auto& [device, factor] : {std::pair{&fuller, sign}, {&emptier, -sign}}) {
      if (!device->memory) continue;
      for (const HeldBlock& block : device->memory->blocks) {
        if (block.category == difference.category && device->memory->holds_at_peak(block))
          more[block.tensor] += factor * block.bytes;
      }
    }
    for (const auto& [tensor, bytes] : more) {
      if (bytes > 0) difference.tensors.emplace_back(bytes, tensor);
    }
    std::sort(difference.tensors.rbegin(), difference.tensors.rend());
    all.push_back(std::move(difference));
  }
  std::ranges::stable_sort(all, [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return all;
}

std::string place_name(Phase phase, const std::string& layer) {
  if (std::string collective = sharded_collective(layer); !collective.empty()) return collective;
  return layer.empty() ? phase_name(phase) : fmt::format("{} {}", phase_name(phase), layer);
}

PhaseRow phase_row(const PhaseTable& table, Phase phase) {
  const auto found = std::ranges::find_if(table.rows, [&](const PhaseRow& row) { return row.phase == phase; });
  return found == table.rows.end() ? PhaseRow{phase} : *found;
}

WaitRow wait_row(const PhaseTable& table, std::string_view cause) {
  const auto found = std::ranges::find_if(table.waits, [&](const WaitRow& row) { return row.cause == cause; });
  return found == table.waits.end() ? WaitRow{std::string(cause)} : *found;
}

const DeviceRecord* least_late(const std::vector<DeviceRecord>& devices) {
  std::vector<CommunicationTable> tables;
  for (const DeviceRecord& d : devices) tables.push_back(d.communication);
  if (tables.empty()) return nullptr;
  const DeviceRecord& device = devices[vitrine::least_late(tables)];
  return device.communication.rows.empty() || device.communication.steps == 0 ? nullptr : &device;
}

double seconds_in(const PhaseTable& table, std::span<const Phase> phases) {
  double seconds = 0.0;
  for (const Phase phase : phases) seconds += phase_row(table, phase).seconds;
  return seconds;
}

namespace {

/// From the host in `stage`, from the first device in `scatter`. Copies of a short run may lie outside its measured
/// steps.
int64_t sample_bytes(const RunRecord& run, size_t device, Phase phase) {
  const bool through_first = run.scheme.staging == Staging::device0;
  if ((phase == Phase::scatter) != (through_first && device != 0)) return 0;
  const int64_t images = through_first && device == 0 ? run.batch_size : run.devices[device].samples_per_step;
  const bool computes_loss = static_cast<int>(device) == run.scheme.output_device;
  const int64_t labels = run.scheme.loss_at == LossAt::parallel ? images : computes_loss ? run.batch_size : 0;
  const int64_t image_bytes = run.images_on_device && phase == Phase::stage ? size_of(DType::i32) : run.image_bytes;
  return images * image_bytes + labels * run.label_bytes;
}

}  // namespace

double leaf_seconds_per_step(const RunRecord& run) {
  double most = 0.0;
  for (const DeviceRecord& d : run.devices) most = std::max(most, per_step(d.phases.leaf_seconds, d.phases));
  return most;
}

int64_t moved_bytes(const RunRecord& run, size_t device, Phase phase) {
  const DeviceRecord& figures = run.devices[device];
  const bool samples = phase == Phase::stage || phase == Phase::scatter;
  if (samples && figures.phases.wall_seconds > 0) return sample_bytes(run, device, phase);
  int64_t exact = 0;
  for (const CommunicationRow& row : figures.communication.rows) exact += row.phase == phase ? row.moved_bytes : 0;
  if (exact > 0) return per_step(exact, figures.communication);
  return moved_per_step(phase_row(figures.phases, phase), figures.phases);
}

int64_t moved_per_step(const PhaseRow& row, const PhaseTable& table) {
  if (row.calls == 0 || table.steps == 0) return 0;
  const double calls = std::max(1.0, std::round(per_step(static_cast<double>(row.calls), table)));
  return std::llround(static_cast<double>(row.bytes) / static_cast<double>(row.calls) * calls);
}

std::string ComparisonRecord::describe_interruption() const {
  size_t complete = static_cast<size_t>(rounds);
  for (const RunRecord& run : runs) complete = std::min(complete, run.rates.rounds.size());
  return fmt::format("interrupted after {} of {} rounds", complete, rounds);
}

double Rates::median() const { return spread_of(rounds).median; }
double Rates::least() const { return spread_of(rounds).least; }
double Rates::most() const { return spread_of(rounds).most; }

std::string Rates::str() const {
  const std::string text = format_count(std::llround(median()));
  return rounds.size() < 2 || median() <= 0
             ? text
             : fmt::format("{} ±{:.0f} %", text, (most() - least()) / 2 / median() * 100);
}

}  // namespace tools
}  // namespace vitrine
