// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/run_vitrine.h"

namespace vitrine::test {

/// What the program prints with these arguments and --json.
inline nlohmann::json json_of(const Arguments& arguments, int exit_code = 0) {
  const ChildResult result = run_vitrine(with(arguments, {"--json"}));
  EXPECT_EQ(result.exit_code, exit_code) << fmt::format("{}", fmt::join(arguments, " ")) << "\n" << result.error;
  return nlohmann::json::parse(result.output);
}

}  // namespace vitrine::test
