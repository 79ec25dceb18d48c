// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

/// Where tests find what is not theirs. Only paths.cpp knows the folder of the sources, so that the compiler's cache
/// serves other clones.
namespace vitrine::test {

/// A path in the source tree: "docs/lab.md".
std::string source_path(std::string_view path);

/// A program of this build: "vitrine". It lies beside the running test.
std::string program_path(std::string_view name);

}  // namespace vitrine::test
