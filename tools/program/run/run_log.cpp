// SPDX-License-Identifier: Apache-2.0
#include "tools/program/run/run_log.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "runtime/error.h"
#include "runtime/memory/category.h"
#include "runtime/trace/span.h"
#include "tools/program/record/record.h"
#include "tools/program/run/measure.h"
#include "tools/program/text/json_text.h"

namespace vitrine::tools {

namespace {

using Json = nlohmann::ordered_json;

double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

/// For a cell of a Markdown table.
std::string cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) escaped += c == '|' ? "\\|" : c == '\n' ? "<br>" : std::string(1, c);
  return escaped;
}

/// On rank 0 the memory of the devices of all processes, named as in reports: "rank 1 cpu:0".
std::vector<RunLog::Memory> gather_memory(const Processes* processes, const std::vector<RunLog::Memory>& mine) {
  if (processes == nullptr) return mine;
  std::vector<DeviceRecord> devices;
  for (const RunLog::Memory& memory : mine) {
    DeviceRecord& device = devices.emplace_back();
    device.device = memory.device;
    device.pool = memory.statistics;
  }
  std::vector<RunLog::Memory> all;
  for (const DeviceRecord& device : gather_devices(*processes, std::move(devices)))
    all.push_back({device.device, device.pool});
  return all;
}

std::vector<std::string> columns_for(const std::vector<RunLog::Memory>& devices) {
  std::vector<std::string> columns = {"kind",
                                      "step",
                                      "epoch",
                                      "seconds",
                                      "loss",
                                      "lr",
                                      "loss_scale",
                                      "samples_per_second",
                                      "test_loss",
                                      "test_accuracy",
                                      "test_top5_accuracy",
                                      "samples",
                                      "train_seconds"};
  for (const auto& [device, statistics] : devices) {
    columns.push_back(fmt::format("memory.{}.peak", device));
    for (int c = 0; c < kCategoryCount; ++c)
      columns.push_back(fmt::format("memory.{}.{}", device, category_name(static_cast<Category>(c))));
  }
  return columns;
}

}  // namespace

RunLog::RunLog(const Target& target) : processes_(target.processes), begin_ns_(steady_now_ns()) {
  std::vector<Memory> devices;
  for (const std::string& device : target.devices) devices.push_back({device, {}});
  devices = gather_memory(processes_, devices);
  if (!target.tensorboard.empty()) {
    tensorboard_.emplace(target.tensorboard);
    if (target.steps_before > 0) tensorboard_->start_at(target.steps_before + 1);
    std::string table = "| | |\n|---|---|\n";
    for (const auto& [name, value] : target.facts) table += fmt::format("| {} | {} |\n", cell(name), cell(value));
    tensorboard_->add_text("configuration", table, target.steps_before);
  }
  if (target.file.empty()) return;
  file_.emplace(target.file, columns_for(devices), target.run_id, target.steps_before);
  if (!target.file.ends_with(".jsonl")) return;
  Json run = {{"kind", "run"}, {"run_id", target.run_id}, {"config", target.config}};
  if (target.steps_before > 0) run["steps_before"] = target.steps_before;
  file_->add(run);
  file_->flush();
}

double RunLog::seconds() const {
  return file_->seconds_before() + static_cast<double>(steady_now_ns() - begin_ns_) * 1e-9;
}

template <class Write>
void RunLog::attempt(const Write& write) {
  if (error_) return;
  try {
    write();
  } catch (const DataError&) {
    error_ = std::current_exception();
  }
}

void RunLog::add_step(const Step& step) {
  attempt([&] {
    if (tensorboard_) {
      tensorboard_->add_scalar("train/loss", step.loss, step.step);
      tensorboard_->add_scalar("train/lr", step.lr, step.step);
      if (step.loss_scale) tensorboard_->add_scalar("train/loss_scale", *step.loss_scale, step.step);
    }
    if (!file_) return;
    file_->add({{"kind", "step"},
                {"step", step.step},
                {"epoch", step.epoch},
                {"seconds", seconds()},
                {"loss", step.loss},
                {"lr", step.lr},
                {"loss_scale", value_or_null(step.loss_scale)}});
  });
}

void RunLog::add_evaluation(const Evaluation& evaluation) {
  attempt([&] {
    if (tensorboard_) {
      tensorboard_->add_scalar("test/loss", evaluation.loss, evaluation.step);
      tensorboard_->add_scalar("test/accuracy", evaluation.accuracy, evaluation.step);
      if (evaluation.top5) tensorboard_->add_scalar("test/top5_accuracy", *evaluation.top5, evaluation.step);
      tensorboard_->flush();
    }
    if (file_) {
      file_->add({{"kind", "evaluation"},
                  {"step", evaluation.step},
                  {"epoch", evaluation.epoch},
                  {"seconds", seconds()},
                  {"test_loss", evaluation.loss},
                  {"test_accuracy", evaluation.accuracy},
                  {"test_top5_accuracy", value_or_null(evaluation.top5)}});
    }
  });
}

void RunLog::add_epoch(const Epoch& epoch) {
  const std::vector<Memory> devices = gather_memory(processes_, epoch.memory);  // even if a file could not be written
  attempt([&] {
    if (tensorboard_) {
      TensorboardWriter& writer = *tensorboard_;
      writer.add_scalar("train/samples_per_second", epoch.samples_per_second, epoch.step);
      if (epoch.test_loss) writer.add_scalar("test/loss", *epoch.test_loss, epoch.step);
      if (epoch.test_accuracy) writer.add_scalar("test/accuracy", *epoch.test_accuracy, epoch.step);
      if (epoch.test_top5) writer.add_scalar("test/top5_accuracy", *epoch.test_top5, epoch.step);
      if (epoch.confusion != nullptr) {
        const ConfusionMatrix::Image image = epoch.confusion->image();
        writer.add_image("test/confusion", image.png, image.width, image.height, epoch.step);
      }
      for (const auto& [device, statistics] : devices) {
        writer.add_scalar(fmt::format("memory/{}/peak_MiB", device), mib(statistics.peak_bytes), epoch.step);
        for (int c = 0; c < kCategoryCount; ++c) {
          const int64_t bytes = statistics.peak_by_category[static_cast<size_t>(c)];
          if (bytes > 0)
            writer.add_scalar(fmt::format("memory/{}/{}_MiB", device, category_name(static_cast<Category>(c))),
                              mib(bytes), epoch.step);
        }
      }
      writer.flush();
    }
    if (!file_) return;
    Json row = {{"kind", "epoch"},
                {"step", epoch.step},
                {"epoch", epoch.epoch},
                {"seconds", seconds()},
                {"loss", epoch.train_loss},
                {"samples_per_second", epoch.samples_per_second},
                {"test_loss", value_or_null(epoch.test_loss)},
                {"test_accuracy", value_or_null(epoch.test_accuracy)},
                {"test_top5_accuracy", value_or_null(epoch.test_top5)},
                {"samples", epoch.samples},
                {"train_seconds", epoch.train_seconds}};
    for (const auto& [device, statistics] : devices) {
      Json& memory = row["memory"][device];
      memory["peak"] = statistics.peak_bytes;
      for (int c = 0; c < kCategoryCount; ++c)
        memory[category_name(static_cast<Category>(c))] = statistics.peak_by_category[static_cast<size_t>(c)];
    }
    file_->add(row);
    file_->flush();
  });
}

void RunLog::flush() {
  attempt([&] {
    if (tensorboard_) tensorboard_->flush();
    if (file_) file_->flush();
  });
}

void RunLog::close() {
  flush();
  if (error_) std::rethrow_exception(error_);
}

}  // namespace vitrine::tools
