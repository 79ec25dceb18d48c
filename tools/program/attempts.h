// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>

namespace vitrine::tools {

/// Takes several steps of which none may cost the others: all are tried, and the first error is thrown at the end.
class Attempts {
 public:
  /// Returns whether the step succeeded. Errors after the first go to stderr, unless they say the same.
  bool run(const std::function<void()>& step);
  /// throws the first error, if there was one.
  void rethrow() const;

 private:
  std::exception_ptr first_;
};

}  // namespace vitrine::tools
