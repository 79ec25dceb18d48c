// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "data/sampler.h"
#include "runtime/error.h"
#include "runtime/units.h"
#include "tools/program/attempts.h"
#include "tools/program/batches.h"
#include "tools/program/commands.h"
#include "tools/program/describe.h"
#include "tools/program/device_sets.h"
#include "tools/program/interrupt.h"
#include "tools/program/json_report.h"
#include "tools/program/output_file.h"
#include "tools/program/progress.h"
#include "tools/program/report.h"
#include "tools/program/report/compare_report.h"
#include "tools/program/run_report.h"
#include "tools/program/tables.h"
#include "tools/program/warnings.h"

namespace vitrine::tools {

namespace {

constexpr int64_t kDefaultSteps = 6;
// The times of more devices are shown as a spread.
constexpr size_t kDevicesApart = 4;

struct ModeResult {
  std::string name;  // "ddp", or where there are several precisions "ddp fp16"
  Precision precision;
  int64_t skipped = 0;  // steps
  Scheme scheme;
  Rates rates;
  double gradient_difference = 0;
  std::vector<DeviceFigures> devices;
  std::vector<PhaseTable> tables;
  std::vector<CommunicationTable> communication;
  std::string batch;
  FindingsInput figures;  // for a report
};

/// || gradients / loss_scale - reference || / || reference ||
double relative_difference(const std::vector<float>& gradients, double loss_scale, const std::vector<float>& reference) {
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double wanted = static_cast<double>(reference[i]), delta = static_cast<double>(gradients[i]) / loss_scale - wanted;
    difference += delta * delta;
    norm += wanted * wanted;
  }
  return std::sqrt(difference / norm);
}

class Comparison {
 public:
  Comparison(const Options& options, const Job& job, std::vector<DeviceId> devices)
      : options_(options),
        job_(job),
        devices_(std::move(devices)),
        steps_(options.steps.value_or(kDefaultSteps)),
        epochs_((steps_ - 1) / batches_per_epoch({options.shuffle, options.drop_last, options.seed}, job.data.train.size(), options.batch_size) + 1) {
  }

  /// The gradients of the first step on one device, with all memory and cores for itself, in f32.
  void run_reference() {
    DeviceGroupOptions group = device_group_options(options_, {devices_.front()});
    group.memory_bytes.clear();
    group.threads_per_device.clear();
    Workload workload;
    workload.train_batches = {std::min(options_.batch_size, job_.data.train.size())};
    Run run = open_run(std::make_unique<DeviceGroup>(group), job_, engine_config(options_, job_, scheme_preset("ddp"), {}), workload,
                       {options_.init_weights, options_.allow_non_finite});
    BatchSource source(job_.data.train, train_loader_config(options_, job_, run, 1));
    take_step(*run.engine, source);
    run.engine->take_step_results(true);
    reference_ = run.engine->gradients();
  }

  /// One round under a scheme, whose figures `result` gains. False when the program was interrupted.
  bool run_round(ModeResult& result) {
    const Scheme& scheme = result.scheme;
    Run run = open_run(std::make_unique<DeviceGroup>(device_group_options(options_, devices_)), job_,
                       engine_config(options_, job_, scheme, result.precision), train_workload(options_, job_, steps_, false),
                       {options_.init_weights, options_.allow_non_finite});
    if (!warned_) print_device_warnings(options_, *run.devices);
    warned_ = true;
    BatchSource source(job_.data.train, train_loader_config(options_, job_, run, epochs_));
    PhaseRecorder recorder(run);
    result.batch = describe_batch(run.engine->batch_plan());

    Progress progress(fmt::format("{}, round {}/{}", result.name, result.rates.rounds.size() + 1, options_.rounds), steps_ - 1,
                      {false, options_.log_every});
    take_step(*run.engine, source);
    const StepResult first = run.engine->take_step_results(true).at(0);
    result.skipped += first.skipped ? 1 : 0;
    result.gradient_difference = gradient_difference(*run.engine, scheme, first.loss_scale);
    recorder.discard();
    source.take_spans();

    const int64_t begin = steady_now_ns();
    int64_t samples = 0;
    StepResult done;
    const auto add = [&](const std::vector<StepResult>& finished) {
      for (const StepResult& totals : finished) {
        done.loss_sum += totals.loss_sum;
        done.valid += totals.valid;
        result.skipped += totals.skipped ? 1 : 0;
      }
    };
    for (int64_t step = 1; step < steps_; ++step) {
      if (interrupted()) return false;
      samples += take_step(*run.engine, source);
      add(run.engine->take_step_results(false));
      if (step % PhaseRecorder::kStepsBetweenPolls == 0) recorder.poll(source.take_spans(), 0);
      progress.update(step, samples, done.mean_loss());
    }
    add(run.engine->take_step_results(true));
    result.rates.rounds.push_back(static_cast<double>(samples) / (static_cast<double>(steady_now_ns() - begin) * 1e-9));
    recorder.collect(source.take_spans(), 0);
    run.engine->finish();
    result.devices = measure_devices(run);
    add_tables(result, recorder);
    result.figures = findings_input(options_, run, {result.devices, result.tables, result.communication});
    machine_ = machine_facts(*run.devices);
    job_facts_ = describe_job(job_, run.engine->layout());
    return true;
  }

