// SPDX-License-Identifier: Apache-2.0
#include "tools/program/process/shell.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>
#include <sys/wait.h>

#include "runtime/error.h"
#include "tools/program/flags/options.h"

namespace vitrine::tools {

int run_in_shell(const std::string& command) {
  std::error_code error;
  const std::string folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
  if (error) throw UnsupportedError(fmt::format("the program's folder is unknown ({}); mount /proc", error.message()));
  // An empty entry would be the current folder.
  const char* const path = std::getenv("PATH");
  setenv("PATH", path == nullptr || *path == '\0' ? folder.c_str() : fmt::format("{}:{}", folder, path).c_str(), 1);
  const int status = std::system(command.c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : kExitFailure;
}

std::string shell_word(const std::string& text) {
  constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+./:,@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

}  // namespace vitrine::tools
