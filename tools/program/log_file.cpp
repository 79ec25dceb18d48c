// SPDX-License-Identifier: Apache-2.0
#include "tools/program/log_file.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <sstream>
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

bool is_csv(const std::string& path) { return path.ends_with(".csv"); }

/// The step of a row; 0 where it has none, and nothing for a row that was cut off.
std::optional<int64_t> step_of(const std::string& line, const std::vector<std::string>& columns) {
  if (columns.empty()) {
    const Json row = Json::parse(line, nullptr, false);
    if (!row.is_object()) return std::nullopt;
    return row.contains("step") && row["step"].is_number_integer() ? row["step"].get<int64_t>() : 0;
  }
  // "step" comes before all columns that may be quoted.
  const auto index = std::find(columns.begin(), columns.end(), "step") - columns.begin();
  std::istringstream cells(line);
  std::string cell;
  for (std::ptrdiff_t c = 0; c <= index; ++c) {
    if (!std::getline(cells, cell, ',')) return std::nullopt;
  }
  int64_t step = 0;
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), step);
  return error == std::errc() && end == cell.data() + cell.size() ? std::optional(step) : std::nullopt;
}

/// The rows of an existing log, without its header, that the run up to `last` wrote. Nothing if there is no file.
std::string rows_up_to(const std::string& path, const std::string& header, const std::vector<std::string>& columns, int64_t last) {
  std::ifstream file(path, std::ios::binary);
  std::string line, rows;
  if (!header.empty() && std::getline(file, line) && line + "\n" != header) {
    throw DataError(fmt::format("--log {}: it has other columns than this run, so it cannot be continued; name another file", path));
  }
  while (std::getline(file, line)) {
    const std::optional<int64_t> step = step_of(line, columns);
    if (step && *step <= last) rows.append(line).append(1, '\n');
  }
  return rows;
}

}  // namespace

void LogFile::check_path(const std::string& path) {
  if (path.ends_with(".jsonl") || is_csv(path)) return;
  throw ConfigError(fmt::format("--log {}: the name says the format; end it in .jsonl (an object per line) or .csv", path));
}

LogFile::LogFile(const std::string& path, std::vector<std::string> columns, int64_t steps_before) : path_(path) {
  if (is_csv(path)) columns_ = std::move(columns);
  std::string header;
  for (size_t c = 0; c < columns_.size(); ++c) header.append(c > 0 ? "," : "").append(field(columns_[c]));
  if (!header.empty()) header.append(1, '\n');
  if (steps_before > 0) {
    // The rows of the run before are on the disk all the time.
    AtomicFile kept(path, {});
    kept.write(header + rows_up_to(path, header, columns_, steps_before));
    kept.commit();
    header.clear();
  }
  file_.open(path, std::ios::binary | (steps_before > 0 ? std::ios::app : std::ios::trunc));
  if (!file_) throw DataError(fmt::format("--log {}: cannot be written ({}); name a file that you may write to", path, std::strerror(errno)));
  file_ << header;
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