  const std::vector<DeviceId>& devices() const { return devices_; }
  int64_t steps() const { return steps_; }
  /// Of the last run.
  Facts facts() const {
    Facts facts = {{"model and data", job_facts_},
                   {"batch", fmt::format("{} samples per step; {} rounds of {} steps after the first under each scheme, in turns",
                                         options_.batch_size, options_.rounds, steps_ - 1)}};
    facts.insert(facts.end(), machine_.begin(), machine_.end());
    return facts;
  }

 private:
  static void add_tables(ModeResult& result, const PhaseRecorder& recorder) {
    const std::vector<PhaseTable> tables = recorder.tables();
    const std::vector<CommunicationTable> communication = recorder.communication();
    if (result.tables.empty()) {
      result.tables = tables;
      result.communication = communication;
      return;
    }
    for (size_t d = 0; d < tables.size(); ++d) {
      add_phase_table(result.tables[d], tables[d]);
      add_communication_table(result.communication[d], communication[d]);
    }
  }
  static int64_t take_step(Engine& engine, BatchSource& source) {
    const auto item = source.next(engine.steps_issued());
    VITRINE_ASSERT(item.has_value(), "the loader ended before the epochs it was made for");
    engine.train_step(*item);
    return item->labels.numel();
  }

  /// The largest over the devices that hold the reduced gradients.
  double gradient_difference(Engine& engine, const Scheme& scheme, double loss_scale) const {
    const int holders = scheme.reduce == Reduce::allreduce ? static_cast<int>(devices_.size()) : 1;
    double largest = 0.0;
    for (int d = 0; d < holders; ++d) largest = std::max(largest, relative_difference(engine.gradients(d), loss_scale, reference_));
    return largest;
  }

