// SPDX-License-Identifier: Apache-2.0
#include "tools/program/text/standard_streams.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace vitrine::tools {
namespace {

/// mpirun of Open MPI 5 puts parts of longer lines on stderr.
TEST(StandardStreams, UnderMpirunJsonHasShortLines) {
  nlohmann::json json;
  for (int i = 0; i < 2000; ++i) json.push_back({std::string(i % 90, ',') + "\"\\", i});
  const std::string text = json.dump() + "\n";
  for (const bool under_mpirun : {false, true}) {
    if (under_mpirun) setenv("PMIX_RANK", "0", 1);
    ::testing::internal::CaptureStdout();
    print_results(text);
    const std::string printed = ::testing::internal::GetCapturedStdout();
    unsetenv("PMIX_RANK");
    EXPECT_EQ(nlohmann::json::parse(printed), json);
    EXPECT_EQ(printed == text, !under_mpirun);
    std::istringstream lines(printed);
    for (std::string line; under_mpirun && std::getline(lines, line);) EXPECT_LT(line.size(), 4096U);
  }
}

}  // namespace
}  // namespace vitrine::tools
