// SPDX-License-Identifier: Apache-2.0
#include "kernels/workspace.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include "kernels/recorded_operations.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

/// Sizes first, first + step, ..., last, which have one answer.
struct Sizes {
  int64_t first = 0, last = 0, step = 1;
  WorkspaceRecord::Answer answer;
};

}  // namespace

std::optional<WorkspaceRecord::Answer> WorkspaceRecord::find(const std::string& operation, int64_t size) const {
  const auto answers = answers_.find(operation);
  if (answers == answers_.end()) return std::nullopt;
  const auto answer = answers->second.find(size);
  return answer == answers->second.end() ? std::nullopt : std::optional(answer->second);
}

std::string WorkspaceRecord::text() const {
  std::string text = library_ + "\n";
  for (const auto& [operation, answers] : answers_) {
    text += operation + ":";
    Sizes run;
    const auto end_run = [&] {
      if (run.first > 0)
        text += fmt::format(" {} {} {} {} {} {}", run.first, run.last, run.step, run.answer.best, run.answer.other,
                            run.answer.least);
    };
    for (const auto& [size, answer] : answers) {
      const int64_t step = size - run.last;
      const bool continues = run.first > 0 && answer == run.answer && (run.first == run.last || step == run.step);
      if (continues) {
        run.step = step;
        run.last = size;
      } else {
        end_run();
        run = {size, size, 1, answer};
      }
    }
    end_run();
    text += "\n";
  }
  return text;
}

WorkspaceRecord WorkspaceRecord::parse(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line)) throw DataError("workspace record: expected the name of a library, found nothing");
  WorkspaceRecord record(line);
  while (std::getline(lines, line)) {
    const size_t colon = line.find(':');
    std::istringstream text_of_numbers(line.substr(std::min(colon, line.size() - 1) + 1));
    std::vector<int64_t> n;
    for (int64_t number = 0; text_of_numbers >> number;) n.push_back(number);
    bool good = colon != std::string::npos && text_of_numbers.eof() && n.size() % 6 == 0;
    for (size_t i = 0; good && i < n.size(); i += 6) {
      good = n[i] >= 1 && n[i + 1] >= n[i] && n[i + 2] >= 1;
      for (int64_t size = n[i]; good && size <= n[i + 1]; size += n[i + 2])
        record.add(line.substr(0, colon), size, {n[i + 3], n[i + 4], n[i + 5]});
    }
    if (!good) {
      throw DataError(
          fmt::format("workspace record: '{}': expected an operation, a colon and groups of six numbers", line));
    }
  }
  return record;
}

namespace cpu {  // cpu/workspace.cpp
WorkspaceNeed workspace_need(ExecContext& ctx, const RecordedOperations& operations, const WorkspaceTarget& target,
                             int64_t allowed_bytes);
void require_workspace(ExecContext& ctx, const RecordedOperations& operations, int threads);
void record_workspace(ExecContext& ctx, const RecordedOperations& operations, const WorkspaceTarget& target,
                      int64_t allowed_bytes, WorkspaceRecord& record);
}  // namespace cpu

namespace cuda {  // cuda/cudnn_workspace.cpp: convolutions by cuDNN, with least_bytes 0
WorkspaceNeed workspace_need(const RecordedOperations& operations, const WorkspaceTarget& target,
                             int64_t allowed_bytes);
}  // namespace cuda

void record(ExecContext& ctx, const RecordedConv2d& convolution) {
  if (ctx.backend() == Backend::meta) ctx.plans().get<RecordedOperations>().add(convolution);
}

void record(ExecContext& ctx, const RecordedProduct& product) {
  if (ctx.backend() == Backend::meta) ctx.plans().get<RecordedOperations>().add(product);
}

bool has_convolutions(ExecContext& recorded) {
  return !recorded.plans().get<RecordedOperations>().convolutions.empty();
}

WorkspaceNeed workspace_need(ExecContext& recorded, const WorkspaceTarget& target, int64_t allowed_bytes) {
  VITRINE_ASSERT(recorded.backend() == Backend::meta, "only meta contexts record their operations");
  const auto& operations = recorded.plans().get<RecordedOperations>();
  const bool on_gpu = target.device.backend == Backend::cuda;
  if (on_gpu && !has_convolutions(recorded)) return {};
  WorkspaceNeed need = on_gpu ? cuda::workspace_need(operations, target, allowed_bytes)
                              : cpu::workspace_need(recorded, operations, target, allowed_bytes);
  std::stable_sort(
      need.shortages.begin(), need.shortages.end(),
      [](const WorkspaceShortage& a, const WorkspaceShortage& b) { return a.needed_bytes > b.needed_bytes; });
  return need;
}

void require_workspace(ExecContext& recorded, const WorkspaceTarget& target) {
  if (target.device.backend == Backend::cuda) return;
  cpu::require_workspace(recorded, recorded.plans().get<RecordedOperations>(), target.thread_count);
}

void record_workspace(ExecContext& recorded, const WorkspaceTarget& target, int64_t allowed_bytes,
                      WorkspaceRecord& record) {
  VITRINE_ASSERT(recorded.backend() == Backend::meta, "only meta contexts record their operations");
  cpu::record_workspace(recorded, recorded.plans().get<RecordedOperations>(), target, allowed_bytes, record);
}

}  // namespace vitrine