  const Options& options_;
  const Job& job_;
  std::vector<DeviceId> devices_;
  int64_t steps_, epochs_;
  std::vector<float> reference_;
  bool warned_ = false;  // of the devices, which are the same under every scheme
  Facts machine_;
  std::string job_facts_;
};

/// "1,234", or "1,234 (2)" after two skipped steps.
std::string rate(const ModeResult& result) {
  const std::string samples = result.rates.str();
  return result.skipped > 0 ? fmt::format("{} ({})", samples, result.skipped) : samples;
}

std::string difference(const ModeResult& result) {
  return std::isfinite(result.gradient_difference) ? fmt::format("{:.1e}", result.gradient_difference) : "overflow";
}

/// What rounding alone may do to gradients.
std::string rounding_hint(const std::vector<ModeResult>& results) {
  std::string text = "Gradient difference: to one device's f32 gradient of the first step, relative; rounding alone gives about 1e-6";
  const auto any = [&](DType dtype) {
    return std::any_of(results.begin(), results.end(), [=](const ModeResult& r) { return r.precision.compute == dtype; });
  };
  if (any(DType::f16)) text += ", in fp16 1e-2";
  if (any(DType::bf16)) text += ", in bf16 5e-2";
  return text + ".";
}

/// Whether the table of memory shows the same of both.
bool same_memory(const DeviceFigures& a, const DeviceFigures& b) {
  constexpr auto kActivations = static_cast<size_t>(Category::activations);
  return a.samples_per_step == b.samples_per_step && a.pool.peak_bytes == b.pool.peak_bytes && describe_plan(a) == describe_plan(b) &&
         a.pool.peak_by_category[kActivations] == b.pool.peak_by_category[kActivations];
}

std::string summary_table(const std::vector<ModeResult>& results, const Style& style) {
  using Align = Table::Align;
  const bool skips = std::any_of(results.begin(), results.end(), [](const ModeResult& r) { return r.skipped > 0; });
  Table table({{"mode", Align::left},
               {skips ? "samples/s (skipped)" : "samples/s"},
               {"gradient difference"},
               {"device", Align::left},
               {"samples/step"},
               {"peak memory"},
               {"planned"},
               {"activations"}},
              "The same steps under each scheme");
  for (const ModeResult& result : results) {
    if (&result != &results.front()) table.add_rule();
    std::vector<std::string> names;
    for (const DeviceFigures& d : result.devices) names.push_back(d.device);
    const auto agree = [&](size_t a, size_t b) { return same_memory(result.devices[a], result.devices[b]); };
    for (const DeviceSet& set : group_devices(names.size(), agree)) {
      const DeviceFigures& d = result.devices[set.first()];
      const bool first = set.first() == 0;
      table.add_row({first ? result.name : "", first ? rate(result) : "", first ? difference(result) : "", set.name(names),
                     format_count(d.samples_per_step), format_bytes(d.pool.peak_bytes), describe_plan(d),
                     format_bytes(d.pool.peak_by_category[static_cast<size_t>(Category::activations)])});
    }
  }
  table.set_hint(rounding_hint(results));
  return table.str(style);
}

/// Columns of the time table: phases that belong together.
struct PhaseGroup {
  const char* title;
  std::initializer_list<Phase> phases;
};

std::string time_table(const std::vector<ModeResult>& results, const Style& style) {
  static const PhaseGroup groups[] = {
      {"input", {Phase::data, Phase::stage, Phase::scatter, Phase::preprocess}},
      {"replicate", {Phase::replicate, Phase::broadcast}},
      {"forward", {Phase::forward}},
      {"loss", {Phase::gather, Phase::loss, Phase::scatter_grad}},
      {"backward", {Phase::backward}},
      {"recompute", {Phase::recompute}},
      {"reduce", {Phase::reduce, Phase::unscale}},
      {"update", {Phase::optimizer, Phase::cast}},
      {"wait", {Phase::wait}},
  };
  std::vector<Table::Column> columns = {{"mode", Table::Align::left}, {"device", Table::Align::left}};
  const bool recomputes = std::any_of(results.begin(), results.end(), [](const ModeResult& result) {
    return std::any_of(result.tables.begin(), result.tables.end(), [](const PhaseTable& t) {
      return std::any_of(t.rows.begin(), t.rows.end(), [](const PhaseRow& row) { return row.phase == Phase::recompute; });
    });
  });
  const auto shown = [&](const PhaseGroup& group) { return recomputes || *group.phases.begin() != Phase::recompute; };
  for (const PhaseGroup& group : groups) {
    if (shown(group)) columns.push_back({group.title});
  }
  columns.insert(columns.end(), {{"step"}, {"waits most for", Table::Align::left}});
  Table table(columns, "Where a step's time went (ms)");
  table.set_key_columns(2);
  for (const ModeResult& result : results) {
    if (&result != &results.front()) table.add_rule();
    const auto in_group = [&](size_t d, const PhaseGroup& group) {
      double seconds = 0.0;
      for (const PhaseRow& row : result.tables[d].rows) {
        if (std::find(group.phases.begin(), group.phases.end(), row.phase) != group.phases.end()) seconds += row.seconds;
      }
      return seconds / static_cast<double>(result.tables[d].steps);
    };
    std::vector<size_t> timed;
    for (size_t d = 0; d < result.tables.size(); ++d) {
      if (result.tables[d].steps > 0) timed.push_back(d);
    }
    const DeviceSet all{timed};
    std::string mode = result.name;
    // pick: of one device its own value, of many one that stands for them
    const auto add_row = [&](const std::string& device, const std::string& waits_for, const auto& pick) {
      std::vector<std::string> cells = {std::exchange(mode, ""), device};
      for (const PhaseGroup& group : groups) {
        if (shown(group)) cells.push_back(format_ms(pick([&](size_t d) { return in_group(d, group); })));
      }
      cells.push_back(format_ms(pick([&](size_t d) { return result.tables[d].wall_seconds / static_cast<double>(result.tables[d].steps); })));
      cells.push_back(waits_for);
      table.add_row(cells);
    };
    if (timed.size() > kDevicesApart) {
      add_row(fmt::format("{} devices: min", timed.size()), "", [&](const auto& value) { return spread_of(all, value).least; });
      add_row("median", "", [&](const auto& value) { return spread_of(all, value).median; });
      add_row("max", "", [&](const auto& value) { return spread_of(all, value).most; });
      continue;
    }
    for (const size_t d : timed) {
      const std::vector<WaitRow>& waits = result.tables[d].waits;
      add_row(result.devices[d].device, waits.empty() ? "" : waits.front().cause, [&](const auto& value) { return value(d); });
    }
  }
  table.set_hint(
      "input: data, stage, scatter, preprocess. replicate: with broadcast. loss: with gather and scatter_grad. A device's row adds up to its step.");
  return table.str(style);
}

std::vector<SchemeFigures> scheme_figures(const std::vector<ModeResult>& results) {
  std::vector<SchemeFigures> schemes;
  for (const ModeResult& result : results) {
    schemes.push_back({result.name, result.batch, result.rates, result.gradient_difference, result.skipped, result.figures});
  }
  return schemes;
}

void write_report(const Options& options, const Job& job, const Comparison& comparison, const std::vector<ModeResult>& results) {
  CompareReport report;
  report.title = fmt::format("{} on {} devices under each scheme", job.model.name, comparison.devices().size());
  report.command_line = command_line(options);
  report.facts = comparison.facts();
  report.outside = describe_outside(results.front().devices, 1);
  report.rounding = rounding_hint(results);
  report.schemes = scheme_figures(results);
  html::write_page("--report", options.report, compare_page(report));
}

std::string without_backquotes(std::string text) {
  std::erase(text, '`');
  return text;
}

void print_results(const Options& options, const Job& job, const Comparison& comparison, const std::vector<ModeResult>& results) {
  const std::vector<std::string> names = device_names(comparison.devices());
  if (options.json) {
    Json json;
    json["config"] = config_json(options, job, comparison.devices());
    json["config"]["steps"] = comparison.steps();
    json["config"]["rounds"] = options.rounds;
    json["modes"] = Json::object();
    for (const ModeResult& result : results) {
      Json& mode = json["modes"][result.name];
      mode = precision_json(result.precision);
      mode["skipped_steps"] = result.skipped;
      mode["scheme"] = scheme_json(result.scheme, comparison.devices());
      mode["samples_per_second"] = result.rates.median();
      mode["samples_per_second_of_rounds"] = result.rates.rounds;
      mode["devices"] = devices_json(result.devices);
      mode["phases"] = phases_json(names, result.tables);
      mode["waits"] = waits_json(names, result.tables);
      mode["communication"] = communication_json(names, result.communication);
      mode["max_gradient_difference"] = result.gradient_difference;
    }
    const std::optional<Finding> speed = compare_speed(scheme_figures(results));
    json["speed"] = speed ? Json(speed->text) : Json();
    json["interrupted"] = interrupted();
    print_json(json);
    return;
  }
  if (results.empty()) return;
  const Style style = Style::of(STDOUT_FILENO);
  fmt::print("{}: {} samples per step, {} rounds of {} steps after the first, in turns\n", job.model.name, options.batch_size, options.rounds,
             comparison.steps() - 1);
  size_t width = 10;
  for (const ModeResult& result : results) width = std::max(width, result.name.size());
  for (const ModeResult& result : results) fmt::print("  {:<{}} {}\n", result.name, width, result.batch);
  fmt::print("\n{}\n{}", summary_table(results, style), time_table(results, style));
  if (const auto speed = compare_speed(scheme_figures(results))) fmt::print("\n{} {}\n", speed->text, without_backquotes(speed->remedy));
}

}  // namespace

