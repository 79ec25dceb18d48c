// SPDX-License-Identifier: Apache-2.0
#include "tools/program/log_file.h"

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "nn/atomic_file.h"
#include "runtime/error.h"
#include "runtime/trace/span.h"

namespace vitrine::tools {

namespace {

using Json = nlohmann::ordered_json;

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
    for (const auto& [key, part] : value.items()) flatten(part, name.empty() ? key : fmt::format("{}.{}", name, key), cells);
  } else if (value.is_number_float()) {
    cells[name] = fmt::format("{}", value.get<double>());
  } else if (!value.is_null()) {
    cells[name] = value.is_string() ? value.get<std::string>() : value.dump();
  }
}

/// Empty without columns.
std::string csv_header(const std::vector<std::string>& columns) {
  std::string text;
  for (size_t c = 0; c < columns.size(); ++c) text += fmt::format("{}{}", c > 0 ? "," : "", field(columns[c]));
  return columns.empty() ? text : text.append(1, '\n');
}

/// The step of a row: 0 for the first lines of a run, none for what is no row.
std::optional<int64_t> step_of(const std::string& line, bool csv) {
  if (!csv) {
    const Json row = Json::parse(line, nullptr, false);
    if (!row.is_object()) return std::nullopt;
    const auto step = row.find("step");
    return step == row.end() ? 0 : step->is_number_integer() ? std::optional(step->get<int64_t>()) : std::nullopt;
  }
  const size_t begin = line.find(',') + 1;  // the second column
  int64_t step = 0;
  const auto [end, error] = std::from_chars(line.data() + begin, line.data() + line.size(), step);
  return begin > 0 && error == std::errc{} && end != line.data() + line.size() && *end == ',' ? std::optional(step) : std::nullopt;
}

/// The complete lines of an existing log up to a step; empty if there is none. throws DataError for a CSV file with other columns.
std::string rows_until(const std::string& path, const std::string& header, int64_t last_step) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return {};
  std::ifstream file(path, std::ios::binary);
  std::string kept, line;
  if (!header.empty()) {
    if (!std::getline(file, line)) return {};
    if (fmt::format("{}\n", line) != header) {
      throw DataError(fmt::format("--log {}: it has other columns than this run, so it cannot be continued; name another file", path));
    }
    kept = header;
  }
  while (std::getline(file, line) && !file.eof()) {  // a line that a killed process has not finished has no end
    if (const auto step = step_of(line, !header.empty()); step && *step <= last_step) kept.append(line).append(1, '\n');
  }
  return kept;
}

bool is_csv(const std::string& path) { return path.ends_with(".csv"); }

}  // namespace

void LogFile::check_path(const std::string& path) {
  if (path.ends_with(".jsonl") || is_csv(path)) return;
  throw ConfigError(fmt::format("--log {}: the name says the format; end it in .jsonl (an object per line) or .csv", path));
}

LogFile::LogFile(const std::string& path, std::vector<std::string> columns, int64_t steps_before) : path_(path) {
  if (is_csv(path)) columns_ = std::move(columns);
  const std::string header = csv_header(columns_);
  const std::string kept = steps_before > 0 ? rows_until(path, header, steps_before) : std::string();
  if (!kept.empty()) {
    // The old rows are not lost if this process is killed here.
    AtomicFile file(path);
    file.write(kept);
    file.commit();
  }
  file_.open(path, std::ios::binary | (kept.empty() ? std::ios::trunc : std::ios::app));
  if (!file_) throw DataError(fmt::format("--log {}: cannot be written ({}); name a file that you may write to", path, std::strerror(errno)));
  if (kept.empty()) file_ << header;
  flush();
}

void LogFile::add(const Json& row) {
  if (columns_.empty()) {
    file_ << row.dump() << '\n';
  } else {
    std::map<std::string, std::string> cells;
    flatten(row, "", cells);
    for (size_t c = 0; c < columns_.size(); ++c) file_ << (c > 0 ? "," : "") << field(cells[columns_[c]]);
    file_ << '\n';
  }
  if (steady_now_ns() - flushed_ns_ >= kFlushIntervalNs) flush();
}

void LogFile::flush() {
  file_.flush();
  flushed_ns_ = steady_now_ns();
  if (!file_) throw DataError(fmt::format("--log {}: writing failed ({}); is the disk full?", path_, std::strerror(errno)));
}

}  // namespace vitrine::tools
