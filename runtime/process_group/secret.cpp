// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_group/secret.h"

#include <fmt/format.h>

#include "runtime/error.h"
#include "runtime/process_group/private_file.h"

namespace vitrine {

std::string find_secret(const Environment& env) {
  constexpr const char* kText = "VITRINE_SECRET";
  constexpr const char* kFile = "VITRINE_SECRET_FILE";
  const auto get = [&](const char* name) {
    const char* const value = env(name);
    return std::string(value == nullptr ? "" : value);
  };
  std::string secret = get(kText);
  const std::string path = get(kFile);
  if (path.empty()) {
    process_group::check_secret(secret, kText);
    return secret;
  }
  if (!secret.empty()) throw ConfigError(fmt::format("{} and {} are both set; set one of them", kText, kFile));
  std::string problem;
  secret = process_group::read_private_file(path, 4096, problem);
  if (!problem.empty()) throw ConfigError(fmt::format("{}={}: {}", kFile, path, problem));
  constexpr const char* kSpace = " \t\r\n";
  const size_t begin = secret.find_first_not_of(kSpace);
  if (begin == std::string::npos) throw ConfigError(fmt::format("{}={}: the file is empty", kFile, path));
  secret = secret.substr(begin, secret.find_last_not_of(kSpace) + 1 - begin);
  process_group::check_secret(secret, kFile);
  return secret;
}

namespace process_group {

void check_secret(std::string_view secret, const char* name) {
  if (secret.empty() || secret.size() >= kLeastSecretBytes) return;
  throw ConfigError(
      fmt::format("{}: the secret has {} bytes, expected at least {}; create one with: openssl rand -hex 32", name,
                  secret.size(), kLeastSecretBytes));
}

}  // namespace process_group
}  // namespace vitrine
