// SPDX-License-Identifier: Apache-2.0
// Two runs, compared by the hashes of their training states after every step.
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "nn/json_file.h"
#include "runtime/descriptor.h"
#include "runtime/error.h"
#include "runtime/text.h"
#include "tools/program/commands/commands.h"
#include "tools/program/process/shell.h"
#include "tools/program/render/reports.h"
#include "tools/program/text/json_text.h"
#include "tools/program/text/output_file.h"

namespace vitrine::tools {
namespace {

/// The lines of a file of train --hashes, by step.
using Hashes = std::map<int64_t, Json>;

/// A file in a new folder of this user alone; both are removed at the end.
class TemporaryFile {
 public:
  TemporaryFile() {
    std::error_code error;
    const char* const asked = std::getenv("TMPDIR");
    const std::filesystem::path parent =
        asked != nullptr && *asked == '\0' ? "/tmp" : std::filesystem::temp_directory_path(error);
    folder_ = (parent / "vitrine-verify-XXXXXX").string();
    if (error || mkdtemp(folder_.data()) == nullptr) {
      throw DataError(
          fmt::format("verify: no temporary folder can be made in {} ({}); set TMPDIR to a folder that you "
                      "may write to",
                      excerpt(error ? "TMPDIR" : parent.string()), error ? error.message() : std::strerror(errno)));
    }
  }
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  std::string path() const { return folder_ + "/hashes.jsonl"; }

