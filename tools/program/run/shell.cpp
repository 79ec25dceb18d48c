// SPDX-License-Identifier: Apache-2.0
#include "tools/program/run/shell.h"

#include <cstdlib>
#include <filesystem>

#include <fmt/format.h>
#include <sys/wait.h>

#include "tools/program/flags/options.h"

namespace vitrine::tools {

int run_in_shell(const std::string& command) {
  const std::string folder = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  const char* const path = std::getenv("PATH");
  setenv("PATH", path == nullptr ? folder.c_str() : fmt::format("{}:{}", folder, path).c_str(), 1);
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : kExitFailure;
}

}  // namespace vitrine::tools
