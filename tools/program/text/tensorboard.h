// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace vitrine::tools {

/// An event file that TensorBoard reads: scalars and texts of one run.
/// source  tensorflow/core/lib/io/record_writer.h (records), tensorflow/core/util/event.proto and
///         framework/summary.proto (messages)
class TensorboardWriter {
 public:
  /// Creates the folder if it is missing, and a new events.out.tfevents.* file in it, next to the files of earlier
  /// runs. throws DataError if that fails.
  explicit TensorboardWriter(const std::string& folder);

  /// Declares that the run starts again at `step`: TensorBoard drops what earlier files in the folder have from there
  /// on (purge_step of PyTorch's SummaryWriter).
  void start_at(int64_t step);
  /// A point of the curve `tag` at `step`. TensorBoard marks values that are not finite.
  /// throws DataError when the disk is full, as the other functions do.
  void add_scalar(const std::string& tag, double value, int64_t step);
  /// Markdown for TensorBoard's text page.
  void add_text(const std::string& tag, const std::string& markdown, int64_t step);
  /// Hands everything to the operating system. Called after each epoch, so that TensorBoard follows a run. throws
  /// DataError when the disk is full.
  void flush();

  const std::string& path() const { return path_; }

 private:
  /// `summary` is a serialized tensorflow.Summary.
  void write_event(const std::string& summary, int64_t step);
  void write_record(const std::string& event);
  void require_written() const;

  std::string path_;
  std::ofstream file_;
};

}  // namespace vitrine::tools