 private:
  std::string folder_;
};

/// Whether a line of train --hashes has what is compared.
bool has_hashes(const Json& line) {
  const auto fits = [&](const char* key, bool (Json::*is_kind)() const noexcept, bool required) {
    const auto value = line.find(key);
    return value == line.end() ? !required : ((*value).*is_kind)();
  };
  return line.is_object() && fits("step", &Json::is_number_integer, true) &&
         fits("state_hash", &Json::is_string, true) && fits("tensors", &Json::is_object, true) &&
         fits("gradients", &Json::is_object, false) && fits("sketches", &Json::is_object, false) &&
         fits("leaves", &Json::is_array, false);
}

Hashes read_hashes(const char* option, const std::string& path) {
  std::istringstream file;
  with_prefix<DataError>(fmt::format("{} ", option), [&] { file.str(read_regular_file(path, kLargestTextFile)); });
  Hashes hashes;
  std::string line;
  while (std::getline(file, line)) {
    Json json = is_small_json(line) ? Json::parse(line, nullptr, false) : Json();
    if (!has_hashes(json)) {
      throw DataError(fmt::format("{} {}: line {} has no step, state_hash and tensors as train --hashes writes them",
                                  option, path, hashes.size() + 1));
    }
    const auto step = json["step"].get<int64_t>();
    hashes[step] = std::move(json);
  }
  return hashes;
}

/// Reads the hashes of a run, or trains it first.
Hashes hashes_of(const char* option, const std::string& run) {
  if (run.ends_with(".jsonl") && run.find(' ') == std::string::npos) return read_hashes(option, run);
  const TemporaryFile file;
  const bool is_command = run.find("vitrine train") != std::string::npos;
  const std::string command =
      fmt::format("{}{} --hashes {} >/dev/null", is_command ? "" : "vitrine train ", run, shell_word(file.path()));
  if (const int status = run_in_shell(command); status != kExitOk)
    throw ConfigError(fmt::format("{}: '{}' ended with status {}", option, command, status));
  return read_hashes(option, file.path());
}

/// What differs first in a step, in the order in which the step computes it.
struct Difference {
  std::string phase = {};  // "forward", "backward" or "update"
  std::string layer = {}, tensor = {};
  std::optional<size_t> leaf = {};
};

/// The first name whose hashes differ, among those with this prefix; empty if there is none.
std::string first_different(const Json& a, const Json& b, const std::string& prefix = "") {
  for (const auto& [name, hash] : a.items()) {
    if (name.starts_with(prefix) && (!b.contains(name) || b[name] != hash)) return name;
  }
  return {};
}

/// "conv1" of "conv1.weight".
std::string layer_of(const std::string& parameter) { return parameter.substr(0, parameter.rfind('.')); }

/// Forward updates running statistics and finds the leaves' losses; backward finds gradients; the update the rest.
Difference first_difference(const Json& a, const Json& b) {
  constexpr const char* kBuffers = "buffers.";
  const Json none = Json::object(), no_leaves = Json::array();
  const Json &leaves_a = a.contains("leaves") ? a["leaves"] : no_leaves,
             &leaves_b = b.contains("leaves") ? b["leaves"] : no_leaves;
  Difference found;
  for (size_t i = 0; !found.leaf && i < std::min(leaves_a.size(), leaves_b.size()); ++i) {
    if (leaves_a[i] != leaves_b[i]) found.leaf = i;
  }
  found.tensor = first_different(a["tensors"], b["tensors"], kBuffers);
  if (!found.tensor.empty()) found.layer = layer_of(found.tensor.substr(std::string_view(kBuffers).size()));
  if (found.tensor.empty() && found.leaf) found.tensor = "loss";
  if (!found.tensor.empty()) {
    found.phase = "forward";
    return found;
  }
  const std::string gradient =
      first_different(a.contains("gradients") ? a["gradients"] : none, b.contains("gradients") ? b["gradients"] : none);
  found.phase = gradient.empty() ? "update" : "backward";
  found.tensor = gradient.empty() ? first_different(a["tensors"], b["tensors"]) : "gradients." + gradient;
  if (const size_t dot = found.tensor.find('.'); dot != std::string::npos)
    found.layer = layer_of(found.tensor.substr(dot + 1));
  return found;
}

/// How far the values of these sketches are apart, relative to those of `a`; nothing without sketches of finite values.
std::optional<double> relative_size(const Json& a, const Json& b, const char* of) {
  const auto sketch = [&](const Json& line) {
    const Json found = line.value("sketches", Json::object()).value(of, Json::array());
    const bool known = std::ranges::all_of(found, [](const Json& sum) { return sum.is_number(); });
    return known ? found.get<std::vector<double>>() : std::vector<double>();
  };
  const std::vector<double> in_a = sketch(a), in_b = sketch(b);
  if (in_a.empty() || in_a.size() != in_b.size()) return std::nullopt;
  double distance = 0, length = 0;
  for (size_t i = 0; i < in_a.size(); ++i) {
    distance += (in_a[i] - in_b[i]) * (in_a[i] - in_b[i]);
    length += in_a[i] * in_a[i];
  }
  return length > 0 ? std::optional(std::sqrt(distance / length)) : std::nullopt;
}

std::string describe(const Difference& d) {
  std::string text = fmt::format("first in {} ({}", excerpt(d.tensor), d.phase);
  if (!d.layer.empty()) text += ", layer " + excerpt(d.layer);
  if (d.leaf) text += fmt::format(", leaf {}", *d.leaf);
  return text + ")";
}

}  // namespace

int run_verify(const Options& options) {
  const Hashes a = hashes_of("--a", options.verify_a), b = hashes_of("--b", options.verify_b);
  int64_t equal = 0, last = 0;
  std::optional<int64_t> step;  // the first one that differs
  for (const auto& [number, line] : a) {
    const auto other = b.find(number);
    if (other == b.end()) continue;
    last = number;
    if (line["state_hash"] != other->second["state_hash"]) {
      step = number;
      break;
    }
    ++equal;
  }
  if (last == 0) throw DataError("the runs have no step in common, so there is nothing to compare");
  std::optional<Difference> first;
  size_t different = 0;  // tensors
  std::optional<double> gradients, parameters;
  if (step) {
    const Json &in_a = a.at(*step)["tensors"], &in_b = b.at(*step)["tensors"];
    for (const auto& [name, hash] : in_a.items()) different += !in_b.contains(name) || in_b[name] != hash ? 1 : 0;
    first = first_difference(a.at(*step), b.at(*step));
    gradients = relative_size(a.at(*step), b.at(*step), "gradients");
    parameters = relative_size(a.at(*step), b.at(*step), "parameters");
  }
  const std::string hash = a.at(last)["state_hash"].get<std::string>();
  if (options.json) {
    Json json = {{"equal", !first}, {"equal_steps", equal}, {"state_hash", first ? Json() : Json(hash)}};
    json["first_difference"] = Json();
    if (first) {
      json["first_difference"] = {{"step", *step},
                                  {"phase", first->phase},
                                  {"layer", text_or_null(first->layer)},
                                  {"tensor", first->tensor},
                                  {"leaf", value_or_null(first->leaf)},
                                  {"different_tensors", different},
                                  {"gradients", value_or_null(gradients)},
                                  {"parameters", value_or_null(parameters)}};
    }
    print_json(json);
  } else if (first) {
    fmt::print("The runs differ after step {}, {}; {} of {} tensors differ; {} steps before it are equal\n", *step,
               describe(*first), different, a.at(*step)["tensors"].size(), equal);
    if (gradients && parameters)
      fmt::print("After that step the gradients differ by about {:.0e} of their norm, the parameters by {:.0e}\n",
                 *gradients, *parameters);
  } else {
    fmt::print("The runs are equal after each of {} steps; the last hash is {}\n", equal, excerpt(hash));
  }
  return first ? kExitFailure : kExitOk;
}

}  // namespace vitrine::tools
