// SPDX-License-Identifier: Apache-2.0
#include "tools/program/run/run_log.h"

#include <fmt/format.h>

#include "runtime/error.h"
#include "runtime/memory/category.h"
#include "runtime/text.h"
#include "runtime/trace/span.h"
#include "tools/program/flags/advice.h"
#include "tools/program/run/measure.h"

namespace vitrine::tools {

namespace {

double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

/// For a cell of a Markdown table.
std::string cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) escaped += c == '|' ? "\\|" : c == '\n' ? "<br>" : std::string(1, c);
  return escaped;
}

/// On rank 0 the devices of all processes, named as in reports: "rank 1 cpu:0".
std::vector<DeviceRecord> gather_pools(const Processes* processes, std::vector<DeviceRecord> mine) {
  return processes == nullptr ? mine : gather_devices(*processes, std::move(mine));
}

/// The peak, and the bytes of each category at that moment.
std::vector<std::pair<std::string, int64_t>> bytes_by_name(const PoolStatistics& statistics) {
  std::vector<std::pair<std::string, int64_t>> bytes = {{"peak", statistics.peak_bytes}};
  for (int c = 0; c < kCategoryCount; ++c)
    bytes.emplace_back(category_name(static_cast<Category>(c)), statistics.peak_by_category[static_cast<size_t>(c)]);
  return bytes;
}

std::vector<std::string> columns_for(const std::vector<DeviceRecord>& devices) {
  std::vector<std::string> columns = split_text(
      "kind,step,epoch,seconds,loss,lr,loss_scale,samples_per_second,test_loss,test_accuracy,test_top5_accuracy,"
      "samples,train_seconds",
      ',');
  for (const DeviceRecord& d : devices) {
    for (const auto& [name, bytes] : bytes_by_name(d.pool))
      columns.push_back(fmt::format("memory.{}.{}", d.device, name));
  }
  return columns;
}

}  // namespace

RunLog::RunLog(const Target& target) : processes_(target.processes), begin_ns_(steady_now_ns()) {
  std::vector<DeviceRecord> devices;
  for (const std::string& device : target.devices) devices.emplace_back().device = device;
  devices = gather_pools(processes_, std::move(devices));
  if (!target.tensorboard.empty()) {
    TensorboardWriter& tensorboard = tensorboard_.output.emplace(target.tensorboard);
    if (target.steps_before > 0) tensorboard.start_at(target.steps_before + 1);
    std::string table = "| | |\n|---|---|\n";
    for (const auto& [name, value] : target.facts) table += fmt::format("| {} | {} |\n", cell(name), cell(value));
    tensorboard.add_text("configuration", table, target.steps_before);
  }
  if (target.file.empty()) return;
  LogFile& file = file_.output.emplace(target.file, columns_for(devices), target.run_id, target.steps_before);
  if (!target.file.ends_with(".jsonl")) return;
  Json run = {{"kind", "run"}, {"run_id", target.run_id}, {"config", target.config}};
  if (target.steps_before > 0) run["steps_before"] = target.steps_before;
  file.add(run);
  file.flush();
}

double RunLog::seconds() const {
  return file_.output->seconds_before() + static_cast<double>(steady_now_ns() - begin_ns_) * 1e-9;
}

template <class Output, class Write>
void RunLog::attempt(Sink<Output>& sink, const Write& write) {
  if (!sink.output || sink.error) return;
  try {
    write(*sink.output);
  } catch (const DataError& error) {
    sink.error = std::current_exception();
    fmt::print(stderr, "vitrine: warning: {}. Training goes on without it\n", in_program_words(error.reason()));
  }
}

