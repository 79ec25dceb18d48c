// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/expect_contains.h"
#include "tests/tools/checkpoint_runs.h"
#include "tests/tools/run_json.h"

/// Short calls of vitrine reproduce.
namespace vitrine::test {

using Json = nlohmann::json;
namespace fs = std::filesystem;

/// Ten steps an epoch, the last with a shorter batch.
inline Arguments tiny() {
  return words("reproduce --model mlp --image-size 8 --data synthetic:195 --threads-per-device 1 --batch-size 20");
}
inline const Arguments kTwoDevices = words("--devices cpu:0-1");
/// One short run.
inline const Arguments kSingle = words("--modes single --precisions fp32 --devices cpu:0");

class Reproduce : public CheckpointRuns {
 protected:
  Arguments out(const std::string& name) const { return words("--out {}", path(name)); }
  static std::vector<Json> rows_of(const std::string& log) {
    std::ifstream file(log);
    std::vector<Json> rows;
    for (std::string line; std::getline(file, line);) rows.push_back(Json::parse(line));
    return rows;
  }
  static void expect_usage_error(const Arguments& arguments, const std::vector<std::string>& parts) {
    const ChildResult result = run_vitrine(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.output;
    for (const std::string& part : parts) expect_contains(result.error, part);
  }
};

}  // namespace vitrine::test
