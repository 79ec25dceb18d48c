// SPDX-License-Identifier: Apache-2.0
// The program's own parser for tools/documents.
//   vitrine_command_line flags            prints the reference of all flags
//   vitrine_command_line configuration    prints that of the JSON configuration
//   vitrine_command_line parse            reads a JSON array of arguments from each line of stdin, and prints for each
//   why the
//     program refuses it, or an empty line
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/tools/settings_reference.h"
#include "tools/program/flags/options.h"

int main(int argc, char** argv) {
  const std::string task = argc == 2 ? argv[1] : "";
  if (task == "flags") {
    fmt::print("{}", vitrine::tools::flag_reference());
    return 0;
  }
  if (task == "configuration") {
    fmt::print("{}", vitrine::tools::configuration_reference());
    return 0;
  }
  if (task != "parse") {
    fmt::print(stderr, "usage: vitrine_command_line flags|configuration|parse\n");
    return 2;
  }
  for (std::string line; std::getline(std::cin, line);) {
    const auto arguments = nlohmann::json::parse(line).get<std::vector<std::string>>();
    std::string error = vitrine::tools::parse_command_line(arguments).error;
    std::replace(error.begin(), error.end(), '\n', ' ');
    fmt::print("{}\n", error);
  }
  return 0;
}
