// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <gtest/gtest.h>

namespace vitrine {

/// Fails the test and shows the text when it does not contain `part`.
inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "expected: " << part << "\nin: " << text;
}

}  // namespace vitrine
