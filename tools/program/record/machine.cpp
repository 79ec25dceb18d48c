// SPDX-License-Identifier: Apache-2.0
#include "tools/program/record/machine.h"

#include <array>
#include <ctime>
#include <fstream>

#include <unistd.h>

namespace vitrine::tools {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t begin = line.find_first_not_of(" \t", line.find(':') + 1);
    return begin == std::string::npos ? std::string{} : line.substr(begin);
  }
  return "unknown";
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0' ? name.data() : "unknown";
}

std::string local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  std::array<char, 64> text{};
  if (localtime_r(&now, &parts) == nullptr || std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M %Z", &parts) == 0)
    return "unknown";
  return text.data();
}

}  // namespace vitrine::tools
