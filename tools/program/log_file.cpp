// SPDX-License-Identifier: Apache-2.0
#include "tools/program/log_file.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

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

}  // namespace

void LogFile::check_path(const std::string& path) {
  if (path.ends_with(".jsonl") || is_csv(path)) return;
  throw ConfigError(fmt::format("--log {}: the name says the format; end it in .jsonl (an object per line) or .csv", path));
}

LogFile::LogFile(const std::string& path, std::vector<std::string> columns) : path_(path) {
  if (is_csv(path)) columns_ = std::move(columns);
  file_.open(path, std::ios::binary | std::ios::trunc);
  if (!file_) throw DataError(fmt::format("--log {}: cannot be written ({}); name a file that you may write to", path, std::strerror(errno)));
  for (size_t c = 0; c < columns_.size(); ++c) file_ << (c > 0 ? "," : "") << field(columns_[c]);
  if (!columns_.empty()) file_ << '\n';
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
