// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {

/// Fails unless `action` throws E with a message that contains `text`.
template <class E, class Action>
void expect_error(const std::string& text, const Action& action) {
  expect_contains(error_of<E>(action), text);
}

}  // namespace vitrine::test
