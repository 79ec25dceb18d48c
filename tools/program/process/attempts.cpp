// SPDX-License-Identifier: Apache-2.0
#include "tools/program/process/attempts.h"

#include <cstdio>
#include <string>

#include <fmt/format.h>

#include "runtime/error.h"
#include "tools/program/flags/advice.h"

namespace vitrine::tools {

bool Attempts::run(const std::function<void()>& step) {
  try {
    step();
    return true;
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    if (!first_) {
      first_ = error;
    } else if (const std::string message = in_program_words(reason_of(error));
               message != in_program_words(reason_of(first_))) {
      fmt::print(stderr, "vitrine: {}\n", message);
    }
    return false;
  }
}

void Attempts::rethrow() const {
  if (first_) std::rethrow_exception(first_);
}

}  // namespace vitrine::tools