int run_compare(const Options& options) {
  const std::vector<DeviceId> devices = resolve_devices(options, cuda_device_count());
  std::vector<std::string> notes;
  const auto schemes = resolve_compare_schemes(options, devices, notes);
  const auto precisions = resolve_compare_precisions(options);
  device_group_options(options, devices);
  check_writable("--report", options.report);
  const Job job = open_job(options);
  print_warnings(options, batch_warnings(options, job));
  for (const std::string& note : notes) fmt::print(options.json ? stderr : stdout, "{}\n", note);
  std::fflush(stdout);

  Comparison comparison(options, job, devices);
  comparison.run_reference();
  std::vector<ModeResult> results;
  for (const auto& [name, scheme] : schemes) {
    for (const auto& [precision_label, precision] : precisions) {
      ModeResult& result = results.emplace_back();
      result.name = precision_label.empty() ? name : fmt::format("{} {}", name, precision_label);
      result.scheme = scheme;
      result.precision = precision;
    }
  }
  // In turns, one engine at a time: what slows the machine down for a while slows all of them. Every other round goes backwards.
  for (int round = 0; round < options.rounds; ++round) {
    for (size_t i = 0; i < results.size() && !interrupted(); ++i) comparison.run_round(results[round % 2 == 0 ? i : results.size() - 1 - i]);
  }
  std::erase_if(results, [](const ModeResult& result) { return result.rates.rounds.empty(); });
  Attempts attempts;
  const bool reported = !options.report.empty() && !results.empty() && attempts.run([&] { write_report(options, job, comparison, results); });
  print_results(options, job, comparison, results);
  if (reported && !options.json) fmt::print("\nThe report is in {}\n", options.report);
  attempts.rethrow();
  return interrupted() ? kExitInterrupted : kExitOk;
}

}  // namespace vitrine::tools
