// SPDX-License-Identifier: Apache-2.0
#include "tests/support/paths.h"

#include <filesystem>

namespace vitrine::test {

namespace fs = std::filesystem;

std::string source_path(std::string_view path) { return (fs::path(VITRINE_TEST_ROOT) / path).string(); }

std::string program_path(std::string_view name) {
  return (fs::canonical("/proc/self/exe").parent_path() / name).string();
}

}  // namespace vitrine::test
