// SPDX-License-Identifier: Apache-2.0
// Two runs, compared by the hashes of their training states after every step.
#include <filesystem>
#include <fstream>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "nn/json_file.h"
#include "runtime/error.h"
#include "tools/program/commands/commands.h"
#include "tools/program/run/shell.h"
#include "tools/program/text/json_text.h"

namespace vitrine::tools {

namespace {

/// The lines of a file of train --hashes, by step.
using Hashes = std::map<int64_t, Json>;

/// A file that is removed at the end.
struct TemporaryFile {
  explicit TemporaryFile(const char* run)
      : path(std::filesystem::temp_directory_path() / fmt::format("vitrine-verify-{}-{}.jsonl", getpid(), run)) {}
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::filesystem::path path;
};

Hashes read_hashes(const char* option, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw DataError(fmt::format("{} {}: the file cannot be read; write it with train --hashes", option, path));
  Hashes hashes;
  std::string line;
  while (std::getline(file, line)) {
    Json json = is_shallow_json(line) ? Json::parse(line, nullptr, false) : Json();
    const bool fits = json.is_object() && json.contains("step") && json["step"].is_number_integer() &&
                      json.contains("state_hash") && json.contains("tensors") && json["tensors"].is_object();
    if (!fits) {
      throw DataError(
          fmt::format("{} {}: line {} has no step, state_hash and tensors; write the file with train "
                      "--hashes",
                      option, path, hashes.size() + 1));
    }
    const auto step = json["step"].get<int64_t>();
    hashes[step] = std::move(json);
  }
  return hashes;
}

/// Reads the hashes of a run, or trains it first.
Hashes hashes_of(const char* option, const char* name, const std::string& run) {
  if (run.ends_with(".jsonl") && run.find(' ') == std::string::npos) return read_hashes(option, run);
  const TemporaryFile file(name);
  const bool is_command = run.find("vitrine train") != std::string::npos;
  const std::string command =
      fmt::format("{}{} --hashes {} >/dev/null", is_command ? "" : "vitrine train ", run, file.path.string());
  if (const int status = run_in_shell(command); status != kExitOk)
    throw ConfigError(fmt::format("{}: '{}' ended with status {}", option, command, status));
  return read_hashes(option, file.path.string());
}

/// The tensors whose hashes differ, in the order of the first run.
std::vector<std::string> different_tensors(const Json& a, const Json& b) {
  std::vector<std::string> names;
  for (const auto& [name, hash] : a["tensors"].items()) {
    if (!b["tensors"].contains(name) || b["tensors"][name] != hash) names.push_back(name);
  }
  return names;
}

}  // namespace

int run_verify(const Options& options) {
  const Hashes a = hashes_of("--a", "a", options.verify_a), b = hashes_of("--b", "b", options.verify_b);
  int64_t equal = 0, first = 0, last = 0;
  std::vector<std::string> names;
  for (const auto& [step, line] : a) {
    const auto other = b.find(step);
    if (other == b.end()) continue;
    last = step;
    if (line["state_hash"] != other->second["state_hash"]) {
      first = step;
      names = different_tensors(line, other->second);
      break;
    }
    ++equal;
  }
  if (last == 0) throw DataError("the runs have no step in common, so there is nothing to compare");
  const std::string first_tensor = names.empty() ? std::string() : names.front();
  if (first == 0) {
    fmt::print("The runs are equal after each of {} steps; the last hash is {}\n", equal,
               a.at(last)["state_hash"].get<std::string>());
  } else {
    fmt::print("The runs differ after step {}, first in {} ({} of {} tensors differ); {} steps before it are equal\n",
               first, first_tensor, names.size(), a.at(first)["tensors"].size(), equal);
  }
  return first == 0 ? kExitOk : kExitFailure;
}

}  // namespace vitrine::tools
