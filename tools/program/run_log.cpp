// SPDX-License-Identifier: Apache-2.0
#include "tools/program/run_log.h"

#include <fmt/format.h>

#include "runtime/error.h"
#include "runtime/memory/category.h"

namespace vitrine::tools {

namespace {

double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

/// For a cell of a Markdown table.
std::string cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) escaped += c == '|' ? "\\|" : c == '\n' ? "<br>" : std::string(1, c);
  return escaped;
}

}  // namespace

RunLog::RunLog(const std::string& folder, const std::vector<std::pair<std::string, std::string>>& facts, int64_t steps_before) {
  if (folder.empty()) return;
  writer_.emplace(folder);
  if (steps_before > 0) writer_->start_at(steps_before + 1);
  std::string table = "| | |\n|---|---|\n";
  for (const auto& [name, value] : facts) table += fmt::format("| {} | {} |\n", cell(name), cell(value));
  writer_->add_text("configuration", table, steps_before);
}

template <class Write>
void RunLog::attempt(const Write& write) {
  if (!writer_ || error_) return;
  try {
    write(*writer_);
  } catch (const DataError&) {
    error_ = std::current_exception();
  }
}

void RunLog::add_step(const Step& step) {
  attempt([&](TensorboardWriter& writer) {
    writer.add_scalar("train/loss", step.loss, step.step);
    writer.add_scalar("train/lr", step.lr, step.step);
    if (step.loss_scale) writer.add_scalar("train/loss_scale", *step.loss_scale, step.step);
  });
}

void RunLog::add_epoch(const Epoch& epoch) {
  attempt([&](TensorboardWriter& writer) {
    writer.add_scalar("train/samples_per_second", epoch.samples_per_second, epoch.step);
    if (epoch.test_loss) writer.add_scalar("test/loss", *epoch.test_loss, epoch.step);
    if (epoch.test_accuracy) writer.add_scalar("test/accuracy", *epoch.test_accuracy, epoch.step);
    writer.flush();
  });
}

void RunLog::add_memory(const std::string& device, int64_t step, const PoolStatistics& statistics) {
  attempt([&](TensorboardWriter& writer) {
    writer.add_scalar(fmt::format("memory/{}/peak_MiB", device), mib(statistics.peak_bytes), step);
    for (int c = 0; c < kCategoryCount; ++c) {
      const int64_t bytes = statistics.peak_by_category[static_cast<size_t>(c)];
      if (bytes > 0) writer.add_scalar(fmt::format("memory/{}/{}_MiB", device, category_name(static_cast<Category>(c))), mib(bytes), step);
    }
  });
}

void RunLog::close() {
  attempt([](TensorboardWriter& writer) { writer.flush(); });
  if (error_) std::rethrow_exception(error_);
}

}  // namespace vitrine::tools
