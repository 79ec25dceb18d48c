// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <gtest/gtest.h>

namespace vitrine {

/// Fails the test and shows the text when it does not contain one of the parts.
template <class... Parts>
void expect_contains(const std::string& text, const Parts&... parts) {
  for (const std::string& part : {std::string(parts)...})
    EXPECT_NE(text.find(part), std::string::npos) << "expected: " << part << "\nin: " << text;
}

/// The same when it contains one of them.
template <class... Parts>
void expect_lacks(const std::string& text, const Parts&... parts) {
  for (const std::string& part : {std::string(parts)...})
    EXPECT_EQ(text.find(part), std::string::npos) << "not expected: " << part << "\nin: " << text;
}

}  // namespace vitrine