void RunLog::add_step(const Step& step) {
  attempt(tensorboard_, [&](TensorboardWriter& tensorboard) {
    tensorboard.add_scalar("train/loss", step.loss, step.step);
    tensorboard.add_scalar("train/lr", step.lr, step.step);
    if (step.loss_scale) tensorboard.add_scalar("train/loss_scale", *step.loss_scale, step.step);
  });
  attempt(file_, [&](LogFile& file) {
    file.add({{"kind", "step"},
              {"step", step.step},
              {"epoch", step.epoch},
              {"seconds", seconds()},
              {"loss", step.loss},
              {"lr", step.lr},
              {"loss_scale", value_or_null(step.loss_scale)}});
  });
}

static void add_test_scalars(TensorboardWriter& tensorboard, int64_t step, std::optional<double> loss,
                             std::optional<double> accuracy, std::optional<double> top5) {
  if (loss) tensorboard.add_scalar("test/loss", *loss, step);
  if (accuracy) tensorboard.add_scalar("test/accuracy", *accuracy, step);
  if (top5) tensorboard.add_scalar("test/top5_accuracy", *top5, step);
}

void RunLog::add_evaluation(int64_t step, int64_t epoch, const Evaluation& evaluation) {
  attempt(tensorboard_, [&](TensorboardWriter& tensorboard) {
    add_test_scalars(tensorboard, step, evaluation.loss, evaluation.accuracy, evaluation.top5);
    tensorboard.flush();
  });
  attempt(file_, [&](LogFile& file) {
    file.add({{"kind", "evaluation"},
              {"step", step},
              {"epoch", epoch},
              {"seconds", seconds()},
              {"test_loss", evaluation.loss},
              {"test_accuracy", evaluation.accuracy},
              {"test_top5_accuracy", value_or_null(evaluation.top5)}});
  });
}

void RunLog::add_epoch(const EpochRecord& epoch, const std::vector<DeviceRecord>& mine, const std::string& confusion) {
  const std::vector<DeviceRecord> devices = gather_pools(processes_, mine);  // even if a file could not be written
  attempt(tensorboard_, [&](TensorboardWriter& tensorboard) {
    const int64_t step = epoch.last_step;
    tensorboard.add_scalar("train/samples_per_second", epoch.samples_per_second(), step);
    add_test_scalars(tensorboard, step, epoch.test_loss, epoch.test_accuracy, epoch.test_top5);
    if (!confusion.empty()) {
      std::string block;  // Markdown shows indented lines as they are
      for (const std::string& line : split_text(confusion, '\n')) block += "    " + line + "\n";
      tensorboard.add_text("test/confusion", block, step);
    }
    for (const DeviceRecord& d : devices) {
      for (const auto& [name, bytes] : bytes_by_name(d.pool)) {
        if (bytes > 0 || name == "peak")
          tensorboard.add_scalar(fmt::format("memory/{}/{}_MiB", d.device, name), mib(bytes), step);
      }
    }
    tensorboard.flush();
  });
  attempt(file_, [&](LogFile& file) {
    Json row = {{"kind", "epoch"},
                {"step", epoch.last_step},
                {"epoch", epoch.epoch},
                {"seconds", seconds()},
                {"loss", epoch.totals.mean_loss()},
                {"samples_per_second", epoch.samples_per_second()},
                {"test_loss", value_or_null(epoch.test_loss)},
                {"test_accuracy", value_or_null(epoch.test_accuracy)},
                {"test_top5_accuracy", value_or_null(epoch.test_top5)},
                {"samples", epoch.samples},
                {"train_seconds", epoch.seconds}};
    for (const DeviceRecord& d : devices) {
      for (const auto& [name, bytes] : bytes_by_name(d.pool)) row["memory"][d.device][name] = bytes;
    }
    file.add(row);
    file.flush();
  });
}

void RunLog::flush() {
  attempt(tensorboard_, [](TensorboardWriter& tensorboard) { tensorboard.flush(); });
  attempt(file_, [](LogFile& file) { file.flush(); });
}

void RunLog::close_tensorboard() {
  flush();
  if (tensorboard_.error) std::rethrow_exception(tensorboard_.error);
}

void RunLog::close_file() {
  flush();
  if (file_.error) std::rethrow_exception(file_.error);
}

}  // namespace vitrine::tools
