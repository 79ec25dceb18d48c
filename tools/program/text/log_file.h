// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "runtime/descriptor.h"

namespace vitrine::tools {

/// What --log writes: one row for each step and epoch, while the run goes on.
///   FILE.jsonl  a JSON object per line; values that are missing or not finite are null
///   FILE.csv    a header and a line per row; missing values are empty, others that are not finite nan or inf. The last
///               column is run_id
class LogFile {
 public:
  /// Replaces an existing file.   columns  of a CSV file, in order, without run_id
  ///   steps_before  above 0: of the run that this one continues. The rows of an existing file up to that step stay
  /// throws  DataError: the file cannot be written, another run writes it, or the rows to continue are of a run with
  /// another id or have other
  ///         columns
  LogFile(const std::string& path, std::vector<std::string> columns, std::string run_id, int64_t steps_before = 0);

  /// A row of numbers and texts. Nested objects become columns "memory.cpu:0.peak" of a CSV file; keys without a column
  /// are left out there.
  void add(const nlohmann::ordered_json& row);
  /// The largest "seconds" of the rows that stayed; 0 without any.
  double seconds_before() const { return seconds_before_; }
  /// Passes all rows to the operating system; add() does so every second. throws DataError when the disk is full.
  void flush();

  /// throws ConfigError unless the path ends in .jsonl or .csv.
  static void check_path(const std::string& path);

 private:
  std::string path_, run_id_;
  std::vector<std::string> columns_;  // empty: JSON lines
  std::ofstream file_;
  Descriptor lock_;  // on the file, so that no other run writes it; empty if it is no regular file
  int64_t flushed_ns_ = 0;
  double seconds_before_ = 0.0;
};

}  // namespace vitrine::tools
