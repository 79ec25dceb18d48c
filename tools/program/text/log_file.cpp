// SPDX-License-Identifier: Apache-2.0
#include "tools/program/text/log_file.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include "nn/atomic_file.h"
#include "nn/json_file.h"
#include "runtime/error.h"
#include "runtime/text.h"
#include "runtime/trace/span.h"
#include "tools/program/text/json_text.h"

namespace vitrine::tools {

namespace {

constexpr int64_t kFlushIntervalNs = 1'000'000'000;

/// A field of a CSV file (RFC 4180).
std::string field(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted.append(c == '"' ? 2 : 1, c);
  return quoted.append(1, '"');
}

/// {"a": {"b": 1}} to {"a.b", "1"}.
void flatten(const Json& value, const std::string& name, std::map<std::string, std::string>& cells) {
  if (value.is_object()) {
    for (const auto& [key, part] : value.items())
      flatten(part, name.empty() ? key : fmt::format("{}.{}", name, key), cells);
  } else if (value.is_number_float()) {
    const auto number = value.get<double>();
    cells[name] = std::isnan(number) ? "nan" : fmt::format("{}", number);  // without the sign of a NaN
  } else if (!value.is_null()) {
    cells[name] = value.is_string() ? value.get<std::string>() : json_text(value);
  }
}

/// Empty without columns.
std::string csv_header(const std::vector<std::string>& columns) {
  std::string text;
  for (size_t c = 0; c < columns.size(); ++c) text += fmt::format("{}{}", c > 0 ? "," : "", field(columns[c]));
  return columns.empty() ? text : text.append(1, '\n');
}

/// What continuing a log needs of a row.
struct Row {
  int64_t step = 0;  // 0 for the lines that begin a run
  double seconds = 0.0;
  std::optional<std::string> run_id;
};

std::optional<Row> parse_json_row(const std::string& line) {
  const Json json = is_small_json(line) ? Json::parse(line, nullptr, false) : Json();
  if (!json.is_object()) return std::nullopt;
  Row row;
  for (const auto& [key, value] : json.items()) {
    if (key == "step" && !value.is_number_integer()) return std::nullopt;
    if (key == "step") row.step = value.get<int64_t>();
    if (key == "seconds" && value.is_number()) row.seconds = value.get<double>();
    if (key == "run_id" && value.is_string()) row.run_id = value.get<std::string>();
  }
  return row;
}

/// The columns of a line begin with kind, step, epoch and seconds and end with run_id, which need no quotes.
std::optional<Row> parse_csv_row(const std::string& line) {
  std::vector<std::string> fields;
  for (size_t begin = 0; fields.size() < 4;) {
    const size_t end = line.find(',', begin);
    if (end == std::string::npos) return std::nullopt;
    fields.push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  const std::optional<int64_t> step = parse_number<int64_t>(fields[1]);
  if (!step) return std::nullopt;
  Row row;
  row.step = *step;
  row.seconds = parse_number<double>(fields[3]).value_or(0.0);
  row.run_id = line.substr(line.rfind(',') + 1);
  return row;
}

/// The rows of an existing log that stay.
struct Kept {
  std::string text;  // with the header of a CSV file; empty if there is no log yet
  double seconds = 0.0;
};

/// The complete lines of an existing log up to a step. Damaged lines are left out.   header  of a CSV file, else empty
/// throws DataError for a CSV file with other columns, and for rows of another run.
Kept rows_of(const std::string& path, const std::string& header, const std::string& run_id, int64_t last_step) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return {};
  std::ifstream file(path, std::ios::binary);
  const bool csv = !header.empty();
  Kept kept;
  std::string line;
  if (csv) {
    if (!std::getline(file, line) || file.eof()) return {};
    if (fmt::format("{}\n", line) != header) {
      throw DataError(fmt::format(
          "--log {}: its columns differ from this run's, so it cannot be continued; name another file", path));
    }
    kept.text = header;
  }
  bool of_this_run = csv;  // a row of a CSV file names its run; in JSON lines the row that begins a process does
  while (std::getline(file, line) && !file.eof()) {  // a line that a killed process has not finished has no end
    const std::optional<Row> row = csv ? parse_csv_row(line) : parse_json_row(line);
    if (!row) {
      of_this_run =
          true;  // it may be the row that names the run; if another follows, the next row that begins a process says so
      continue;
    }
    if (row->run_id) of_this_run = *row->run_id == run_id;
    if (!of_this_run) {
      throw DataError(fmt::format(
          "--log {}: its rows belong to another run, so it cannot be continued; name another file, or remove it",
          path));
    }
    if (row->step > last_step) continue;
    kept.text.append(line).append(1, '\n');
    kept.seconds = std::max(kept.seconds, row->seconds);
  }
  return kept;
}

/// The lock of a file that is made if it is absent. Where it is no regular file or cannot be locked there is none.
Descriptor lock_of(const std::string& path) {
  std::error_code error;
  const auto type = std::filesystem::status(path, error).type();
  if (type != std::filesystem::file_type::regular && type != std::filesystem::file_type::not_found) return {};
  Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (file && flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    throw DataError(fmt::format("--log {}: another run is writing it; name another file", path));
  return file;
}

bool is_csv(const std::string& path) { return path.ends_with(".csv"); }

}  // namespace

void LogFile::check_path(const std::string& path) {
  if (path.ends_with(".jsonl") || is_csv(path)) return;
  throw ConfigError(
      fmt::format("--log {}: the extension selects the format; use .jsonl (an object per line) or .csv", path));
}

LogFile::LogFile(const std::string& path, std::vector<std::string> columns, std::string run_id, int64_t steps_before)
    : path_(path), run_id_(std::move(run_id)) {
  if (is_csv(path)) {
    columns_ = std::move(columns);
    columns_.emplace_back("run_id");
  }
  lock_ = lock_of(path);
  const std::string header = csv_header(columns_);
  const Kept kept = steps_before > 0 ? rows_of(path, header, run_id_, steps_before) : Kept{};
  seconds_before_ = kept.seconds;
  if (!kept.text.empty()) {
    // The old rows are not lost if this process is killed here.
    AtomicFile file(path);
    file.write(kept.text);
    file.commit();
    lock_ = lock_of(path);  // of the file that has its name now
  }
  file_.open(path, std::ios::binary | (kept.text.empty() ? std::ios::trunc : std::ios::app));
  if (!file_)
    throw DataError(
        fmt::format("--log {}: cannot be written ({}); name a file that you may write to", path, std::strerror(errno)));
  if (kept.text.empty()) file_ << header;
  flush();
}

void LogFile::add(const Json& row) {
  if (columns_.empty()) {
    file_ << json_text(row) << '\n';
  } else {
    std::map<std::string, std::string> cells;
    flatten(row, "", cells);
    cells["run_id"] = run_id_;
    for (size_t c = 0; c < columns_.size(); ++c) file_ << (c > 0 ? "," : "") << field(cells[columns_[c]]);
    file_ << '\n';
  }
  if (steady_now_ns() - flushed_ns_ >= kFlushIntervalNs) flush();
}

void LogFile::flush() {
  file_.flush();
  flushed_ns_ = steady_now_ns();
  if (!file_)
    throw DataError(fmt::format("--log {}: writing failed ({}); is the disk full?", path_, std::strerror(errno)));
}

}  // namespace vitrine::tools
