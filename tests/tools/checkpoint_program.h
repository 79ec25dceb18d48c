// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include <nlohmann/json.hpp>

#include "nn/checkpoint.h"
#include "runtime/hash.h"
#include "tests/tools/checkpoint_runs.h"

namespace vitrine::test {

/// Runs of `vitrine train` that save, continue, or are refused.
class Checkpoints : public CheckpointRuns {
 protected:
  using Json = nlohmann::json;

  ChildResult run(const Arguments& arguments) const { return run_vitrine(arguments); }
  /// Runs to the end, which must be a success, and returns the JSON.
  Json json(const Arguments& arguments) const {
    const ChildResult result = run_vitrine(arguments + words("--json"));
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return result.exit_code == 0 ? Json::parse(result.output) : Json();
  }
  /// A run that saves after each step.
  Json every_step(const std::string& name, const Arguments& more = {}) const {
    return json(short_run() + into(name) + words("--checkpoint-every 1") + more);
  }
  static std::string step(int64_t number) { return "/" + checkpoint_name(number); }
  /// Copies one checkpoint to a folder of its own.
  void take(const std::string& from, int64_t number, const std::string& to) const {
    std::filesystem::create_directories(path(to));
    std::filesystem::copy(path(from) + step(number), path(to) + step(number), std::filesystem::copy_options::recursive);
  }
  /// Changes the state in a checkpoint's state.json; its checksum is right afterwards.
  template <class Change>
  void change_state(const std::string& folder, const Change& change) const {
    using Ordered = nlohmann::ordered_json;
    const std::string file = folder + "/state.json";
    Ordered json = Ordered::parse(content(file));
    change(json["state"]);
    json.erase("checksum");
    const std::string text = json.dump();
    std::array<char, 17> checksum{};
    std::snprintf(checksum.data(), checksum.size(), "%016" PRIx64,
                  hash_bytes(0, text.data(), static_cast<int64_t>(text.size())));
    json["checksum"] = checksum.data();
    std::ofstream(file, std::ios::binary) << json.dump(1) << "\n";
  }
  void damage(const std::string& file) const {
    std::string bytes = content(file);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
    std::ofstream(file, std::ios::binary) << bytes;
  }
};

}  // namespace vitrine::test
