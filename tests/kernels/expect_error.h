// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <gtest/gtest.h>

#include "tests/support/expect_contains.h"

namespace vitrine::test {

/// Fails unless `action` throws E with a message that contains `text`.
template <class E, class Action>
void expect_error(const std::string& text, const Action& action) {
  try {
    action();
    ADD_FAILURE() << "nothing thrown, expected: " << text;
  } catch (const E& error) {
    expect_contains(error.what(), text);
  }
}

}  // namespace vitrine::test
