// SPDX-License-Identifier: Apache-2.0
#include "tools/program/attempts.h"

#include <cstdio>
#include <string>

#include <fmt/format.h>

namespace vitrine::tools {

namespace {

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an error without a message";
  }
}

}  // namespace

bool Attempts::run(const std::function<void()>& step) {
  try {
    step();
    return true;
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    if (!first_) {
      first_ = error;
    } else if (const std::string message = message_of(error); message != message_of(first_)) {
      fmt::print(stderr, "vitrine: {}\n", message);
    }
    return false;
  }
}

void Attempts::rethrow() const {
  if (first_) std::rethrow_exception(first_);
}

}  // namespace vitrine::tools
