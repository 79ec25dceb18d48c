// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace vitrine {

/// What a CPU's libraries answered when they were asked for the workspace of operations, for plans that are made where
/// they cannot be asked (EngineConfig::workspace_record). What was not asked has no answer.
class WorkspaceRecord {
 public:
  /// Bytes of one operation: with `best` it runs at full speed; if these are too many it uses up to `other` (below 0:
  /// that was not asked), and at least `least`.
  struct Answer {
    int64_t best = 0, other = 0, least = 0;
    bool operator==(const Answer&) const = default;
  };

  /// library  whose answers these are: "oneDNN 2.6.3, AMD EPYC"
  explicit WorkspaceRecord(std::string library = "no library") : library_(std::move(library)) {}
  const std::string& library() const { return library_; }

  /// operation  without the dimension that grows with the batch, which is `size`
  void add(const std::string& operation, int64_t size, const Answer& answer) { answers_[operation][size] = answer; }
  std::optional<Answer> find(const std::string& operation, int64_t size) const;

  /// A line for each operation. Sizes at equal distances that have the same answer share an entry.
  std::string text() const;
  /// throws DataError
  static WorkspaceRecord parse(const std::string& text);

 private:
  std::string library_;
  std::map<std::string, std::map<int64_t, Answer>> answers_;
};

}  // namespace vitrine
